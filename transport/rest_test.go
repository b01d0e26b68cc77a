package transport_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// lone has messages exchanged whose receivers take in themselves what arrives, as
// a lone caller and a lone worker do.
func lone(t *testing.T, c, s peer) {
	t.Helper()
	receive := func(from, to peer) {
		if to.sink.came.IsSet() {
			to.sink.came.Wait()
		}
		go func() {
			time.Sleep(100 * time.Microsecond) // the other waits by then
			send(t, from, wire.Header{Kind: wire.Call, Call: 1}, nil)
		}()
		var waiting atomic.Int32
		waiting.Add(1)
		to.Lane().Help(&to.sink.came, &waiting)
		within(t, to.sink.messages)
	}
	for range 50 {
		receive(c, s)
		receive(s, c)
	}
	synctest.Wait()
}

// A control link whose reader rests for those who take in what the lane brings,
// is read again as soon as the lane has gone.
func TestControlIsReadAfterMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		c, s := connectOver(t, networkOf(m, &fabric{}), networkOf(m, &fabric{}))
		require.NoError(t, c.Migrate(t.Context(), transport.TCP))
		lone(t, c, s)
		require.NoError(t, c.Migrate(t.Context(), transport.RDMA))
		start := time.Now()
		require.NoError(t, s.GoAway())
		within(t, c.sink.goAway)
		require.Zero(t, time.Since(start))
	})
}

// Nobody depends on a control link being read at once after the last call: a
// session that may be silent for the shortest time lives on, and its end is
// noticed in time.
func TestReaderComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 20 * time.Millisecond // two rests
		m := newMemory()
		cn, sn := networkOf(m, nil), networkOf(m, nil)
		cn.Config.Keepalive, sn.Config.Keepalive = 30*time.Millisecond, 30*time.Millisecond
		c, s := connectOver(t, cn, sn)
		for i := range 50 {
			lone(t, c, s)
			time.Sleep(time.Duration(i) * 3 * time.Millisecond)
		}
		require.Zero(t, c.Transport().Resumes)
		lone(t, c, s)
		start := time.Now()
		require.NoError(t, s.GoAway())
		within(t, c.sink.goAway)
		require.LessOrEqual(t, time.Since(start), most)
		lone(t, c, s)
		start = time.Now()
		c.Close(nil)
		within(t, s.Done())
		within(t, c.Done())
		require.LessOrEqual(t, time.Since(start), most)
	})
}
