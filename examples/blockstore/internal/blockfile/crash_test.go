package blockfile

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var errDisk = errors.New("the disk failed")

// crashDisk is a file over a cache that loses what was not synced: some pieces
// of it, in any order. A sync that fails forgets what it had to write, as the
// kernel does, and the cache goes on showing it.
type crashDisk struct {
	luck    *rand.Rand // of its own: rapid draws on one goroutine
	cache   []byte
	stable  []byte
	pending []func() // each takes one piece from the cache to the disk

	room      int64 // no write gets beyond it; 0: no end of it
	failWrite int   // so many writes from now; 0: none
	failSync  int   // so many syncs from now; 0: none
}

// piece is smaller than any disk's sector, so that superblocks are torn too.
const piece = 16

func (d *crashDisk) ReadAt(b []byte, off int64) (int, error) {
	if off >= int64(len(d.cache)) {
		return 0, io.EOF
	}
	n := copy(b, d.cache[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (d *crashDisk) WriteAt(b []byte, off int64) (int, error) {
	n, fails := len(b), d.failWrite == 1
	d.failWrite = max(d.failWrite-1, 0)
	if fails {
		n = min(n, d.luck.IntN(2*n+1)) // often all of it: the disk may fail late
	}
	if d.room > 0 && off+int64(n) > d.room {
		n, fails = int(d.room-off), true
	}
	d.cache = writeAt(d.cache, b[:n], off)
	for part := range slices.Chunk(slices.Clone(b[:n]), piece) {
		at := off
		d.pending = append(d.pending, func() { d.stable = writeAt(d.stable, part, at) })
		off += int64(len(part))
	}
	if fails {
		return n, errDisk
	}
	return n, nil
}

func writeAt(file, b []byte, off int64) []byte {
	if end := int(off) + len(b); end > len(file) {
		file = append(file, make([]byte, end-len(file))...)
	}
	copy(file[off:], b)
	return file
}

func (d *crashDisk) Truncate(size int64) error {
	d.cache = d.cache[:size]
	d.pending = append(d.pending, func() { d.stable = d.stable[:min(len(d.stable), int(size))] })
	return nil
}

func (d *crashDisk) Sync() error {
	if d.failSync > 0 {
		if d.failSync--; d.failSync == 0 {
			d.lose()
			return errDisk
		}
	}
	for _, write := range d.pending {
		write()
	}
	d.pending = nil
	return nil
}

// lose takes some of what is pending to the disk, and forgets the rest.
func (d *crashDisk) lose() {
	for _, write := range d.pending {
		if d.luck.IntN(2) == 0 {
			write()
		}
	}
	d.pending = nil
}

func (d *crashDisk) crash() {
	d.lose()
	d.cache = slices.Clone(d.stable)
}

func (d *crashDisk) Close() error { return nil }

func (d *crashDisk) Stat() (os.FileInfo, error) { return sizeOf{size: int64(len(d.cache))}, nil }

type sizeOf struct {
	os.FileInfo
	size int64
}

func (s sizeOf) Size() int64 { return s.size }

// What Get shows after a commit that failed half way stays, also when all that
// was written gets to the disk in a crash, but not that it was taken back.
func TestFailedCommitDoesNotComeBack(t *testing.T) {
	d := &crashDisk{cache: emptyFile(), stable: emptyFile()}
	f, err := open("disk", d, Limits{})
	require.NoError(t, err)
	require.NoError(t, f.Put(1, []byte("old")))
	require.NoError(t, f.Close())
	f, err = open("disk", d, Limits{})
	require.NoError(t, err)

	b := &batch{done: make(chan struct{})}
	for id := range uint64(2) {
		b.add(record{kind: putRecord, id: id + 1, length: 3, sum: xxhash.Sum64String("new")}, []byte("new"))
	}
	d.room = f.end + b.changes[1].offset // for the first of the two
	f.next = b
	f.commit()
	require.ErrorIs(t, b.err, errDisk)
	require.NoError(t, f.failed)
	got, err := f.Get(1)
	require.NoError(t, err)
	require.Equal(t, "old", string(got))

	for _, write := range d.pending[:max(len(d.pending)-1, 0)] { // the last one truncates
		write()
	}
	f, err = open("disk", &crashDisk{cache: slices.Clone(d.stable), stable: d.stable}, Limits{})
	require.NoError(t, err)
	got, err = f.Get(1)
	require.NoError(t, err)
	require.Equal(t, "old", string(got))
}

// Open truncates anew: a sync that failed may have kept the last truncation
// from the disk, though the file is shown without its end.
func TestOpenTruncates(t *testing.T) {
	var failed batch
	failed.add(record{kind: putRecord, id: 1, length: 3, sum: xxhash.Sum64String("new")}, []byte("new"))
	d := &crashDisk{cache: emptyFile(), stable: append(emptyFile(), failed.bytes...)}
	for range 2 {
		f, err := open("disk", d, Limits{})
		require.NoError(t, err)
		_, err = f.Get(1)
		require.ErrorIs(t, err, ErrNotFound)
		require.Empty(t, d.pending)
		d.crash()
	}
}

// Whatever writes and syncs fail, and wherever the machine or the process
// stops, a block is in the version that was acknowledged or read last, or in
// one that was tried after it.
func TestAcknowledgedSurvives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &crashDisk{luck: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "luck"), 0))}
		_, err := d.WriteAt(emptyFile(), 0)
		require.NoError(t, err)
		require.NoError(t, d.Sync())
		const none = "none"
		may := map[uint64][]string{} // what a block may be, acknowledged first
		for id := range uint64(3) {
			may[id] = []string{none}
		}
		f, err := open("disk", d, Limits{})
		require.NoError(t, err)
		try := func(id uint64, version string, err error) {
			if err == nil {
				may[id] = nil
			}
			may[id] = append(may[id], version)
		}
		reopen := func() {
			_ = f.Close()
			d.failWrite, d.failSync = 0, rapid.IntRange(0, 2).Draw(t, "sync of open that fails")
			if d.failSync > 0 {
				_, err = open("disk", d, Limits{})
				require.ErrorIs(t, err, errDisk)
				if rapid.Bool().Draw(t, "crash in open") {
					d.crash()
				}
			}
			f, err = open("disk", d, Limits{})
			require.NoError(t, err)
		}
		id, n := rapid.Uint64Range(0, 2), 0
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				n++
				k, v := id.Draw(t, "id"), fmt.Sprintf("%d%*s", n, rapid.IntRange(1, 60).Draw(t, "length"), ".")
				try(k, v, f.Put(k, []byte(v)))
			},
			"delete": func(t *rapid.T) {
				k := id.Draw(t, "id")
				try(k, none, f.Delete(k))
			},
			"fail a write": func(t *rapid.T) { d.failWrite = rapid.IntRange(1, 2).Draw(t, "write that fails") },
			"fail a sync":  func(*rapid.T) { d.failSync = 1 },
			"restart":      func(*rapid.T) { reopen() },
			"crash": func(*rapid.T) {
				d.crash()
				f.failed = errDisk // this process is no more
				reopen()
			},
			"": func(t *rapid.T) {
				for k, versions := range may {
					got, err := f.Get(k)
					is := string(got)
					if errors.Is(err, ErrNotFound) {
						is, err = none, nil
					}
					require.NoError(t, err)
					require.Contains(t, versions, is, "block %d", k)
					if f.failed == nil {
						may[k] = []string{is} // seen, so it has to stay
					}
				}
			},
		})
	})
}
