package verbstest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// waitFor waits on the channel and expects a reason.
func (s *side) waitFor(want verbs.WakeReason, timeout time.Duration, why string) {
	s.t.Helper()
	got, err := s.ch.Wait(timeout)
	require.NoError(s.t, err)
	require.Equal(s.t, want, got, why)
}

// message sends one from x to y, and waits until it is in the CQ of y.
func message(x, y *qp) {
	x.t.Helper()
	y.recv(y.recvWR(1, 0, 64))
	x.send(x.sendWR(2, 8))
	x.waitOK(1)
}

// testChannelEvent: arm, poll again, wait; the completion wakes (case 33).
func testChannelEvent(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, patient)
	for range 20 {
		require.NoError(t, b.cq.Arm())
		require.Empty(t, b.poll())
		y.recv(b.recvWR(1, 0, 64))
		woken := make(chan verbs.WakeReason, 1)
		go func() {
			reason, _ := b.ch.Wait(rig.Deadline)
			woken <- reason
		}()
		x.send(a.sendWR(2, 8))
		require.Equal(t, verbs.WakeEvent, <-woken)
		b.waitOK(1)
		a.waitOK(1)
	}
}

func testChannelIsOneShot(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, patient)
	require.NoError(t, b.cq.Arm())
	require.NoError(t, b.cq.Arm(), "an idle CQ armed again stays armed (case 35)")
	message(x, y)
	b.waitFor(verbs.WakeEvent, rig.Deadline, "armed")
	b.waitOK(1)
	message(x, y)
	b.waitOK(1)
	b.waitFor(verbs.WakeTimeout, 0, "the event has disarmed it")
	require.NoError(t, b.cq.Arm())
	message(x, y)
	b.waitFor(verbs.WakeEvent, rig.Deadline, "armed again")
	b.waitFor(verbs.WakeTimeout, 0, "one event")
	b.waitOK(1)
}

// testChannelIgnoresQueued: what is queued when the CQ is armed raises none.
func testChannelIgnoresQueued(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, patient)
	message(x, y)
	require.NoError(t, b.cq.Arm())
	b.waitFor(verbs.WakeTimeout, 20*time.Millisecond, "queued before")
	b.waitOK(1)
	message(x, y)
	b.waitFor(verbs.WakeEvent, rig.Deadline, "still armed")
	b.waitOK(1)
}

func testChannelWake(t *testing.T, rig Rig) {
	a := open(t, rig, rig.A)
	a.ch.Wake()
	a.ch.Wake()
	a.waitFor(verbs.WakeCall, -1, "Wake before Wait")
	a.waitFor(verbs.WakeTimeout, 0, "two wakes are one")
	for range 50 {
		go a.ch.Wake()
		a.waitFor(verbs.WakeCall, -1, "Wake during Wait")
	}
}

func testChannelTimeout(t *testing.T, rig Rig) {
	a := open(t, rig, rig.A)
	a.waitFor(verbs.WakeTimeout, 0, "at once")
	start := time.Now()
	a.waitFor(verbs.WakeTimeout, 20*time.Millisecond, "nothing happens")
	require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
}
