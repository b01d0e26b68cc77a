package transport_test

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// outage lets nothing through for so long: QPs give up, and the TCP connections
// that there are stay, and stay silent.
func (m *memory) outage(c, s *fabric, d time.Duration) {
	m.dark.Store(true)
	m.stall()
	c.kill(errTest)
	s.kill(errTest)
	time.Sleep(d)
	m.dark.Store(false)
}

// TestLongOutage: after an outage calls go on soon, and on a fast link, although
// the control connection neither dies nor comes back, and attempts at fast links
// over it come to nothing.
func TestLongOutage(t *testing.T) {
	for _, last := range []time.Duration{time.Second, 3 * time.Second, 7 * time.Second, 20 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			fc, fs := &fabric{}, &fabric{}
			cn, sn := networkOf(m, fc), networkOf(m, fs)
			cn.Config.Keepalive, sn.Config.Keepalive = time.Hour, time.Hour
			c, s := connectOver(t, cn, sn)
			exchange(t, c, s)
			time.Sleep(time.Second)
			before := c.Transport().Attempts
			go m.outage(fc, fs, last)
			time.Sleep(last)
			over := time.Now()
			require.LessOrEqual(t, c.Transport().Attempts, before+1, "not while the control link is silent")
			send(t, c, wire.Header{Kind: wire.Call, Call: 7}, make([]byte, 10))
			payload(within(t, s.sink.messages))
			require.LessOrEqual(t, time.Since(over), 3*time.Second, "after an outage of %v", last)
			for c.Transport().Kind != transport.RDMA {
				time.Sleep(10 * time.Millisecond)
			}
			require.LessOrEqual(t, time.Since(over), 5*time.Second, "after an outage of %v", last)
			require.Equal(t, 1, c.Transport().Resumes)
			exchange(t, c, s)
		})
	}
}

// TestSystemGivesUp: the system ends the connections for want of an answer, at both
// ends and long before the outage is over. Nothing shows that the peer is gone, so
// sessions last as if their own keepalive had ended them.
func TestSystemGivesUp(t *testing.T) {
	for _, why := range []syscall.Errno{syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ENETDOWN} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			fc, fs := &fabric{}, &fabric{}
			c, s := connectOver(t, networkOf(m, fc), networkOf(m, fs))
			exchange(t, c, s)
			go m.outage(fc, fs, 12*time.Second)
			time.Sleep(time.Second)
			m.fail(os.NewSyscallError("read", why))
			time.Sleep(11 * time.Second)
			over := time.Now()
			arrives(t, c, s, 7)
			require.LessOrEqual(t, time.Since(over), 3*time.Second, why)
			exchange(t, c, s)
		})
	}
}

// TestDoubtEnds: a control connection that comes back itself is kept.
func TestDoubtEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		fc, fs := &fabric{}, &fabric{}
		c, s := connectOver(t, networkOf(m, fc), networkOf(m, fs))
		exchange(t, c, s)
		go m.outage(fc, fs, time.Hour)
		time.Sleep(4 * time.Second)
		m.stalled(false)
		over := time.Now()
		arrives(t, c, s, 7)
		for c.Transport().Kind != transport.RDMA {
			time.Sleep(10 * time.Millisecond)
		}
		require.LessOrEqual(t, time.Since(over), 5*time.Second)
		time.Sleep(time.Minute)
		require.Zero(t, c.Transport().Resumes)
		require.Equal(t, transport.RDMA, c.Transport().Kind)
		m.dark.Store(false)
		m.cut()
		time.Sleep(time.Second)
		require.Equal(t, 1, c.Transport().Resumes, "once more when it dies")
		arrives(t, c, s, 8)
		time.Sleep(time.Hour)
	})
}

// TestRestartInOutage: a server that was started anew during an outage says that
// it does not know the session, which ends, although nothing tells that the old
// control connection is over.
func TestRestartInOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		fc, fs := &fabric{}, &fabric{}
		cn, sn := networkOf(m, fc), networkOf(m, fs)
		cn.Config.Keepalive, sn.Config.Keepalive = time.Hour, time.Hour
		l := serve(t, sn)
		c, err := dial(t, cn, l.addr)
		require.NoError(t, err)
		s := within(t, l.sessions)
		exchange(t, c, s)
		serve(t, networkOf(m, nil)) // the same address from now on
		m.outage(fc, fs, 5*time.Second)
		over := time.Now()
		err = within(t, c.sink.ended)
		require.ErrorContains(t, err, "no such session")
		require.LessOrEqual(t, time.Since(over), 4*time.Second)
		within(t, c.Done())
		m.cut()
		require.Error(t, within(t, s.sink.ended))
		within(t, s.Done())
	})
}

// TestSilentControl: where there is no fast link whose death would raise a doubt, a
// silent control connection is doubted at the second tick of keepalive if frames are
// kept for it, at the third if none are, and given up at none of these.
func TestSilentControl(t *testing.T) {
	const tick = 5 * time.Second // a third of the default
	for phase := range 20 {
		busy := phase%2 == 1
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			c, s := connectOver(t, networkOf(m, nil), networkOf(m, nil))
			time.Sleep(time.Minute + time.Duration(phase)*time.Second)
			m.stall()
			stalled, most := time.Now(), 3*tick+3*time.Second/2 // it is given up 1 s later
			sent := make(chan struct{})
			ask := func() {
				defer close(sent)
				send(t, c, wire.Header{Kind: wire.Call, Call: 1}, make([]byte, 10))
			}
			if busy {
				most = 2*tick + 3*time.Second
				go ask()
			}
			for c.Transport().Resumes == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			require.LessOrEqual(t, time.Since(stalled), most, "stalled in second %d", phase)
			if !busy {
				ask()
			}
			<-sent
			payload(within(t, s.sink.messages))
		})
	}
}

// TestFastLinkDiesWhileRedialing: a client that tries seldom for another control link,
// for it has a fast link, tries at once when that dies too.
func TestFastLinkDiesWhileRedialing(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			fc, fs := &fabric{}, &fabric{}
			cn, sn := networkOf(m, fc), networkOf(m, fs)
			cn.Config.ResumeWithin, sn.Config.ResumeWithin = time.Second, time.Second
			c, s := connectOver(t, cn, sn)
			exchange(t, c, s)
			m.refuses.Store(true)
			m.cut()
			time.Sleep(time.Minute)
			exchange(t, c, s)
			m.refuses.Store(false)
			fc.kill(errTest)
			fs.kill(errTest)
			time.Sleep(2 * time.Second)
			require.NoError(t, c.Err())
		})
	}
}
