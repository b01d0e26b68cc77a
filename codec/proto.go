package codec

import "google.golang.org/protobuf/proto"

// Proto encodes protocol buffers: every proto.Message but a nil one. Encoding
// allocates nothing; decoding allocates what the message is made of.
var Proto Codec = protoCodec{}

type protoCodec struct{}

// Size leaves the sizes of submessages in msg, where MarshalTo finds them.
var protoMarshal = proto.MarshalOptions{UseCachedSize: true}

// A message that decodes its parts when they are read may change its size
// between Size and MarshalTo, so all is decoded at once.
var protoUnmarshal = proto.UnmarshalOptions{NoLazyDecoding: true}

func (protoCodec) Name() string { return "proto" }

func (c protoCodec) Size(msg any) (int, error) {
	m, err := c.message("size", msg)
	if err != nil {
		return 0, err
	}
	return proto.Size(m), nil
}

func (c protoCodec) MarshalTo(dst []byte, msg any) (int, error) {
	m, err := c.message("marshal", msg)
	if err != nil {
		return 0, err
	}
	// Without spare capacity a message that does not fit is moved elsewhere
	// instead of running into what follows dst.
	out, err := protoMarshal.MarshalAppend(dst[:0:len(dst)], m)
	if err != nil {
		return 0, fail(c, "marshal", msg, err)
	}
	if len(out) > 0 && (len(dst) == 0 || &out[0] != &dst[0]) {
		return 0, fail(c, "marshal", msg, ErrShort)
	}
	return len(out), nil
}

func (c protoCodec) Unmarshal(src []byte, msg any) error {
	m, err := c.message("unmarshal", msg)
	if err != nil {
		return err
	}
	if err := protoUnmarshal.Unmarshal(src, m); err != nil {
		return fail(c, "unmarshal", msg, err)
	}
	return nil
}

func (c protoCodec) message(op string, msg any) (proto.Message, error) {
	m, ok := msg.(proto.Message)
	if !ok {
		return nil, fail(c, op, msg, ErrType)
	}
	if !m.ProtoReflect().IsValid() {
		return nil, fail(c, op, msg, ErrNil)
	}
	return m, nil
}
