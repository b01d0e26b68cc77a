package wire_test

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/wire"
)

var le = binary.LittleEndian

// golden returns the named bytes of testdata/golden.txt.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/golden.txt")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "# "+name+"\n")
	require.True(t, ok, "no %q", name)
	digits, _, _ := strings.Cut(rest, "#")
	b, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
	require.NoError(t, err)
	return b
}

// refused fails unless err is a *wire.ParseError of the field.
func refused(t require.TestingT, err error, field string) {
	var pe *wire.ParseError
	require.ErrorAs(t, err, &pe)
	require.Equal(t, field, pe.Field, "%v", err)
	require.NotEmpty(t, pe.Want)
}

// frugal fails if f, which decodes n bytes, allocates more than in proportion
// to them and a constant. Others may allocate meanwhile, so the least of a few
// runs counts. case 77
func frugal(t *testing.T, n int, f func()) {
	t.Helper()
	bound := uint64(4*n + 4096)
	least := ^uint64(0)
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		if least = min(least, after.TotalAlloc-before.TotalAlloc); least <= bound {
			return
		}
	}
	t.Fatalf("%d bytes allocated for %d received", least, n)
}

// sealed gives the header in b a right sum.
func sealed(b []byte) []byte {
	le.PutUint64(b[56:], xxhash.Sum64(b[:56]))
	return b
}
