package transport

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// put gives one frame to the assembler, as a link does.
func put(a *assembler, h wire.Header, payload []byte) (m Message, whole bool, err error) {
	h.Length = uint32(len(payload))
	if h.Call%2 == 1 {
		whole, err = a.take(&h, payload, &m)
		return m, whole, err
	}
	if len(payload) > 0 {
		dst, err := a.land(&h)
		if err != nil {
			return Message{}, false, err
		}
		copy(dst, payload)
	}
	whole, err = a.frame(&h, &m)
	return m, whole, err
}

// chunks cuts a message as Lane.Send does.
func chunks(h wire.Header, msg []byte, size int) (hs []wire.Header, payloads [][]byte) {
	if len(msg) <= size {
		h.Total = uint32(len(msg))
		return []wire.Header{h}, [][]byte{msg}
	}
	for off := 0; off < len(msg); off += size {
		c := h
		c.Total = uint32(len(msg))
		if off > 0 {
			c.Flags |= wire.Cont
			c.Total = uint32(off)
		}
		end := min(off+size, len(msg))
		if end < len(msg) {
			c.Flags |= wire.More
		}
		hs, payloads = append(hs, c), append(payloads, msg[off:end])
	}
	return hs, payloads
}

func newAssembler() *assembler { return &assembler{maxMessage: 8 << 20, maxParts: 4} }

func TestAssemblerRefuses(t *testing.T) {
	const big = 8<<20 + 1
	type frame struct {
		kind   wire.Kind
		flags  wire.Flags
		call   uint64
		total  uint32
		length int
	}
	for _, c := range []struct {
		name   string
		frames []frame // the last is refused
		field  string
	}{
		{"whole with another total", []frame{{wire.Call, 0, 1, 5, 4}}, "total"},
		{"empty with a total", []frame{{wire.Call, 0, 1, 5, 0}}, "total"},
		{"total above the limit", []frame{{wire.Call, wire.More, 1, big, 4}}, "total"},
		{"total of 2^32-1", []frame{{wire.Call, wire.More, 1, 1<<32 - 1, 4}}, "total"}, // case 77
		{"first chunk has it all", []frame{{wire.Call, wire.More, 1, 4, 4}}, "total"},
		{"first chunk beyond total", []frame{{wire.Call, wire.More, 1, 3, 4}}, "total"},
		{"first chunk empty", []frame{{wire.Call, wire.More, 1, 3, 0}}, "length"},
		{"continuation without a first", []frame{{wire.Call, wire.Cont, 1, 0, 4}}, "flags"},
		{"continuation of the other kind", []frame{{wire.Call, wire.More, 1, 10, 4}, {wire.Reply, wire.Cont, 1, 4, 6}}, "flags"},
		{"first chunk twice", []frame{{wire.Call, wire.More, 1, 10, 4}, {wire.Call, wire.More, 1, 10, 4}}, "flags"},
		{"gap", []frame{{wire.Call, wire.More, 1, 10, 4}, {wire.Call, wire.Cont, 1, 5, 5}}, "total"},
		{"chunk twice", []frame{{wire.Call, wire.More, 1, 10, 4}, {wire.Call, wire.Cont | wire.More, 1, 0, 4}}, "total"},
		{"too long", []frame{{wire.Call, wire.More, 1, 10, 4}, {wire.Call, wire.Cont, 1, 4, 7}}, "length"},
		{"ends early", []frame{{wire.Call, wire.More, 1, 10, 4}, {wire.Call, wire.Cont, 1, 4, 5}}, "length"},
		{"ends late", []frame{{wire.Call, wire.More, 1, 10, 4}, {wire.Call, wire.Cont | wire.More, 1, 4, 6}}, "length"},
		{"too many at once", []frame{
			{wire.Call, wire.More, 1, 10, 4}, {wire.Call, wire.More, 2, 10, 4}, {wire.Call, wire.More, 3, 10, 4},
			{wire.Call, wire.More, 4, 10, 4}, {wire.Call, wire.More, 5, 10, 4},
		}, "flags"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pooltest.Check(t)
			a := newAssembler()
			defer a.reset()
			for i, f := range c.frames {
				h := wire.Header{Kind: f.kind, Flags: f.flags, Call: f.call, Total: f.total}
				_, whole, err := put(a, h, make([]byte, f.length))
				if i < len(c.frames)-1 {
					require.NoError(t, err)
					require.False(t, whole)
					continue
				}
				var pe *wire.ParseError
				require.ErrorAs(t, err, &pe)
				require.Equal(t, c.field, pe.Field)
			}
		})
	}
}

// TestAssemblerAllocates: what is allocated stays in proportion to what has
// arrived, whatever was announced (case 77).
func TestAssemblerAllocates(t *testing.T) {
	pooltest.Check(t)
	a := &assembler{maxMessage: 1 << 30, maxParts: 1 << 20}
	defer a.reset()
	held := func() (n int) {
		for _, p := range a.parts {
			n += p.buf.Cap()
		}
		return n
	}
	arrived := 0
	for call := range 2000 {
		_, _, err := put(a, wire.Header{Kind: wire.Call, Call: uint64(call), Flags: wire.More, Total: 1 << 20}, []byte{1})
		require.NoError(t, err)
		arrived++
		// 64 bytes is the smallest class of the pool.
		require.LessOrEqual(t, held(), maxSlack+64*arrived+firstPart)
	}
	a.reset()
	arrived = 0
	chunk := make([]byte, 64<<10)
	for off := 0; off < 32<<20; off += len(chunk) {
		h := wire.Header{Kind: wire.Call, Call: 1, Flags: wire.More, Total: 1 << 30}
		if off > 0 {
			h.Flags |= wire.Cont
			h.Total = uint32(off)
		}
		_, _, err := put(a, h, chunk)
		require.NoError(t, err)
		arrived += len(chunk)
		require.LessOrEqual(t, held(), maxSlack+growth*arrived)
	}
}

// TestAssemblerCopiesOnce: messages of common block sizes have their memory at
// once.
func TestAssemblerCopiesOnce(t *testing.T) {
	a := newAssembler()
	defer a.reset()
	for call := range uint64(blocksAtOnce) {
		_, _, err := put(a, wire.Header{Kind: wire.Call, Call: call, Flags: wire.More, Total: 1<<20 + 4}, make([]byte, 4096))
		require.NoError(t, err)
		require.GreaterOrEqual(t, a.parts[partKey{wire.Call, call}].buf.Cap(), 1<<20+4)
	}
}

func TestAssemblerForgets(t *testing.T) {
	pooltest.Check(t)
	a := newAssembler()
	msg := bytes.Repeat([]byte("0123456789"), 100)
	hs, ps := chunks(wire.Header{Kind: wire.Reply, Call: 1}, msg, 64)

	// Between two chunks: the rest of the message is taken in and dropped.
	for i := range hs {
		_, whole, err := put(a, hs[i], ps[i])
		require.NoError(t, err)
		require.False(t, whole)
		if i == 3 {
			a.forget(1)
			a.forget(1)
			a.forget(2)
		}
	}
	require.Empty(t, a.parts)
	require.Zero(t, a.slack)

	// While the link writes: memory is given back only after.
	require.NoError(t, err2(put(a, hs[0], ps[0])))
	h := hs[1]
	h.Length = uint32(len(ps[1]))
	dst, err := a.land(&h)
	require.NoError(t, err)
	a.forget(1)
	copy(dst, ps[1])
	whole, err := a.frame(&h, nil)
	require.NoError(t, err)
	require.False(t, whole)

	// A sender gives up: with CANCEL its call, with a whole REPLY its reply.
	m, whole, err := put(a, wire.Header{Kind: wire.Reply, Call: 1, Flags: wire.Error, Total: 2}, []byte("no"))
	require.NoError(t, err)
	require.True(t, whole)
	m.Payload.Release()
	require.Empty(t, a.parts)
	require.NoError(t, err2(put(a, wire.Header{Kind: wire.Call, Call: 1, Flags: wire.More, Total: 99}, ps[0])))
	_, whole, err = put(a, wire.Header{Kind: wire.Cancel, Call: 1}, nil)
	require.NoError(t, err)
	require.True(t, whole)
	require.Empty(t, a.parts)
	require.Zero(t, a.slack)
}

func err2(_ Message, _ bool, err error) error { return err }

// TestAssemblerWhole: messages of any sizes, cut anywhere, their chunks
// interleaved in any order, come out whole.
func TestAssemblerWhole(t *testing.T) {
	pooltest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		a := &assembler{maxMessage: 8 << 20, maxParts: 16}
		defer a.reset()
		size := rapid.SampledFrom([]int{1, 7, 4024, 64 << 10}).Draw(t, "chunk")
		n := rapid.IntRange(1, 8).Draw(t, "messages")
		type sending struct {
			msg []byte
			hs  []wire.Header
			ps  [][]byte
		}
		var all []sending
		for i := range n {
			msg := make([]byte, rapid.IntRange(0, 50*size).Draw(t, "size"))
			for j := range msg {
				msg[j] = byte(j*13 + i)
			}
			h := wire.Header{Kind: wire.Call, Flags: wire.End, Call: uint64(i), Method: uint64(i) * 3, Arg: uint32(i)}
			hs, ps := chunks(h, msg, size)
			all = append(all, sending{msg, hs, ps})
		}
		left := n
		for left > 0 {
			i := rapid.IntRange(0, n-1).Draw(t, "next")
			for len(all[i].hs) == 0 {
				i = (i + 1) % n
			}
			s := &all[i]
			m, whole, err := put(a, s.hs[0], s.ps[0])
			require.NoError(t, err)
			s.hs, s.ps = s.hs[1:], s.ps[1:]
			require.Equal(t, len(s.hs) == 0, whole)
			if !whole {
				continue
			}
			left--
			require.Equal(t, Message{Kind: wire.Call, Flags: wire.End, Call: uint64(i), Method: uint64(i) * 3, Arg: uint32(i), Payload: m.Payload}, m)
			if len(s.msg) == 0 {
				require.Nil(t, m.Payload)
				continue
			}
			if !bytes.Equal(s.msg, m.Payload.Bytes()) {
				t.Fatalf("message %d of %d bytes is damaged", i, len(s.msg))
			}
			m.Payload.Release()
		}
		require.Empty(t, a.parts)
		require.Zero(t, a.slack)
	})
}

// FuzzAssembler takes bytes as frames, 16 for each: flags, call, total, length.
func FuzzAssembler(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef"))
	for _, seed := range []uint64{1, 2, 3} {
		r := rand.New(rand.NewPCG(seed, 0))
		var b []byte
		for range 20 {
			b = append(b, byte(r.IntN(16)), byte(r.IntN(3)), byte(r.IntN(4)), 0)
			b = binary.LittleEndian.AppendUint32(b, uint32(r.IntN(300)))
			b = binary.LittleEndian.AppendUint32(b, uint32(r.IntN(200)))
			b = append(b, 0, 0, 0, 0)
		}
		f.Add(b)
	}
	payload := make([]byte, 64<<10)
	f.Fuzz(func(t *testing.T, b []byte) {
		a := &assembler{maxMessage: 1 << 20, maxParts: 3}
		defer a.reset()
		arrived := 0
		for ; len(b) >= 16; b = b[16:] {
			le := binary.LittleEndian
			h := wire.Header{
				Kind:  [...]wire.Kind{wire.Call, wire.Reply, wire.Cancel}[b[1]%3],
				Flags: wire.Flags(b[0]), Call: uint64(b[2]), Total: le.Uint32(b[4:]),
			}
			n := int(le.Uint32(b[8:]) % uint32(len(payload)))
			if h.Kind == wire.Cancel {
				h.Flags, n = 0, 0
			}
			m, whole, err := put(a, h, payload[:n])
			if err != nil {
				return // the link is closed
			}
			if b[3] == 1 {
				a.forget(h.Call)
			}
			arrived += n
			if whole && m.Payload != nil {
				m.Payload.Release()
			}
			held, open := 0, int64(0)
			for _, p := range a.parts {
				open += int64(p.first.Total)
				if p.buf != nil {
					held += p.buf.Cap()
				}
			}
			if held > maxSlack+growth*arrived+64*len(a.parts) {
				t.Fatalf("%d bytes held for %d that arrived", held, arrived)
			}
			if open != a.open || open > openLimit(a.maxMessage) {
				t.Fatalf("%d bytes are open, counted %d", open, a.open)
			}
			if len(a.parts) > a.maxParts {
				t.Fatalf("%d messages in parts", len(a.parts))
			}
		}
	})
}

// TestAssemblerInterrupted: a frame whose link dies between land and frame comes
// again, and is as if it had come once: the first, one in the middle, the last,
// one that is the whole message, and one that was forgotten meanwhile.
func TestAssemblerInterrupted(t *testing.T) {
	pooltest.Check(t)
	msg := bytes.Repeat([]byte("frame"), 100)
	for _, size := range []int{len(msg), 100} {
		hs, payloads := chunks(wire.Header{Kind: wire.Call, Call: 1}, msg, size)
		for cut := range hs {
			for _, forgets := range []bool{false, true} {
				a := newAssembler()
				for i, h := range hs {
					h.Length = uint32(len(payloads[i]))
					if i == cut {
						_, err := a.land(&h)
						require.NoError(t, err)
						if forgets {
							a.forget(1)
						}
						a.interrupt().Release()
					}
					m, whole, err := put(a, h, payloads[i])
					require.NoError(t, err)
					// A message that is forgotten before any of it is there comes.
					wanted := !forgets || cut == 0
					require.Equal(t, wanted && i == len(hs)-1, whole)
					if whole {
						require.Equal(t, msg, m.Payload.Bytes())
						m.Payload.Release()
					}
				}
				require.Zero(t, a.open)
				require.Zero(t, a.slack)
				require.Empty(t, a.parts)
				a.reset()
			}
		}
	}
}
