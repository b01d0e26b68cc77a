package codec

import "github.com/verbena-rpc/verbena/pool"

// Raw sends bytes as they are. It encodes []byte and *[]byte, and decodes into
// *[]byte. Use the pointer where allocations count: putting a []byte into an
// interface costs one.
//
// The bytes are copied both ways and stay their owner's. Decoding overwrites
// the slice from its start and grows it if its capacity is too small, so a
// receiver that keeps its slice allocates nothing, and must be done with the
// last message in it before the next. What is in a pool.Buf need not be copied: see
// Call in package rpc.
var Raw Codec = rawCodec{}

type rawCodec struct{}

func (rawCodec) Name() string { return "raw" }

func (c rawCodec) Size(msg any) (int, error) {
	b, err := c.bytes("size", msg)
	return len(b), err
}

func (c rawCodec) MarshalTo(dst []byte, msg any) (int, error) {
	b, err := c.bytes("marshal", msg)
	if err != nil {
		return 0, err
	}
	if len(b) > len(dst) {
		return 0, fail(c, "marshal", msg, ErrShort)
	}
	return pool.Copy(dst, b), nil
}

func (c rawCodec) Unmarshal(src []byte, msg any) error {
	p, ok := msg.(*[]byte)
	if !ok {
		return fail(c, "unmarshal", msg, ErrType)
	}
	if p == nil {
		return fail(c, "unmarshal", msg, ErrNil)
	}
	*p = append((*p)[:0], src...)
	return nil
}

func (c rawCodec) bytes(op string, msg any) ([]byte, error) {
	switch b := msg.(type) {
	case []byte:
		return b, nil
	case *[]byte:
		if b == nil {
			return nil, fail(c, op, msg, ErrNil)
		}
		return *b, nil
	}
	return nil, fail(c, op, msg, ErrType)
}
