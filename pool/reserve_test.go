package pool

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReserveOutlivesCollections: a large buffer is there again after collections,
// which empty a sync.Pool.
func TestReserveOutlivesCollections(t *testing.T) {
	for class := minReserved; classSize(class) <= reserveSize/2; class++ {
		n := classSize(class)
		before := Get(n)
		before.Release()
		for range 3 {
			runtime.GC()
		}
		b := Get(n)
		require.Same(t, before, b, "%d bytes", n)
		require.Equal(t, n, b.Cap())
		b.Release()
	}
}

// TestReserveIsShared: a class takes half of the reserve at most, however many of
// its buffers are held, and what does not fit comes from elsewhere.
func TestReserveIsShared(t *testing.T) {
	var r reserve
	require.Nil(t, r.rest, "nothing is held before it is needed")
	var held []*Buf
	for b := r.get(minReserved); b != nil; b = r.get(minReserved) {
		held = append(held, b)
	}
	require.Equal(t, reserveSize/2/classSize(minReserved), len(held))
	const mega = 20 - minShift
	b := r.get(mega)
	require.NotNil(t, b)
	require.Nil(t, r.get(numClasses-1), "larger than the reserve")

	for _, b := range held {
		require.True(t, r.put(b))
	}
	require.Same(t, held[len(held)-1], r.get(minReserved), "the last released is warm")
	require.True(t, r.put(b))
	require.Same(t, b, r.get(mega))
}

// TestReserveTakesInOthers: large buffers that were not cut from it are kept as well, up
// to its size, the last released to be taken first.
func TestReserveTakesInOthers(t *testing.T) {
	var r reserve
	const mega = 20 - minShift
	var own *Buf
	for b := r.get(mega); b != nil; b = r.get(mega) {
		own = b
	}
	others := make([]*Buf, reserveSize/classSize(mega)+1)
	for range 2 {
		for i := range others {
			others[i] = newBuf(1 << 20)
			require.Equal(t, i < len(others)-1, r.put(others[i]), i)
		}
		require.True(t, r.put(own))
		require.Same(t, own, r.get(mega))
		for i := len(others) - 2; i >= 0; i-- {
			require.Same(t, others[i], r.get(mega))
		}
		require.Nil(t, r.get(mega))
	}
}

// TestReservedDoNotOverlap: buffers are cut side by side.
func TestReservedDoNotOverlap(t *testing.T) {
	var r reserve
	var all []*Buf
	for class := minReserved; class < minReserved+6; class++ {
		for range 3 {
			b := r.get(class)
			require.NotNil(t, b)
			b.buf = b.buf[:cap(b.buf)]
			require.Len(t, b.buf, classSize(class))
			for i := range b.buf {
				b.buf[i] = byte(len(all))
			}
			all = append(all, b)
		}
	}
	for i, b := range all {
		for _, c := range b.buf {
			if c != byte(i) {
				t.Fatalf("buffer %d was written to through another", i)
			}
		}
	}
}
