package wire_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport/wire"
)

const (
	epoch  = 0x0123456789abcdef
	callID = 0x1122334455667788
)

// headers has one of each kind, as in testdata/golden.txt.
func headers() []wire.Header {
	return []wire.Header{
		{Kind: wire.Hello, Length: 98, Epoch: epoch},
		{Kind: wire.Refuse, Flags: wire.Sum, Length: 11, Epoch: epoch},
		{Kind: wire.QPOffer, Length: 64, Epoch: epoch},
		{Kind: wire.QPAnswer, Length: 64, Epoch: epoch},
		{Kind: wire.QPAbandon, Length: 11, Epoch: epoch},
		{Kind: wire.Ready, Credit: 128, Epoch: epoch},
		{Kind: wire.Ping, Length: 8, Epoch: epoch},
		{Kind: wire.Pong, Length: 8, Epoch: epoch},
		{Kind: wire.Credit, Credit: 0xfffffff0, Epoch: epoch},
		{Kind: wire.GoAway, Epoch: epoch},
		{Kind: wire.Close, Length: 11, Epoch: epoch},
		{Kind: wire.Ack, Lane: 1, Ack: 0x01020304, Epoch: epoch},
		{Kind: wire.Call, Flags: wire.More | wire.Sum | wire.End | wire.Idempotent, Lane: 1, Length: 4096, Credit: 200, Epoch: epoch,
			Seq: 5, Ack: 6, Call: callID, Method: wire.MethodID("/echo.Echo/Say"), Total: 1 << 20, Arg: 250_000},
		{Kind: wire.Reply, Flags: wire.Error | wire.End | wire.Unseen, Lane: 1, Length: 11, Credit: 201, Epoch: epoch,
			Seq: 0xffffffff, Call: callID, Total: 11, Arg: 14},
		{Kind: wire.Cancel, Lane: 1, Credit: 202, Epoch: epoch, Seq: 7, Ack: 8, Call: callID},
		{Kind: wire.Move, Lane: 1, Credit: 203, Epoch: epoch, Ack: 0xfffffffe, Arg: 3},
	}
}

func put(h wire.Header) []byte {
	b := make([]byte, wire.HeaderSize)
	h.Put(b)
	return b
}

func TestHeaderGolden(t *testing.T) {
	for _, h := range headers() {
		want := golden(t, h.Kind.String()+" header")
		require.Equal(t, want, put(h), h.Kind)
		got := wire.Header{Arg: 99, Total: 99} // old contents go
		require.NoError(t, got.Parse(want))
		require.Equal(t, h, got)
	}
}

func TestPutStaysWithinTheHeader(t *testing.T) {
	b := bytes.Repeat([]byte{0xEE}, wire.HeaderSize+8)
	h := headers()[0]
	h.Put(b)
	require.Equal(t, bytes.Repeat([]byte{0xEE}, 8), b[wire.HeaderSize:])
	require.Panics(t, func() { h.Put(make([]byte, wire.HeaderSize-1)) })
}

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := rapid.SampledFrom(headers()).Draw(t, "header")
		h.Credit = rapid.Uint32().Draw(t, "credit")
		h.Epoch = rapid.Uint64().Draw(t, "epoch")
		if h.Kind.InLane() && h.Kind != wire.Move {
			h.Lane = rapid.Uint16().Draw(t, "lane")
			h.Seq = rapid.Uint32().Draw(t, "seq")
			h.Ack = rapid.Uint32().Draw(t, "ack")
			h.Call = rapid.Uint64().Draw(t, "call")
		}
		if h.Kind == wire.Call || h.Kind == wire.Reply {
			h.Length = rapid.Uint32Min(1).Draw(t, "length")
			h.Total = rapid.Uint32().Draw(t, "total")
			h.Arg = rapid.Uint32().Draw(t, "arg")
		}
		var got wire.Header
		require.NoError(t, got.Parse(put(h)))
		require.Equal(t, h, got)
	})
}

// Each wrong bit and each cut is seen, whatever the rest of the header holds.
func TestHeaderBitFlipsAndCuts(t *testing.T) {
	for _, h := range headers() {
		good := put(h)
		for bit := range len(good) * 8 {
			bad := bytes.Clone(good)
			bad[bit/8] ^= 1 << (bit % 8)
			field := "sum"
			switch bit / 8 {
			case 0, 1:
				field = "magic"
			case 2:
				field = "version"
			}
			refused(t, new(wire.Header).Parse(bad), field)
		}
		for n := range len(good) {
			refused(t, new(wire.Header).Parse(good[:n]), "frame")
		}
	}
}

// With a right sum, so that the rules of each field are what refuses.
func TestHeaderFieldsAreChecked(t *testing.T) {
	const (
		magicAt, versionAt, kindAt, flagsAt, laneAt    = 0, 2, 3, 4, 6
		seqAt, ackAt, callAt, methodAt, totalAt, argAt = 24, 28, 32, 40, 48, 52
	)
	spoilt := func(h wire.Header, at int, v ...byte) []byte {
		b := put(h)
		copy(b[at:], v)
		return sealed(b)
	}
	valid := headers()
	for _, h := range valid {
		for _, tc := range []struct {
			field string
			at    int
			value []byte
		}{
			{"magic", magicAt, []byte{'R', 'V'}},
			{"version", versionAt, []byte{0}},
			{"version", versionAt, []byte{2}},
			{"kind", kindAt, []byte{0}},
			{"kind", kindAt, []byte{14}},
			{"kind", kindAt, []byte{31}},
			{"kind", kindAt, []byte{35}}, // reserved: DATA
			{"kind", kindAt, []byte{48}}, // reserved: PULL
			{"kind", kindAt, []byte{255}},
			{"flags", flagsAt, []byte{0, 0x80}},
			{"flags", flagsAt, []byte{0x80, 0}},
		} {
			refused(t, new(wire.Header).Parse(spoilt(h, tc.at, tc.value...)), tc.field)
		}
		zero := map[string]int{}
		if h.Kind != wire.Call {
			zero["method"] = methodAt
		}
		if h.Kind != wire.Call && h.Kind != wire.Reply {
			zero["total"], zero["arg"] = totalAt, argAt
		}
		if h.Kind == wire.Move {
			zero["seq"], zero["call"] = seqAt, callAt
			delete(zero, "arg")
		}
		if !h.Kind.InLane() {
			zero["seq"], zero["call"] = seqAt, callAt
			if h.Kind != wire.Ack {
				zero["lane"], zero["ack"] = laneAt, ackAt
			}
		}
		for field, at := range zero {
			refused(t, new(wire.Header).Parse(spoilt(h, at, 1)), field)
		}
	}

	largest := map[wire.Kind]uint32{
		wire.Hello: wire.MaxHello, wire.QPOffer: wire.QPSize, wire.QPAnswer: wire.QPSize, wire.Ping: wire.MaxPing, wire.Pong: wire.MaxPing,
		wire.Refuse: 4 + wire.MaxErrorText, wire.QPAbandon: 4 + wire.MaxErrorText, wire.Close: 4 + wire.MaxErrorText,
		wire.Ready: 0, wire.Credit: 0, wire.Ack: 0, wire.Move: 0, wire.GoAway: 0, wire.Cancel: 0,
	}
	for _, h := range valid {
		n, limited := largest[h.Kind]
		if !limited {
			n = 1<<32 - 1
		}
		h.Length = n
		require.NoError(t, new(wire.Header).Parse(put(h)), h.Kind)
		for _, over := range []uint32{n + 1, 1<<31 - 1, 1 << 31, 1<<32 - 1} { // case 77
			if limited {
				h.Length = over
				refused(t, new(wire.Header).Parse(put(h)), "length")
			}
		}
	}
}

// The table of PROTOCOL.md: which flag is for which kind.
func TestHeaderFlags(t *testing.T) {
	both := []wire.Kind{wire.Call, wire.Reply}
	payload := append([]wire.Kind{wire.Hello, wire.Refuse, wire.QPOffer, wire.QPAnswer, wire.QPAbandon, wire.Ping, wire.Pong, wire.Close}, both...)
	reply := []wire.Kind{wire.Reply}
	on := map[wire.Flags][]wire.Kind{
		0x01: both, 0x02: both, 0x04: payload, 0x08: reply, 0x10: both, 0x20: {wire.Call}, 0x40: nil, // UNSEEN: not alone
	}
	for bit := range 16 {
		flag := wire.Flags(1) << bit
		for _, h := range headers() {
			h.Flags = flag
			err := new(wire.Header).Parse(put(h))
			if slices.Contains(on[flag], h.Kind) {
				require.NoError(t, err)
			} else {
				refused(t, err, "flags")
			}
		}
	}
	refused(t, new(wire.Header).Parse(put(wire.Header{Kind: wire.Call, Flags: wire.Sum})), "flags") // of no payload
	unseen := wire.Header{Kind: wire.Reply, Flags: wire.Error | wire.Unseen}
	require.NoError(t, new(wire.Header).Parse(put(unseen)))
}

func TestFrameSize(t *testing.T) {
	h := wire.Header{Length: 100}
	require.Equal(t, 164, h.FrameSize())
	h.Flags = wire.Sum
	require.Equal(t, 172, h.FrameSize())
}

func TestPayloadSumIsXXH64(t *testing.T) {
	require.EqualValues(t, uint64(0xef46db3751d8e999), wire.PayloadSum(nil)) // of the XXH64 specification
}

func TestKindNames(t *testing.T) {
	require.Equal(t, "QP_OFFER", wire.QPOffer.String())
	require.Equal(t, "Kind(14)", wire.Kind(14).String())
	require.Equal(t, "Kind(255)", wire.Kind(255).String())
}

func TestHeaderAllocatesNothing(t *testing.T) {
	h, b := headers()[13], make([]byte, wire.HeaderSize)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		h.Put(b)
		if h.Parse(b) != nil {
			panic("refused")
		}
	}))
}

func FuzzHeader(f *testing.F) {
	for _, h := range headers() {
		f.Add(put(h))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(b []byte) {
			var h wire.Header
			frugal(t, len(b), func() { h = wire.Header{}; _ = h.Parse(b) })
			if err := h.Parse(b); err == nil {
				require.Equal(t, b[:wire.HeaderSize], put(h), "one encoding per header")
			} else {
				require.ErrorAs(t, err, new(*wire.ParseError))
			}
		}
		check(b)
		if len(b) >= wire.HeaderSize { // past magic, version and sum
			h := headers()[0]
			copy(b, put(h)[:3])
			check(sealed(b))
		}
	})
}

func BenchmarkHeaderPut(b *testing.B) {
	h, buf := headers()[11], make([]byte, wire.HeaderSize)
	b.ReportAllocs()
	for b.Loop() {
		h.Put(buf)
	}
}

func BenchmarkHeaderParse(b *testing.B) {
	buf := put(headers()[11])
	var h wire.Header
	b.ReportAllocs()
	for b.Loop() {
		if err := h.Parse(buf); err != nil {
			b.Fatal(err)
		}
	}
}
