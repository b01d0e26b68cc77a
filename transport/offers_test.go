package transport_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// TestLongReason: why there is no fast link is cut to what the peer takes in; a host may
// have a hundred GIDs of which none fits.
func TestLongReason(t *testing.T) {
	long := errors.New(strings.Repeat("mlx5_0/1 index 3: RoCE v2 fe80::1234:56ff:fe78:9abc (active); ", 70))
	require.Greater(t, len(long.Error()), wire.MaxErrorText)
	for _, client := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			fc, fs := &fabric{}, &fabric{}
			if client {
				fc.prepare = long
			} else {
				fs.prepare = long
			}
			c, s := connectOver(t, networkOf(m, fc), networkOf(m, fs))
			time.Sleep(time.Second)
			require.NoError(t, errors.Join(c.Err(), s.Err()))
			exchange(t, c, s)
		})
	}
}

// TestOfferByNextControl: an offer that came by another control link than the one before,
// whose attempt takes its time to end, is answered.
func TestOfferByNextControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		slow := make(chan struct{})
		f := &fabric{}
		f.onPrepare = func() {
			f.onPrepare = nil
			<-slow
		}
		l := serve(t, networkOf(m, f))
		hello := func(lanes ...wire.LaneState) *raw {
			r := rawDial(t, m, l.addr)
			h := helloMsg()
			h.Features, h.Session, h.Lanes = wire.FeatureFastLink, wire.SessionID{7}, lanes
			r.send(wire.Hello, h.Append(nil))
			require.Equal(t, wire.Hello, r.next().h.Kind)
			return r
		}
		first := hello()
		s := within(t, l.sessions)
		first.send(wire.QPOffer, qp(5))
		synctest.Wait()
		first.link.Close(errTest)
		synctest.Wait()
		second := hello(wire.LaneState{Lane: 1})
		second.send(wire.QPOffer, qp(6))
		synctest.Wait()
		close(slow)
		require.Equal(t, wire.QPAnswer, second.next().h.Kind)
		second.link.Close(nil)
		s.Close(nil)
		within(t, s.Done())
	})
}
