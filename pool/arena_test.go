package pool_test

import (
	"errors"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/pool/pooltest"
)

// case 83: what is registered shares no page with other data.
func TestArenaIsWholePages(t *testing.T) {
	pooltest.Check(t)
	page := os.Getpagesize()
	for size, pages := range map[int]int{1: 1, page: 1, page + 1: 2, 1 << 20: (1 << 20) / page} {
		a, err := pool.NewArena(size)
		require.NoError(t, err)
		mem := a.Bytes()
		require.Len(t, mem, pages*page)
		require.Equal(t, len(mem), cap(mem))
		require.Zero(t, uintptr(unsafe.Pointer(&mem[0]))%uintptr(page), "start of a page")
		for i := range mem {
			if mem[i] != 0 {
				t.Fatalf("byte %d is not zero", i)
			}
			mem[i] = 1
		}
		require.NoError(t, a.Close())
	}
}

func TestArenaRefusesImpossibleSizes(t *testing.T) {
	before := pool.Stats()
	for _, size := range []int{math.MinInt, -1, 0, math.MaxInt} {
		_, err := pool.NewArena(size)
		var ae *pool.ArenaError
		require.ErrorAs(t, err, &ae, "size %d", size)
		require.Equal(t, size, ae.Size)
	}
	_, err := pool.NewArena(1 << 50)
	require.Error(t, err)
	if errors.As(err, new(syscall.Errno)) {
		require.ErrorIs(t, err, syscall.ENOMEM)
	}
	require.Equal(t, before, pool.Stats())
}

// case 72: all but the first Close say so, and none panics.
func TestArenaCloseOnce(t *testing.T) {
	before := pool.Stats()
	a, err := pool.NewArena(10_000)
	require.NoError(t, err)
	require.Equal(t, before.Arenas+1, pool.Stats().Arenas)
	require.Equal(t, before.ArenaBytes+int64(len(a.Bytes())), pool.Stats().ArenaBytes)

	var first, later atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			switch err := a.Close(); err {
			case nil:
				first.Add(1)
			case pool.ErrArenaClosed:
				later.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, first.Load())
	require.EqualValues(t, 15, later.Load())
	require.Nil(t, a.Bytes())
	require.Equal(t, before, pool.Stats())
}

func BenchmarkArena(b *testing.B) {
	for b.Loop() {
		a, err := pool.NewArena(1 << 20)
		if err != nil {
			b.Fatal(err)
		}
		a.Close()
	}
}
