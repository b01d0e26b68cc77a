package rpc

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// A message that came to need chunks between Reserve and Commit goes in these, in its
// sender's own time.
func TestWideAtCommit(t *testing.T) {
	for name, opts := range map[string][]ServerOption{"worker": nil, "inline": {Inline(echoMethod.Name)}} {
		t.Run(name, func(t *testing.T) {
			pooltest.Check(t)
			synctest.Test(t, func(t *testing.T) {
				r := join(t, echo, opts...)
				r.client.narrow.Store(100)
				r.remote.narrow.Store(100)
				for _, n := range []int{1, 100, 101, 4096} {
					text := strings.Repeat("x", n)
					got, err := r.echo(t.Context(), text)
					require.NoError(t, err)
					require.Equal(t, text, got)
				}
			})
		})
	}
}

// While it waits for room there, its caller may give up: then nothing of the call
// leaves, and no CANCEL that would pass it.
func TestWideAtCommitGivesUp(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		r := join(t, func(_ context.Context, req *[]byte) (*[]byte, error) {
			calls.Add(1)
			return req, nil
		})
		r.client.narrow.Store(100)
		drain := func() {}
		r.client.narrowed = func() { drain = r.client.fill() }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.echo(ctx, strings.Repeat("x", 200))
		requireError(t, err, DeadlineExceeded, NotExecuted)
		drain()
		synctest.Wait()
		require.Zero(t, calls.Load())
		for _, h := range r.client.frames() {
			require.NotEqual(t, wire.Cancel, h.Kind)
		}
	})
}
