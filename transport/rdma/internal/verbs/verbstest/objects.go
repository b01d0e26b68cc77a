package verbstest

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

func testAttributes(t *testing.T, rig Rig) {
	for _, end := range []End{rig.A, rig.B} {
		names, err := end.Provider.Devices()
		require.NoError(t, err)
		require.Contains(t, names, end.Device)
		s := open(t, rig, end)
		require.Equal(t, end.Device, s.dev.Name())

		a, err := s.dev.Query()
		require.NoError(t, err)
		require.GreaterOrEqual(t, a.Ports, end.Port)
		for name, limit := range map[string]int{
			"MaxQP": a.MaxQP, "MaxQPWR": a.MaxQPWR, "MaxSGE": a.MaxSGE, "MaxCQ": a.MaxCQ,
			"MaxCQE": a.MaxCQE, "MaxMR": a.MaxMR, "MaxPD": a.MaxPD, "MaxQPRdAtomic": a.MaxQPRdAtomic,
		} {
			require.Positive(t, limit, name)
		}

		require.Equal(t, verbs.PortActive, s.port.State)
		require.NotZero(t, s.port.ActiveMTU.Bytes())
		require.LessOrEqual(t, s.port.ActiveMTU, s.port.MaxMTU)
		require.Positive(t, s.port.GIDTable)
		require.Less(t, s.gid.Index, s.port.GIDTable)
		require.NotEmpty(t, s.gid.NetDev)

		_, err = s.dev.QueryPort(a.Ports + 1)
		require.ErrorIs(t, err, syscall.EINVAL, "a port that is not there")
	}
}

func testUnknownDevice(t *testing.T, rig Rig) {
	_, err := rig.A.Provider.Open("no-such-device")
	require.Error(t, err)
}

// testSizes checks what is made of the sizes asked for.
func testSizes(t *testing.T, rig Rig) {
	s := open(t, rig, rig.A)
	require.GreaterOrEqual(t, s.cq.Depth(), 8*depth)
	q := s.newQP(verbs.RC)
	caps := q.Caps()
	require.GreaterOrEqual(t, caps.MaxSendWR, depth)
	require.GreaterOrEqual(t, caps.MaxRecvWR, depth)
	require.GreaterOrEqual(t, caps.MaxInlineData, maxInline)
	require.Equal(t, verbs.RC, q.Type())
	require.NotZero(t, q.Num())
	require.Less(t, q.Num(), uint32(1<<24))
	require.Equal(t, s.mr.Len(), len(s.mem))
	require.NotZero(t, s.mr.RKey())

	attr, err := s.dev.Query()
	require.NoError(t, err)
	_, err = s.dev.CreateCQ(attr.MaxCQE+1, nil)
	require.Error(t, err, "a CQ larger than MaxCQE")
	_, err = s.dev.CreateCQ(0, nil)
	require.Error(t, err, "a CQ of nothing")
	large := s.caps()
	large.MaxSendWR = attr.MaxQPWR + 1
	_, err = s.pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, Caps: large})
	require.Error(t, err, "a queue longer than MaxQPWR")
	_, err = s.pd.RegisterMR(nil, verbs.AccessLocalWrite)
	require.Error(t, err, "a region of nothing")
	_, err = s.pd.RegisterMR(s.mem, verbs.AccessRemoteWrite)
	require.Error(t, err, "remote write without local write")
}

func testDestroyOrder(t *testing.T, rig Rig) {
	s := open(t, rig, rig.A)
	s.newQP(verbs.RC)
	for what, destroy := range map[string]func() error{
		"the CQ of a QP": s.cq.Destroy, "the channel of a CQ": s.ch.Destroy,
		"the PD of an MR and a QP": s.pd.Dealloc, "the device of a PD": s.dev.Close,
	} {
		require.ErrorIs(t, destroy(), syscall.EBUSY, what)
	}
	// The refused ones are as good as before.
	require.NoError(t, s.cq.Arm())
	require.Empty(t, s.poll())
}

func testDestroyTwice(t *testing.T, rig Rig) {
	dev, err := rig.A.Provider.Open(rig.A.Device)
	require.NoError(t, err)
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	ch, err := dev.CreateCompChannel()
	require.NoError(t, err)
	cq, err := dev.CreateCQ(depth, ch)
	require.NoError(t, err)
	q, err := pd.CreateQP(verbs.QPInit{Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
		Caps: verbs.QPCaps{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	require.NoError(t, err)
	for _, destroy := range []func() error{q.Destroy, cq.Destroy, ch.Destroy, pd.Dealloc, dev.Close} {
		require.NoError(t, destroy())
		require.Error(t, destroy(), "the second time")
	}
	_, err = q.Query()
	require.Error(t, err)
	_, err = cq.Poll(make([]verbs.WC, 1))
	require.Error(t, err)
	_, err = dev.AllocPD()
	require.Error(t, err)
}

func testAsyncInterrupt(t *testing.T, rig Rig) {
	s := open(t, rig, rig.A)
	for range 3 {
		done := make(chan error)
		go func() {
			for {
				if _, err := s.dev.AsyncEvent(); err != nil {
					done <- err
					return
				}
			}
		}()
		s.dev.Interrupt()
		select {
		case err := <-done:
			require.True(t, errors.Is(err, verbs.ErrInterrupted), "%v", err)
		case <-time.After(rig.Deadline):
			t.Fatal("AsyncEvent was not interrupted")
		}
	}
}
