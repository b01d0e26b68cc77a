package pool_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/pool/pooltest"
)

// Named sites for the messages to name.
func allocateHere() *pool.Buf { return pool.Get(100) }
func releaseHere(b *pool.Buf) { b.Release() }

// reportFor returns what a Watch says of f.
func reportFor(f func()) string {
	w := pool.StartWatch()
	f()
	if err := w.Stop(); err != nil {
		return err.Error()
	}
	return ""
}

func panicOf(t *testing.T, f func()) (message string) {
	defer func() { message, _ = recover().(string) }()
	f()
	t.Fatal("no panic")
	return ""
}

func TestWatchNamesLeaks(t *testing.T) {
	var leaked *pool.Buf
	report := reportFor(func() {
		leaked = allocateHere()
		pool.Get(5).Release()
	})
	require.Contains(t, report, "buffer of 100 bytes never released")
	require.Contains(t, report, "allocated at watch_test.go:")
	require.Contains(t, report, "pool_test.allocateHere")
	require.NotContains(t, report, "buffer of 5 bytes")
	leaked.Release() // after the Watch: still no panic

	var arena *pool.Arena
	report = reportFor(func() { arena, _ = pool.NewArena(1) })
	require.Regexp(t, `arena of \d+ bytes never released\n\tallocated at watch_test.go`, report)
	require.NoError(t, arena.Close())
}

func TestWatchNamesBothSitesOfDoubleRelease(t *testing.T) {
	pooltest.Check(t)
	b := allocateHere()
	releaseHere(b)
	pool.Get(100).Release() // reuse would hide the second release
	message := panicOf(t, b.Release)
	require.Contains(t, message, "buffer of 100 bytes released twice")
	allocated, released, _ := strings.Cut(message, "\n\treleased at ")
	require.Contains(t, allocated, "pool_test.allocateHere")
	require.Contains(t, released, "pool_test.releaseHere")
}

func TestWatchNamesUseAfterRelease(t *testing.T) {
	pooltest.Check(t)
	b := allocateHere()
	releaseHere(b)
	for what, use := range map[string]func(){
		"used after release":     func() { b.Bytes() },
		"resized after release":  func() { b.Resize(1) },
		"retained after release": b.Retain,
	} {
		message := panicOf(t, use)
		require.Contains(t, message, what)
		require.Contains(t, message, "pool_test.allocateHere")
		require.Contains(t, message, "pool_test.releaseHere")
	}
}

func TestWatchSeesWritesAfterRelease(t *testing.T) {
	report := reportFor(func() {
		b := allocateHere()
		mem := b.Bytes()
		releaseHere(b)
		require.EqualValues(t, 0xDB, mem[0], "poison")
		mem[7] = 1

		large := pool.Get(10_000)
		mem = large.Bytes()
		large.Release()
		mem[9_999] = 1
	})
	require.Contains(t, report, "buffer of 100 bytes written at offset 7 after release")
	require.Contains(t, report, "buffer of 10000 bytes written at offset 9999 after release")
	require.Contains(t, report, "pool_test.allocateHere")
	require.Contains(t, report, "pool_test.releaseHere")
}

// The graveyard is bounded: an old grave is looked at when it is given up.
func TestWatchSeesWritesToOldGraves(t *testing.T) {
	report := reportFor(func() {
		b := allocateHere()
		mem := b.Bytes()
		b.Release()
		mem[0] = 1
		for range 100 {
			pool.Get(1 << 20).Release()
		}
		mem[0] = 0xDB // given up by now: too late to hide it
	})
	require.Contains(t, report, "written at offset 0 after release")
}

func TestWatchesOverlap(t *testing.T) {
	outer := pool.StartWatch()
	early := pool.Get(1)
	inner := pool.StartWatch()
	late := pool.Get(2)
	require.Equal(t, 2, outer.Live())
	require.Equal(t, 1, inner.Live())

	err := inner.Stop()
	require.ErrorContains(t, err, "buffer of 2 bytes")
	require.NotContains(t, err.Error(), "buffer of 1 bytes")
	late.Release()
	early.Release()
	require.NoError(t, outer.Stop())
}

// recorder is a test that fails without failing this one.
type recorder struct {
	testing.TB
	cleanups []func()
	failed   []any
}

func (r *recorder) Cleanup(f func())  { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Error(args ...any) { r.failed = append(r.failed, args...) }
func (r *recorder) Helper()           {}

// check returns what pooltest.Check says of a test that does f.
func check(t *testing.T, f func()) []any {
	r := &recorder{TB: t}
	synctest.Test(t, func(*testing.T) { // the grace passes at once
		pooltest.Check(r)
		f()
		r.cleanups[0]()
	})
	return r.failed
}

func TestCheckFailsTheTest(t *testing.T) {
	require.Empty(t, check(t, func() { allocateHere().Release() }))
	require.Empty(t, check(t, func() {
		b := allocateHere()
		go func() { time.Sleep(time.Second); b.Release() }() // within the grace
	}))
	var leaked *pool.Buf
	failed := check(t, func() { leaked = allocateHere() })
	require.Len(t, failed, 1)
	require.ErrorContains(t, failed[0].(error), "pool_test.allocateHere")
	leaked.Release()
}
