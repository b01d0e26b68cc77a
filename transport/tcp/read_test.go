package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// sinkhole takes in frames and remembers what it gave out.
type sinkhole struct {
	frames  []wire.Header
	payload []byte // of all frames
	landed  []byte
	given   int // bytes
	corked  int
}

func (s *sinkhole) Take(h *wire.Header, payload []byte) error { return linktest.Take(s, h, payload) }

func (s *sinkhole) Land(h *wire.Header) ([]byte, error) {
	s.landed = make([]byte, h.Length)
	s.given += len(s.landed)
	return s.landed, nil
}

func (s *sinkhole) Frame(h *wire.Header) error {
	s.frames = append(s.frames, *h)
	s.payload = append(s.payload, s.landed...)
	s.landed = nil
	return nil
}

func (s *sinkhole) Closed(error)  {}
func (s *sinkhole) adopt(uint64)  {}
func (s *sinkhole) stopped() bool { return false }
func (s *sinkhole) cork()         { s.corked++ }
func (s *sinkhole) uncork()       { s.corked-- }
func (s *sinkhole) delivered(int) {}

func parse(src io.Reader) (*sinkhole, error) {
	s := &sinkhole{}
	p := parser{src: src, recv: s, owner: s, count: new(counters)}
	return s, p.run()
}

// run takes in frames until the stream ends, whatever stops it meanwhile.
func (p *parser) run() error {
	for {
		if _, err := p.pump(); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// stream makes valid frames with payloads of these sizes.
func stream(sizes ...int) (b, payload []byte) {
	for i, n := range sizes {
		h := wire.Header{
			Kind: wire.Call, Lane: transport.LaneID, Epoch: 77, Seq: uint32(i),
			Length: uint32(n), Total: uint32(n), Call: uint64(i),
		}
		if i%2 == 1 && n > 0 {
			h.Flags = wire.Sum
		}
		head := make([]byte, wire.HeaderSize)
		h.Put(head)
		body := bytes.Repeat([]byte{byte(i + 1)}, n)
		b = append(append(b, head...), body...)
		if h.Flags&wire.Sum != 0 {
			b = binary.LittleEndian.AppendUint64(b, wire.PayloadSum(body))
		}
		payload = append(payload, body...)
	}
	return b, payload
}

// TestParserCuts: however the stream is cut into reads, the frames are the same.
func TestParserCuts(t *testing.T) {
	sizes := []int{0, 1, 100, 8 << 10, 9000, 0, 64 << 10, 64 << 10, 3, 20 << 10}
	b, payload := stream(sizes...)
	for name, src := range map[string]io.Reader{
		"whole":    bytes.NewReader(b),
		"one byte": iotest.OneByteReader(bytes.NewReader(b)),
		"half":     iotest.HalfReader(bytes.NewReader(b)),
		"data+EOF": iotest.DataErrReader(bytes.NewReader(b)),
	} {
		s, err := parse(src)
		require.Equal(t, io.EOF, err, name)
		require.Len(t, s.frames, len(sizes), name)
		require.True(t, bytes.Equal(payload, s.payload), name)
		require.Zero(t, s.corked, "%s: corked while it waits for the peer", name)
	}
}

// TestParserSocket: the same from a socket, where what follows a payload is read
// with it.
func TestParserSocket(t *testing.T) {
	sizes := []int{0, 1, 100, 9000, 64 << 10, 3, 256 << 10, 256 << 10, 20 << 10, 20 << 10, 0, 5}
	b, payload := stream(sizes...)
	for _, cut := range []int{len(b), 100_000, 4096, 777} {
		from, to := sockets(t)
		defer to.Close()
		go func() {
			defer from.Close()
			for rest := b; len(rest) > 0; {
				n, _ := from.Write(rest[:min(cut, len(rest))])
				rest = rest[n:]
			}
		}()
		s := &sinkhole{}
		p := parser{src: to, vec: newRawReader(to), recv: s, owner: s, count: new(counters)}
		require.Equal(t, io.EOF, p.run(), "cut %d", cut)
		require.Len(t, s.frames, len(sizes))
		require.True(t, bytes.Equal(payload, s.payload), "cut %d", cut)
		require.Equal(t, uint64(len(b)), p.count.bytesReceived.Load())
	}
}

// TestParserTruncated: a stream that ends within a frame names the frame.
func TestParserTruncated(t *testing.T) {
	b, _ := stream(10, 20)
	whole := map[int]bool{0: true, wire.HeaderSize + 10: true}
	for n := range len(b) {
		_, err := parse(bytes.NewReader(b[:n]))
		if whole[n] {
			require.Equal(t, io.EOF, err)
			continue
		}
		var pe *wire.ParseError
		require.ErrorAs(t, err, &pe, "%d bytes", n)
		require.Equal(t, "frame", pe.Field)
	}
}

// FuzzParser takes any bytes for a stream: no panic, an end with a typed error
// or EOF, and no more memory for payloads than what arrived and one frame.
func FuzzParser(f *testing.F) {
	b, _ := stream(0, 5, 70, 3000)
	f.Add(b, uint16(0), byte(0))
	f.Add(b, uint16(8), byte(0xff))
	f.Add(b[:100], uint16(70), byte(1))
	f.Fuzz(func(t *testing.T, b []byte, at uint16, to byte) {
		// Mutations that keep the header sum right reach further in.
		if int(at) < len(b) && len(b) >= wire.HeaderSize {
			b = bytes.Clone(b)
			b[at] = to
			binary.LittleEndian.PutUint64(b[56:], wire.PayloadSum(b[:56]))
		}
		s, err := parse(bytes.NewReader(b))
		var pe *wire.ParseError
		if err != io.EOF {
			require.ErrorAs(t, err, &pe)
		}
		if s.given > len(b)+MaxPayload {
			t.Fatalf("%d bytes given out for %d that arrived", s.given, len(b))
		}
	})
}
