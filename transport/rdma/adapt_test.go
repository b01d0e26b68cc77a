package rdma

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/qpstate"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
)

func TestAdapt(t *testing.T) {
	const ms = time.Millisecond
	steady := func(rtt time.Duration) []time.Duration {
		s := make([]time.Duration, 40)
		for i := range s {
			s[i] = rtt
		}
		return s
	}
	lossy := steady(ms / 10)
	for i := 0; i < len(lossy); i += 4 {
		lossy[i] = 67 * ms // sent again
	}
	for _, c := range []struct {
		name             string
		samples          []time.Duration
		timeout, retries uint8
	}{
		{"nothing known", nil, qpstate.DefaultTimeout, qpstate.DefaultRetryCnt},
		{"too little known", steady(ms)[:2], qpstate.DefaultTimeout, qpstate.DefaultRetryCnt},
		{"short", steady(ms / 10), 12, 6},
		{"short and lossy", lossy, 12, 6},
		{"20 ms", steady(20 * ms), 13, 6},
		{"50 ms", steady(50 * ms), 14, 6},
		{"100 ms", steady(100 * ms), 15, 3},
		{"it grows", append(steady(ms/10), steady(100*ms)...), 15, 3},
		{"it shrinks", append(steady(100*ms), steady(ms/10)...), 12, 6},
		{"for ever", steady(time.Hour), 17, 3},
	} {
		var a adapt
		for _, s := range c.samples {
			a.sample(s)
		}
		timeout, retries := a.timing()
		require.Equal(t, [2]uint8{c.timeout, c.retries}, [2]uint8{timeout, retries}, c.name)
	}
}

// Whatever is measured: both stay within their bounds, and the timeout covers
// what the path is known to take.
func TestAdaptBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a adapt
		for _, s := range rapid.SliceOf(rapid.Int64Range(0, 1<<50)).Draw(t, "samples") {
			a.sample(time.Duration(s))
			timeout, retries := a.timing()
			if timeout < minTimeout || timeout > maxTimeout || retries < minRetries || retries > qpstate.DefaultRetryCnt {
				t.Fatalf("timeout %d, %d retries", timeout, retries)
			}
			if a.srtt < 0 || a.rttvar < 0 {
				t.Fatalf("srtt %v, rttvar %v", a.srtt, a.rttvar)
			}
			if a.n >= 3 && timeout < maxTimeout && timeoutOf(timeout) < a.srtt {
				t.Fatalf("timeout %v for a path of %v", timeoutOf(timeout), a.srtt)
			}
		}
	})
}

// The next link of a path has what its earlier ones measured; another path has
// not, nor has a fabric that was not asked to adapt.
func TestAdaptiveLinks(t *testing.T) {
	for _, adaptive := range []bool{true, false} {
		checkLeaks(t)
		synctest.Test(t, func(t *testing.T) {
			_, ends := simEnds(t, simverbs.Config{Latency: 50 * time.Millisecond})
			cfg := eventsOnly()
			cfg.Adaptive = adaptive
			fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
			timing := func() (timeout, retries uint8) {
				links, err := join(context.Background(), fabrics, ends)
				require.NoError(t, err)
				attr, err := links[0].(*link).ep.qp.Query()
				require.NoError(t, err)
				s := newSink()
				links[0].Start(newSink())
				links[1].Start(s)
				for i := range 200 {
					require.NoError(t, send(links[0], i, 8))
					s.await(t, i+1)
					time.Sleep(100 * time.Millisecond)
				}
				for _, l := range links {
					l.Close(nil)
					<-l.Done()
				}
				return attr.Timeout, attr.RetryCnt
			}
			timeout, retries := timing()
			require.Equal(t, [2]uint8{14, 6}, [2]uint8{timeout, retries})
			timeout, retries = timing()
			if adaptive { // 100 ms to and fro
				require.Equal(t, [2]uint8{15, 3}, [2]uint8{timeout, retries})
			} else {
				require.Equal(t, [2]uint8{14, 6}, [2]uint8{timeout, retries})
			}
			require.Equal(t, adaptive, len(fabrics[0].paths.by) == 1)
			closeAll(t, fabrics)
		})
	}
}

// What is remembered is bounded, and of the same path the same.
func TestPathsAreBounded(t *testing.T) {
	var p paths
	for i := range 2 * maxPaths {
		k := pathKey{"sim0", 1, verbs.GID{0: byte(i), 1: byte(i >> 8)}}
		require.Same(t, p.to(k), p.to(k))
	}
	require.Len(t, p.by, maxPaths)
}
