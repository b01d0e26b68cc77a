package pool_test

import (
	"bytes"
	"math/bits"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/pool/pooltest"
)

func TestSizeClasses(t *testing.T) {
	for n, want := range map[int]int{
		0: 64, 1: 64, 64: 64, 65: 128, 2048: 2048, 2049: 4352, 4096: 4352, 4352: 4352, 4353: 8704,
		1 << 20: 17 << 16, 1 << 24: 17 << 20, 17 << 20: 17 << 20, 17<<20 + 1: 17<<20 + 1, 48 << 20: 48 << 20,
	} {
		b := pool.Get(n)
		require.Equal(t, n, b.Len())
		require.Len(t, b.Bytes(), n)
		require.Equal(t, want, b.Cap(), "capacity for %d bytes", n)
		b.Release()
	}
	require.PanicsWithValue(t, "pool: Get of negative length -1", func() { pool.Get(-1) })
}

func TestResize(t *testing.T) {
	pooltest.Check(t)
	b := pool.Get(10)
	defer b.Release()
	b.Resize(64)
	require.Len(t, b.Bytes(), 64)
	b.Resize(0)
	require.Empty(t, b.Bytes())
	require.PanicsWithValue(t, "pool: Resize to 65 bytes of a buffer with capacity 64", func() { b.Resize(65) })
	require.Panics(t, func() { b.Resize(-1) })
}

func TestMisusePanics(t *testing.T) {
	const large = 2 << 20 // never pooled, so that nobody else gets it meanwhile
	b := pool.Get(large)
	b.Release()
	require.Panics(t, b.Release)
	require.Panics(t, b.Retain)
	require.Panics(t, func() { b.Bytes() })
	require.Panics(t, func() { b.Resize(0) })
	require.Panics(t, func() { pool.Grow(b, 1) })
}

func TestGrowKeepsBytes(t *testing.T) {
	pooltest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Byte(), 0, 5000).Draw(t, "bytes")
		n := rapid.IntRange(0, 3<<20).Draw(t, "n")
		b := pool.Get(len(want))
		copy(b.Bytes(), want)
		before := b.Cap()
		grown := pool.Grow(b, n)
		defer grown.Release()
		if (grown == b) != (n <= before) {
			t.Fatalf("moved: %v, capacity %d, asked %d", grown != b, before, n)
		}
		if grown.Cap() < n || !bytes.Equal(grown.Bytes(), want) {
			t.Fatalf("capacity %d for %d, length %d for %d", grown.Cap(), n, grown.Len(), len(want))
		}
	})
}

// A holder of a second reference keeps the old buffer when another moves.
func TestGrowLeavesOtherHolders(t *testing.T) {
	pooltest.Check(t)
	b := pool.Get(3)
	copy(b.Bytes(), "abc")
	b.Retain()
	grown := pool.Grow(b, 100)
	copy(grown.Bytes(), "xyz")
	require.Equal(t, "abc", string(b.Bytes()))
	grown.Release()
	b.Release()
}

func TestGrowIsAmortised(t *testing.T) {
	b, moves := pool.Get(0), 0
	for n := 1 << 16; n <= 64<<20; n += 1 << 16 {
		grown := pool.Grow(b, n)
		if grown != b {
			moves++
		}
		b = grown
	}
	b.Release()
	require.Less(t, moves, 20, "1024 steps of 64 KiB")
}

// model: no two live buffers share memory, whatever the order of calls.
func TestBuffersNeverOverlap(t *testing.T) {
	type held struct {
		b    *pool.Buf
		refs int
		mark byte
	}
	rapid.Check(t, func(t *rapid.T) {
		var all []*held
		pick := func(t *rapid.T) *held {
			if len(all) == 0 {
				t.Skip("nothing held")
			}
			return all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]
		}
		mark := byte(0)
		stamp := func(h *held) {
			mark++
			h.mark = mark
			for i := range h.b.Bytes() {
				h.b.Bytes()[i] = mark
			}
		}
		release := func(h *held) {
			h.b.Release()
			if h.refs--; h.refs > 0 {
				return
			}
			for i := range all {
				if all[i] == h {
					all = append(all[:i], all[i+1:]...)
					return
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"get": func(t *rapid.T) {
				h := &held{b: pool.Get(rapid.IntRange(1, 1<<rapid.IntRange(0, 14).Draw(t, "bits")).Draw(t, "n")), refs: 1}
				stamp(h)
				all = append(all, h)
			},
			"retain": func(t *rapid.T) { h := pick(t); h.b.Retain(); h.refs++ },
			"release": func(t *rapid.T) {
				release(pick(t))
			},
			"resize": func(t *rapid.T) {
				h := pick(t)
				h.b.Resize(rapid.IntRange(0, h.b.Cap()).Draw(t, "n"))
				stamp(h)
			},
			"": func(t *rapid.T) {
				for _, h := range all {
					for i, c := range h.b.Bytes() {
						if c != h.mark {
							t.Fatalf("byte %d of a live buffer became %d, not %d", i, c, h.mark)
						}
					}
				}
			},
		})
		for len(all) > 0 {
			release(all[0])
		}
	})
}

// Holders on many goroutines: the last Release, and only it, gives back.
func TestConcurrentReferences(t *testing.T) {
	pooltest.Check(t)
	for range 200 {
		b := pool.Get(256)
		for i := range b.Bytes() {
			b.Bytes()[i] = 0x5A
		}
		var wg sync.WaitGroup
		for range 4 {
			b.Retain()
			wg.Go(func() {
				defer b.Release()
				if bytes.Count(b.Bytes(), []byte{0x5A}) != 256 {
					t.Error("contents changed while held")
				}
			})
		}
		b.Release()
		wg.Wait()
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	if pooltest.Forgets() {
		t.Skip("sync.Pool drops items at random under the race detector")
	}
	for _, n := range []int{1, 64, 4096, 1 << 20} {
		allocs := testing.AllocsPerRun(1000, func() {
			b := pool.Get(n)
			b.Retain()
			b.Release()
			b.Release()
		})
		require.Zero(t, allocs, "Get(%d)", n)
	}
}

func BenchmarkGetRelease(b *testing.B) {
	for _, n := range []int{64, 8192, 1 << 20} {
		b.Run(bitsName(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				pool.Get(n).Release()
			}
		})
		b.Run(bitsName(n)+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					pool.Get(n).Release()
				}
			})
		})
	}
}

func bitsName(n int) string {
	unit := []string{"B", "KiB", "MiB"}[(bits.Len(uint(n))-1)/10]
	return "size=" + map[int]string{64: "64", 8192: "8", 1 << 20: "1"}[n] + unit
}
