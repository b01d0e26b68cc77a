package blockfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func openFile(t testing.TB, path string) *File {
	t.Helper()
	f, err := Open(path, Limits{})
	require.NoError(t, err)
	return f
}

// crashed is what is in the file of f while it is open, as a killed process
// leaves it.
func crashed(t testing.TB, f *File) []byte {
	t.Helper()
	b, err := os.ReadFile(f.path)
	require.NoError(t, err)
	return b
}

func write(t testing.TB, dir string, b []byte) string {
	t.Helper()
	path := filepath.Join(dir, "copy")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

func requireCorrupt(t testing.TB, path, why string) {
	t.Helper()
	f, err := Open(path, Limits{})
	if err == nil {
		_ = f.Close()
	}
	var c *CorruptError
	require.ErrorAs(t, err, &c, why)
}

func TestBlocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blocks")
	f := openFile(t, path)
	_, err := f.Get(1)
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, f.Delete(1))
	require.NoError(t, f.Put(1, []byte("one")))
	require.NoError(t, f.Put(2, nil))
	require.NoError(t, f.Put(1, []byte("uno")))
	require.NoError(t, f.Put(3, []byte("three")))
	require.NoError(t, f.Delete(3))
	check := func() {
		got, err := f.Get(1)
		require.NoError(t, err)
		require.Equal(t, "uno", string(got))
		got, err = f.Get(2)
		require.NoError(t, err)
		require.Empty(t, got)
		_, err = f.Get(3)
		require.ErrorIs(t, err, ErrNotFound)
	}
	check()

	_, err = Open(path, Limits{})
	require.Error(t, err, "opened twice")
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.Close(), ErrClosed)
	require.ErrorIs(t, f.Put(1, nil), ErrClosed)
	_, err = f.Get(1)
	require.ErrorIs(t, err, ErrClosed)

	f = openFile(t, path)
	check()
	require.Zero(t, f.Torn())
	require.NoError(t, f.Close())
}

func TestLimits(t *testing.T) {
	f, err := Open(filepath.Join(t.TempDir(), "blocks"), Limits{BlockBytes: 100, FileBytes: firstRecord + 2*recordHeader + 110, Blocks: 2})
	require.NoError(t, err)
	defer f.Close()
	limit := func(want string, err error) {
		t.Helper()
		var e *LimitError
		require.ErrorAs(t, err, &e)
		require.Equal(t, want, e.Limit)
	}
	limit("BlockBytes", f.Put(1, make([]byte, 101)))
	require.NoError(t, f.Put(1, make([]byte, 100)))
	limit("FileBytes", f.Put(2, make([]byte, 11)))
	require.NoError(t, f.Put(2, make([]byte, 10)))
	limit("FileBytes", f.Delete(1))
	require.EqualValues(t, f.limits.FileBytes, f.end)
	f.limits.FileBytes = 1 << 20
	limit("Blocks", f.Put(3, nil))
	require.NoError(t, f.Put(2, nil))
}

func TestChangesShareACommit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blocks")
	f := openFile(t, path)
	var wg sync.WaitGroup
	const writers, each = 16, 20
	for w := range uint64(writers) {
		wg.Go(func() {
			for i := range uint64(each) {
				id := w*each + i
				if err := f.Put(id, fmt.Append(nil, "block ", id)); err != nil {
					t.Error(err)
				}
				if got, err := f.Get(id); err != nil || string(got) != fmt.Sprint("block ", id) {
					t.Errorf("block %d is %q, %v", id, got, err)
				}
			}
		})
	}
	wg.Wait()
	commits := f.super.seq
	require.NoError(t, f.Close())
	require.Less(t, commits, uint64(writers*each))
	f = openFile(t, path)
	defer f.Close()
	require.Len(t, f.index, writers*each)
}

// A crash tears at most the last commit, which was not acknowledged. Wherever
// it does, everything before is there, and what follows can be written.
func TestTornCommit(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, filepath.Join(dir, "blocks"))
	require.NoError(t, f.Put(1, []byte("one")))
	require.NoError(t, f.Put(2, bytes.Repeat([]byte("two"), 20)))
	start := f.end
	require.NoError(t, f.Put(3, bytes.Repeat([]byte("three"), 20)))
	whole := crashed(t, f)
	require.NoError(t, f.Close())

	for size := start; size <= int64(len(whole)); size++ {
		for _, tail := range []string{"cut", "zeros", "noise"} {
			b := bytes.Clone(whole[:size])
			if rest := len(whole) - int(size); tail != "cut" && rest > 0 {
				b = append(b, bytes.Repeat([]byte{map[string]byte{"zeros": 0, "noise": 0xA5}[tail]}, rest)...)
			}
			path := write(t, dir, b)
			f := openFile(t, path)
			for _, id := range []uint64{1, 2} {
				_, err := f.Get(id)
				require.NoError(t, err, "block %d, %s at %d", id, tail, size)
			}
			_, err := f.Get(3)
			if size < int64(len(whole)) {
				require.ErrorIs(t, err, ErrNotFound)
				require.Equal(t, int64(len(b))-start, f.Torn())
			} else {
				require.NoError(t, err)
			}
			require.NoError(t, f.Put(4, []byte("four")))
			require.NoError(t, f.Close())
			f = openFile(t, path)
			_, err = f.Get(4)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
	}
}

// A record of a torn commit that got to the disk whole, behind one that did
// not, does not come back when the room in front of it is written again.
func TestTornCommitDoesNotComeBack(t *testing.T) {
	dir := t.TempDir()
	f := openFile(t, filepath.Join(dir, "blocks"))
	require.NoError(t, f.Put(1, []byte("one")))
	b := crashed(t, f)
	require.NoError(t, f.Close())
	var torn batch
	torn.add(record{kind: putRecord, id: 2, length: 3, sum: 0 /* wrong */}, []byte("two"))
	torn.add(record{kind: putRecord, id: 3, length: 5, sum: xxhash.Sum64String("three")}, []byte("three"))
	path := write(t, dir, append(b, torn.bytes...))

	f = openFile(t, path)
	require.EqualValues(t, len(torn.bytes), f.Torn())
	require.NoError(t, f.Put(2, []byte("TWO")))
	require.NoError(t, f.Close())
	f = openFile(t, path)
	defer f.Close()
	_, err := f.Get(2)
	require.NoError(t, err)
	_, err = f.Get(3)
	require.ErrorIs(t, err, ErrNotFound)
}

// Damage to what was durable is told from a crash, byte by byte.
func TestDamageIsFound(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "blocks")
	f := openFile(t, path)
	require.NoError(t, f.Put(1, []byte("one")))
	require.NoError(t, f.Put(2, []byte("two")))
	require.NoError(t, f.Delete(1))
	durable := f.super.durable
	open := crashed(t, f)
	require.NoError(t, f.Close())
	closed, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, len(open), len(closed))

	for _, c := range []struct {
		name    string
		file    []byte
		durable int
	}{{"crashed", open, int(durable)}, {"closed", closed, len(closed)}} {
		for at := firstRecord; at < c.durable; at++ {
			b := bytes.Clone(c.file)
			b[at] ^= 0x10
			requireCorrupt(t, write(t, dir, b), fmt.Sprintf("%s, bit flipped at %d", c.name, at))
			requireCorrupt(t, write(t, dir, c.file[:at]), fmt.Sprintf("%s, cut at %d", c.name, at))
		}
	}
	for _, size := range []int{0, 1, superSize, pageSize, firstRecord - 1, firstRecord} {
		requireCorrupt(t, write(t, dir, closed[:size]), fmt.Sprintf("cut at %d", size))
	}
	for at := range superSize {
		for slot := range 2 {
			b := bytes.Clone(closed)
			b[slot*pageSize+at] ^= 1
			f, err := Open(write(t, dir, b), Limits{})
			require.NoError(t, err, "one superblock is enough")
			require.NoError(t, f.Close())
		}
		b := bytes.Clone(closed)
		b[at] ^= 1
		b[pageSize+at] ^= 1
		requireCorrupt(t, write(t, dir, b), "both superblocks damaged")
	}
}

func TestGetChecks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blocks")
	f := openFile(t, path)
	defer f.Close()
	require.NoError(t, f.Put(1, []byte("one")))
	require.NoError(t, f.Put(2, []byte("two")))
	other, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = other.WriteAt([]byte("x"), f.index[1].offset)
	require.NoError(t, err)
	require.NoError(t, other.Close())
	_, err = f.Get(1)
	var c *CorruptError
	require.ErrorAs(t, err, &c)
	require.Equal(t, f.index[1].offset, c.Offset)
	_, err = f.Get(2)
	require.NoError(t, err)
}

// Whatever is put and deleted, closed or crashed between, the file agrees with
// a map.
func TestAgainstMap(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := filepath.Join(dir, fmt.Sprint(n))
		f, err := Open(path, Limits{})
		require.NoError(t, err)
		want := map[uint64][]byte{}
		id := rapid.Uint64Range(0, 5)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				k, v := id.Draw(t, "id"), rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "data")
				require.NoError(t, f.Put(k, v))
				want[k] = v
			},
			"delete": func(t *rapid.T) {
				k := id.Draw(t, "id")
				require.NoError(t, f.Delete(k))
				delete(want, k)
			},
			"reopen": func(t *rapid.T) {
				require.NoError(t, f.Close())
				f, err = Open(path, Limits{})
				require.NoError(t, err)
			},
			"crash": func(t *rapid.T) {
				b, err := os.ReadFile(path)
				require.NoError(t, err)
				require.NoError(t, f.Close())
				torn := rapid.SliceOfN(rapid.Byte(), 0, 60).Draw(t, "torn")
				require.NoError(t, os.WriteFile(path, append(b, torn...), 0o600))
				f, err = Open(path, Limits{})
				require.NoError(t, err)
			},
			"": func(t *rapid.T) {
				for k := range uint64(6) {
					got, err := f.Get(k)
					if v, ok := want[k]; ok {
						require.NoError(t, err)
						require.True(t, bytes.Equal(v, got))
					} else {
						require.ErrorIs(t, err, ErrNotFound)
					}
				}
			},
		})
		require.NoError(t, f.Close())
	})
}

// The reader of files takes anything: it gives an index whose blocks are what
// was put, or says what is wrong.
func FuzzRead(f *testing.F) {
	b := openFile(f, filepath.Join(f.TempDir(), "seed"))
	require.NoError(f, b.Put(1, []byte("one")))
	require.NoError(f, b.Delete(1))
	require.NoError(f, b.Put(2, []byte("two")))
	require.NoError(f, b.Close())
	seed, err := os.ReadFile(b.path)
	require.NoError(f, err)
	f.Add(seed)
	f.Add(seed[:firstRecord])
	f.Fuzz(func(t *testing.T, file []byte) {
		c, err := read(bytes.NewReader(file), int64(len(file)))
		var corrupt *CorruptError
		if err != nil && !errors.As(err, &corrupt) {
			t.Fatal(err)
		}
		if err == nil && (c.end < c.super.durable || c.end > max(firstRecord, int64(len(file)))) {
			t.Fatalf("ends at %d of %d, durable is %d", c.end, len(file), c.super.durable)
		}
		for id, at := range c.index {
			if xxhash.Sum64(file[at.offset:at.offset+at.length]) != at.sum {
				t.Errorf("block %d", id)
			}
		}
	})
}
