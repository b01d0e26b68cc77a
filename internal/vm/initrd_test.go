package vm

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// readCPIO is an independent reading of the newc format.
func readCPIO(b []byte) ([]cpioEntry, error) {
	var entries []cpioEntry
	align := func(n int) int { return (n + 3) / 4 * 4 }
	for at := 0; ; {
		if len(b) < at+110 || string(b[at:at+6]) != "070701" {
			return nil, fmt.Errorf("no header at %d", at)
		}
		field := func(i int) int {
			v, err := strconv.ParseUint(string(b[at+6+8*i:at+14+8*i]), 16, 32)
			if err != nil {
				return -1
			}
			return int(v)
		}
		mode, size, nameSize := field(1), field(6), field(11)
		name := string(b[at+110 : at+110+nameSize-1])
		data := align(at + 110 + nameSize)
		if name == "TRAILER!!!" {
			return entries, nil
		}
		entries = append(entries, cpioEntry{
			name: name, mode: uint32(mode), data: b[data : data+size],
			major: uint32(field(9)), minor: uint32(field(10)),
		})
		at = align(data + size)
	}
}

func TestCPIOHeader(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, writeCPIO(&out, []cpioEntry{{name: "dev/null", mode: modeNode, major: 1, minor: 3}}))
	require.Equal(t, "070701"+"00000001"+"00002180"+"00000000"+"00000000"+"00000001"+"00000000"+"00000000"+
		"00000000"+"00000000"+"00000001"+"00000003"+"00000009"+"00000000"+"dev/null\x00\x00", out.String()[:120])
}

func TestCPIOComesBackAsWritten(t *testing.T) {
	entry := rapid.Custom(func(t *rapid.T) cpioEntry {
		return cpioEntry{
			name: rapid.StringMatching(`[a-z]{1,9}`).Draw(t, "name"),
			mode: modeFile,
			data: rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "data"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOf(entry).Draw(t, "entries")
		var out bytes.Buffer
		require.NoError(t, writeCPIO(&out, entries))
		got, err := readCPIO(out.Bytes())
		require.NoError(t, err)
		require.Len(t, got, len(entries))
		for i, e := range entries {
			require.Equal(t, e.name, got[i].name)
			require.Equal(t, e.mode, got[i].mode)
			require.True(t, bytes.Equal(e.data, got[i].data))
		}
	})
}

type fullDisk struct{ room int }

var errFull = errors.New("disk full")

func (d *fullDisk) Write(p []byte) (int, error) {
	if d.room -= len(p); d.room < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestCPIOReportsWriteErrors(t *testing.T) {
	entries := []cpioEntry{{name: "a", mode: modeFile, data: make([]byte, 100)}}
	for room := range 300 {
		require.ErrorIs(t, writeCPIO(&fullDisk{room}, entries), errFull)
	}
}

func TestInitrdLoadsModulesInOrder(t *testing.T) {
	var modules []module
	for i := range 12 {
		modules = append(modules, module{name: fmt.Sprint("m", 11-i)})
	}
	entries := initrdEntries([]byte("init"), modules)
	last := ""
	for _, e := range entries[len(entries)-12:] {
		require.Greater(t, e.name, last) // PID 1 loads by name
		last = e.name
	}
	require.Equal(t, "modules/011-m0.ko", last)
}
