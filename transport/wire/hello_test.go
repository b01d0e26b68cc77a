package wire_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport/wire"
)

func hello() wire.HelloMsg {
	return wire.HelloMsg{
		MinVersion: 1, MaxVersion: 2,
		Session:    wire.SessionID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
		Features:   wire.FeaturePayloadSum | wire.FeatureFastLink,
		MaxMessage: 1 << 20, MaxCalls: 1000,
		Lanes:      []wire.LaneState{{Lane: 1, Next: 0x11223344}, {Lane: 2, Next: 0xffffffff}},
		NoFastLink: "no device", Software: "verbena 0.1",
	}
}

func tlv(typ uint16, value ...byte) []byte {
	return append(le.AppendUint16(le.AppendUint16(nil, typ), uint16(len(value))), value...)
}

// required are the TLVs that a HELLO must have.
func required() []byte {
	m := wire.HelloMsg{MinVersion: 1, MaxVersion: 1}
	return m.Append(nil)
}

func TestHelloGolden(t *testing.T) {
	want, m := golden(t, "HELLO payload"), hello()
	require.Equal(t, want, m.Append(nil))
	got := wire.HelloMsg{NoFastLink: "old", Lanes: []wire.LaneState{{Lane: 9}}}
	require.NoError(t, got.Parse(want))
	require.Equal(t, m, got)
}

func TestHelloRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		versions := []uint8{rapid.Uint8().Draw(t, "version"), rapid.Uint8().Draw(t, "version")}
		m := wire.HelloMsg{
			MinVersion: slices.Min(versions), MaxVersion: slices.Max(versions),
			Features:   wire.Features(rapid.IntRange(0, 3).Draw(t, "features")),
			MaxMessage: rapid.Uint32().Draw(t, "max message"), MaxCalls: rapid.Uint32().Draw(t, "max calls"),
			NoFastLink: rapid.StringN(0, -1, 256).Draw(t, "reason"),
			Software:   rapid.StringN(0, -1, 64).Draw(t, "software"),
		}
		copy(m.Session[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "session"))
		for _, lane := range rapid.SliceOfNDistinct(rapid.Uint16(), 0, 64, rapid.ID).Draw(t, "lanes") {
			m.Lanes = append(m.Lanes, wire.LaneState{Lane: lane, Next: rapid.Uint32().Draw(t, "next")})
		}
		b := m.Append([]byte("before"))
		require.True(t, bytes.HasPrefix(b, []byte("before")))
		b = b[len("before"):]
		require.LessOrEqual(t, len(b), wire.MaxHello)
		var got wire.HelloMsg
		require.NoError(t, got.Parse(b))
		require.Equal(t, m, got)
	})
}

func TestHelloCutsAreSeen(t *testing.T) {
	m := hello()
	m.Lanes, m.NoFastLink, m.Software = nil, "", "" // a cut between optional TLVs is a HELLO of its own
	b := m.Append(nil)
	for n := range b {
		require.ErrorAs(t, new(wire.HelloMsg).Parse(b[:n]), new(*wire.ParseError), "%d of %d bytes", n, len(b))
	}
}

// A later version may add TLVs, also such as come more than once.
func TestHelloSkipsUnknownTLVs(t *testing.T) {
	want, m := hello(), hello()
	b := m.Append(append(tlv(8, 1, 2, 3), tlv(8)...))
	b = append(b, tlv(0xffff, make([]byte, 500)...)...)
	b = append(b, tlv(0xffff)...)
	var got wire.HelloMsg
	require.NoError(t, got.Parse(b))
	require.Equal(t, want, got)
}

func TestHelloRefusesWhatIsWrong(t *testing.T) {
	plus := func(more ...[]byte) []byte { return append(required(), bytes.Join(more, nil)...) }
	var lanes [][]byte
	for i := range byte(65) {
		lanes = append(lanes, tlv(5, i, 0, 0, 0, 0, 0))
	}
	require.NoError(t, new(wire.HelloMsg).Parse(plus(lanes[:64]...)))
	for name, tc := range map[string]struct {
		b     []byte
		field string
	}{
		"empty":                 {nil, "HELLO"},
		"half a TLV header":     {plus([]byte{1, 0, 0}), "HELLO TLV header"},
		"length beyond the end": {plus([]byte{9, 0, 0xff, 0xff, 1}), "HELLO TLV length"}, // case 77
		"versions twice":        {plus(tlv(1, 1, 1)), "HELLO TLV"},
		"session twice":         {plus(tlv(2, make([]byte, 16)...)), "HELLO TLV"},
		"software twice":        {plus(tlv(7), tlv(7)), "HELLO TLV"},
		"65 lanes":              {plus(lanes...), "HELLO lanes"},
		"a lane twice":          {plus(lanes[3], lanes[4], lanes[3]), "HELLO lane"},
		"versions upside down":  {tlv(1, 2, 1), "HELLO lowest version"},
		"reserved feature":      {tlv(3, 4, 0, 0, 0, 0, 0, 0, 0), "HELLO features"},
		"last feature":          {tlv(3, 0, 0, 0, 0, 0, 0, 0, 0x80), "HELLO features"},
		"long reason":           {tlv(6, make([]byte, 257)...), "HELLO TLV 6 length"},
		"long software":         {tlv(7, make([]byte, 65)...), "HELLO TLV 7 length"},
	} {
		var pe *wire.ParseError
		require.ErrorAs(t, new(wire.HelloMsg).Parse(tc.b), &pe, name)
		require.Equal(t, tc.field, pe.Field, name)
	}
	for typ, n := range map[uint16]int{1: 2, 2: 16, 3: 8, 4: 8, 5: 6} {
		for _, wrong := range []int{0, n - 1, n + 1} {
			refused(t, new(wire.HelloMsg).Parse(tlv(typ, make([]byte, wrong)...)), fmt.Sprintf("HELLO TLV %d length", typ))
		}
	}
	// each required TLV once left out
	m := wire.HelloMsg{MinVersion: 1, MaxVersion: 1}
	b := m.Append(nil)
	for at := 0; at < len(b); {
		n := 4 + int(le.Uint16(b[at+2:]))
		refused(t, new(wire.HelloMsg).Parse(slices.Delete(bytes.Clone(b), at, at+n)), "HELLO")
		at += n
	}
}

func TestHelloTextsAreCutAndValid(t *testing.T) {
	m := hello()
	m.NoFastLink = strings.Repeat("ä", 200)    // 400 bytes; the cut falls between characters
	m.Software = "x" + strings.Repeat("ä", 63) // here it falls within one
	var got wire.HelloMsg
	require.NoError(t, got.Parse(m.Append(nil)))
	require.Equal(t, strings.Repeat("ä", 128), got.NoFastLink)
	require.Equal(t, "x"+strings.Repeat("ä", 31), got.Software)

	require.NoError(t, got.Parse(append(required(), tlv(7, 'a', 0xff, 'b')...)))
	require.Equal(t, "a\uFFFDb", got.Software)
}

func FuzzHello(f *testing.F) {
	m := hello()
	f.Add(m.Append(nil))
	f.Add(required())
	f.Add(append(required(), tlv(8, 1)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > wire.MaxHello {
			return // the header of such a frame is refused
		}
		var m wire.HelloMsg
		frugal(t, len(b), func() { _ = m.Parse(b) })
		if err := m.Parse(b); err != nil {
			require.ErrorAs(t, err, new(*wire.ParseError))
			return
		}
		var again wire.HelloMsg
		require.NoError(t, again.Parse(m.Append(nil)))
		if len(m.NoFastLink) <= 256 && len(m.Software) <= 64 { // replacing invalid bytes makes a text longer
			require.Equal(t, m, again)
		}
	})
}
