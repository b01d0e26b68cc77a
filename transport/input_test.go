package transport_test

import (
	"crypto/rand"
	"encoding/binary"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// frame encodes a frame of epoch 1.
func frame(h wire.Header, payload []byte) []byte {
	h.Epoch, h.Length = 1, uint32(len(payload))
	b := make([]byte, wire.HeaderSize, wire.HeaderSize+len(payload)+wire.SumSize)
	h.Put(b)
	b = append(b, payload...)
	if h.Flags&wire.Sum != 0 {
		b = binary.LittleEndian.AppendUint64(b, wire.PayloadSum(payload))
	}
	return b
}

func callFrame(seq uint32, h wire.Header, payload []byte) []byte {
	h.Kind, h.Lane, h.Seq = wire.Call, transport.LaneID, seq
	if h.Total == 0 {
		h.Total = uint32(len(payload))
	}
	return frame(h, payload)
}

func goodHello() []byte { return frame(wire.Header{Kind: wire.Hello}, helloPayload()) }

// opened is a good HELLO, and the lane carried by the link.
func opened() []byte {
	return join(goodHello(), frame(wire.Header{Kind: wire.Move, Lane: transport.LaneID, Arg: 1}, nil))
}

// helloPayload is of another session each time.
func helloPayload() []byte {
	m := helloMsg()
	rand.Read(m.Session[:])
	return m.Append(nil)
}

// with changes one byte of a frame, and its header sum if told so.
func with(b []byte, at int, to byte, resum bool) []byte {
	b[at] = to
	if resum {
		binary.LittleEndian.PutUint64(b[56:], wire.PayloadSum(b[:56]))
	}
	return b
}

// length announces n bytes of payload in a frame that has none.
func length(b []byte, n uint32) []byte {
	binary.LittleEndian.PutUint32(b[8:], n)
	return with(b, 0, b[0], true)
}

func join(bs ...[]byte) (out []byte) {
	for _, b := range bs {
		out = append(out, b...)
	}
	return out
}

// watchedServer serves over TCP and reports every connection that failed or
// session that ended.
func watchedServer(t *testing.T) (addr string, ends chan error) {
	t.Helper()
	ends = make(chan error, 4096)
	n := overTCP()
	n.Config.OnSetupError = func(_ net.Addr, err error) { ends <- err }
	a, err := n.Listen("127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() {
		served <- a.Serve(func(*transport.Session) transport.Sink { return endSink{ends} })
	}()
	t.Cleanup(func() {
		require.NoError(t, a.Close())
		require.NoError(t, within(t, served))
	})
	return a.Addr().String(), ends
}

// endSink drops messages and hands on the end.
type endSink struct{ ends chan error }

func (s endSink) Message(m transport.Message) {
	if m.Payload != nil {
		m.Payload.Release()
	}
}
func (s endSink) GoAway()         {}
func (s endSink) Ended(err error) { s.ends <- err }

// TestBadInput sends what docs/PROTOCOL.md, "Bad input", forbids: the
// connection is closed with a typed error that names the field, and the server
// lives (case 77).
func TestBadInput(t *testing.T) {
	addr, ends := watchedServer(t)
	small := []byte("0123456789")
	flip := func(bit int) []byte {
		b := join(opened(), callFrame(0, wire.Header{Flags: wire.Sum}, small))
		b[len(opened())+bit/8] ^= 1 << (bit % 8)
		return b
	}
	type input struct {
		name  string
		bytes []byte
		field string // "": any
	}
	inputs := []input{
		{"not our protocol", append([]byte("GET / HTTP/1.1\r\n"), make([]byte, 64)...), "magic"},
		{"magic", with(goodHello(), 0, 'X', true), "magic"},
		{"version", with(goodHello(), 2, 2, true), "version"},
		{"kind 0", with(goodHello(), 3, 0, true), "kind"},
		{"kind that is reserved", with(goodHello(), 3, 35, true), "kind"},
		{"kind 255", with(goodHello(), 3, 255, true), "kind"},
		{"flags", with(goodHello(), 5, 0x80, true), "flags"},
		{"header sum", with(goodHello(), 60, 1, false), "sum"},
		{"epoch 0", with(goodHello(), 16, 0, true), "epoch"},
		{"HELLO truncated", goodHello()[:70], "frame"},
		{"header truncated", goodHello()[:40], "frame"},
		{"HELLO without TLVs", frame(wire.Header{Kind: wire.Hello}, nil), "HELLO"},
		{"HELLO of one byte", frame(wire.Header{Kind: wire.Hello}, []byte{1}), "HELLO TLV header"},
		{"HELLO oversized", length(frame(wire.Header{Kind: wire.Hello}, nil), 4097), "length"},
		{"HELLO of 4 GiB", length(frame(wire.Header{Kind: wire.Hello}, nil), 1<<32-1), "length"},
		{"call before MOVE", join(goodHello(), callFrame(0, wire.Header{}, small)), "seq"},
		{"MOVE beyond what was sent", join(goodHello(), frame(wire.Header{Kind: wire.Move, Lane: transport.LaneID, Arg: 1, Ack: 1}, nil)), "ack"},
		{"MOVE of another lane", join(goodHello(), frame(wire.Header{Kind: wire.Move, Lane: 2, Arg: 1}, nil)), "lane"},
		{"call before HELLO", callFrame(0, wire.Header{}, small), "kind"},
		{"offer before HELLO", frame(wire.Header{Kind: wire.QPOffer}, qp(1)), "kind"},
		{"READY on TCP before HELLO", frame(wire.Header{Kind: wire.Ready}, nil), "kind"},
		{"answer to HELLO", frame(wire.Header{Kind: wire.Refuse}, wire.AppendFault(nil, "no", nil)), "kind"},

		{"HELLO twice", join(goodHello(), goodHello()), "kind"},
		{"READY on TCP", join(goodHello(), frame(wire.Header{Kind: wire.Ready}, nil)), "kind"},
		{"CREDIT on TCP", join(goodHello(), frame(wire.Header{Kind: wire.Credit}, nil)), "kind"},
		{"offer though no fast links", join(goodHello(), frame(wire.Header{Kind: wire.QPOffer}, qp(1))), "kind"},
		{"offer short", join(goodHello(), frame(wire.Header{Kind: wire.QPOffer}, qp(1)[:63])), "QP exchange"},
		{"offer with reserved bytes", join(goodHello(), frame(wire.Header{Kind: wire.QPOffer}, append(qp(1)[:63], 1))), "QP reserved byte"},
		{"answer to nothing", join(goodHello(), frame(wire.Header{Kind: wire.QPAnswer}, qp(1))), "kind"},
		{"abandon without an epoch", join(goodHello(), frame(wire.Header{Kind: wire.QPAbandon}, wire.AppendFault(nil, "no", nil))), "QP_ABANDON details"},
		{"abandon empty", join(goodHello(), frame(wire.Header{Kind: wire.QPAbandon}, nil)), "error payload"},
		{"close with a long text", join(goodHello(), frame(wire.Header{Kind: wire.Close}, []byte{255, 255, 255, 255})), "error text length"},
		{"call of 4 GiB", join(opened(), length(callFrame(0, wire.Header{Total: 1<<32 - 1}, nil), 1<<32-1)), "length"},
		{"call above the frame", join(opened(), length(callFrame(0, wire.Header{Total: tcp.MaxPayload + 1}, nil), tcp.MaxPayload+1)), "length"},
		{"message of 4 GiB", join(opened(), callFrame(0, wire.Header{Flags: wire.More, Total: 1<<32 - 1}, small)), "total"},
		{"message of 2 GiB", join(opened(), callFrame(0, wire.Header{Flags: wire.More, Total: 1 << 31}, small)), "total"},
		{"message one above the limit", join(opened(), callFrame(0, wire.Header{Flags: wire.More, Total: 64<<20 + 1}, small)), "total"},
		{"chunk without a first", join(opened(), callFrame(0, wire.Header{Flags: wire.Cont, Total: 3}, small)), "flags"},
		{"call truncated", join(opened(), callFrame(0, wire.Header{}, small)[:70]), "frame"},
		{"call out of turn", join(opened(), callFrame(1, wire.Header{}, small)), "seq"},
		{"calls exchanged", join(opened(), callFrame(1, wire.Header{}, small), callFrame(0, wire.Header{}, small)), "seq"},
		{"another lane", join(opened(), with(callFrame(0, wire.Header{}, small), 6, 2, true)), "lane"},
		{"another epoch", join(opened(), with(callFrame(0, wire.Header{}, small), 16, 2, true)), "epoch"},
		{"SUM without a payload", join(opened(), with(callFrame(0, wire.Header{}, nil), 4, byte(wire.Sum), true)), "flags"},
		{"payload damaged", flip(8*wire.HeaderSize + 3), "payload sum"},
		{"payload sum damaged", flip(8*(wire.HeaderSize+len(small)) + 3), "payload sum"},
	}
	for bit := 0; bit < 8*wire.HeaderSize; bit += 7 {
		inputs = append(inputs, input{"header bit flipped", flip(bit), ""})
	}
	for _, in := range inputs {
		t.Run(in.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Write(in.bytes)
			require.NoError(t, err)
			require.NoError(t, conn.(*net.TCPConn).CloseWrite())
			var pe *wire.ParseError
			err = within(t, ends)
			require.ErrorAs(t, err, &pe)
			if in.field != "" {
				require.Equal(t, in.field, pe.Field, "%v", err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			for err = nil; err == nil; {
				_, err = conn.Read(make([]byte, 4096))
			}
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection is open")
		})
	}
	c, err := dial(t, overTCP(), addr)
	require.NoError(t, err)
	c.Close(nil)
	require.ErrorIs(t, within(t, ends), net.ErrClosed)
}

// TestAnnouncedLengths: a thousand connections that announce the most and send
// one byte cost what they sent, and a constant each (case 77).
func TestAnnouncedLengths(t *testing.T) {
	addr, ends := watchedServer(t)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const conns = 200
	before := heap()
	for range conns {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write(join(opened(), callFrame(0, wire.Header{Flags: wire.More, Total: 64 << 20}, []byte{1})))
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1024)) // HELLO: it is a session
		require.NoError(t, err)
		_, err = conn.Write(length(callFrame(1, wire.Header{Flags: wire.More | wire.Cont, Total: 1}, nil), 64<<10))
		require.NoError(t, err)
		_, err = conn.Write([]byte{1})
		require.NoError(t, err)
	}
	time.Sleep(200 * time.Millisecond) // most have been read; more would only help the test
	// 64 KiB to read into, and what two chunks may have: 256 KiB.
	require.Less(t, int64(heap())-int64(before), int64(conns*400<<10))
	require.Empty(t, ends)
}

// TestSilentClients: connections that say nothing, or little, take no more
// than the places there are for them, and none from a client that speaks
// (case 82).
func TestSilentClients(t *testing.T) {
	f := &fabric{m: newMemory()}
	n := &transport.Network{Carrier: &tcp.Carrier{}, Fabric: f}
	n.Config.MaxHandshakes = 8
	ends := make(chan error, 4096)
	n.Config.OnSetupError = func(_ net.Addr, err error) { ends <- err }
	l := serve(t, n)
	const silent = 40
	for i := range silent {
		conn, err := net.Dial("tcp", l.addr)
		require.NoError(t, err)
		defer conn.Close()
		if i%2 == 0 {
			_, err = conn.Write(goodHello()[:i])
			require.NoError(t, err)
		}
	}
	c, err := dial(t, overTCP(), l.addr) // waits for patience at most
	require.NoError(t, err)
	s := within(t, l.sessions)
	require.Zero(t, f.prepared.Load(), "something of the fabric was taken before HELLO")
	for range silent - 8 {
		require.ErrorContains(t, within(t, ends), "no HELLO")
	}
	end(t, c, s)
}

// TestHandshakeTimeout: a connection that says nothing is closed in time
// although nobody waits for its place.
func TestHandshakeTimeout(t *testing.T) {
	n := overTCP()
	n.Config.HandshakeTimeout = 50 * time.Millisecond
	ends := make(chan error, 1)
	n.Config.OnSetupError = func(_ net.Addr, err error) { ends <- err }
	l := serve(t, n)
	conn, err := net.Dial("tcp", l.addr)
	require.NoError(t, err)
	defer conn.Close()
	require.ErrorContains(t, within(t, ends), "no HELLO in time")

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	_, err = dial(t, n, silent.Addr().String())
	require.ErrorContains(t, err, "no HELLO in time")
	require.ErrorAs(t, err, new(*transport.SetupError))
}
