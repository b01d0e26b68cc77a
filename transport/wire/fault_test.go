package wire_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport/wire"
)

func TestFaultGolden(t *testing.T) {
	want := golden(t, "error payload")
	require.Equal(t, want, wire.AppendFault(nil, "no GIDs", []byte{1, 2, 3}))
	text, details, err := wire.ParseFault(want)
	require.NoError(t, err)
	require.Equal(t, "no GIDs", text)
	require.Equal(t, []byte{1, 2, 3}, details)
}

func TestFaultRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, -1, wire.MaxErrorText).Draw(t, "text")
		details := rapid.SliceOf(rapid.Byte()).Draw(t, "details")
		b := wire.AppendFault([]byte("before"), text, details)
		gotText, gotDetails, err := wire.ParseFault(b[len("before"):])
		require.NoError(t, err)
		require.Equal(t, text, gotText)
		require.Equal(t, string(details), string(gotDetails))
	})
}

func TestFaultTextIsCutAndValid(t *testing.T) {
	b := wire.AppendFault(nil, "x"+strings.Repeat("ä", wire.MaxErrorText), nil)
	require.LessOrEqual(t, len(b), 4+wire.MaxErrorText, "the largest payload of REFUSE, QP_ABANDON and CLOSE")
	text, _, err := wire.ParseFault(b)
	require.NoError(t, err)
	require.Equal(t, "x"+strings.Repeat("ä", wire.MaxErrorText/2-1), text)

	text, details, err := wire.ParseFault([]byte{3, 0, 0, 0, 'a', 0xff, 'b', 'c'})
	require.NoError(t, err)
	require.Equal(t, "a\uFFFDb", text)
	require.Equal(t, []byte("c"), details)
}

func TestFaultRefusesBadLengths(t *testing.T) {
	for n := range 4 {
		_, _, err := wire.ParseFault(make([]byte, n))
		refused(t, err, "error payload")
	}
	for _, n := range []uint32{1, wire.MaxErrorText, 1<<31 - 1, 1 << 31, 1<<32 - 1} { // case 77
		_, _, err := wire.ParseFault(le.AppendUint32(nil, n))
		refused(t, err, "error text length")
	}
	long := append(le.AppendUint32(nil, wire.MaxErrorText+1), make([]byte, wire.MaxErrorText+1)...)
	_, _, err := wire.ParseFault(long)
	refused(t, err, "error text length")
}

func FuzzFault(f *testing.F) {
	f.Add(wire.AppendFault(nil, "no GIDs", []byte{1, 2, 3}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{1, 0, 0, 0, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		frugal(t, len(b), func() { _, _, _ = wire.ParseFault(b) })
		text, details, err := wire.ParseFault(b)
		if err != nil {
			require.ErrorAs(t, err, new(*wire.ParseError))
			return
		}
		require.True(t, utf8.ValidString(text))
		if len(text) <= wire.MaxErrorText { // replacing invalid bytes makes it longer
			again, rest, err := wire.ParseFault(wire.AppendFault(nil, text, details))
			require.NoError(t, err)
			require.Equal(t, text, again)
			require.Equal(t, string(details), string(rest))
		}
	})
}
