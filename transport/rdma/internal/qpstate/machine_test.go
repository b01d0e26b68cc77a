package qpstate

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

var (
	v4src = verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 8, 14: 0, 15: 1}
	v4dst = verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 8, 14: 1, 15: 1}
	v6dst = verbs.GID{0: 0xfd, 15: 1}

	goodPath   = Path{DestQPN: 0x12, RQPSN: 0x345, MTU: verbs.MTU1024, SGIDIndex: 1, DGID: v4dst, MaxDestRdAtom: 4}
	goodTiming = Timing{SQPSN: 0x678, MaxRdAtomic: 4}
)

// roceDevice is a device as rxe shows itself on a 1500-byte interface.
func roceDevice() *fakeDevice {
	return &fakeDevice{
		attr: verbs.DeviceAttr{Ports: 1, MaxQPRdAtomic: 128, MaxQPInitRdAtomic: 128},
		port: verbs.PortAttr{State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU1024,
			GIDTable: 16, PKeyTable: 1, LinkLayer: verbs.LinkEthernet},
		gids: []verbs.GIDEntry{
			{Index: 0, GID: verbs.GID{0: 0xfe, 1: 0x80, 15: 1}, Type: verbs.GIDRoCEv2},
			{Index: 1, GID: v4src, Type: verbs.GIDRoCEv2},
		},
	}
}

// connectedMachine returns a machine over a fake RC QP in RTS.
func connectedMachine(t *testing.T, o Options) (*Machine, *fakeQP) {
	qp := &fakeQP{typ: verbs.RC}
	m := New(qp, o)
	require.NoError(t, m.ToInit(Local{Port: 1}))
	require.NoError(t, m.Connect(goodPath, goodTiming))
	require.Equal(t, verbs.RTS, m.State())
	return m, qp
}

// Steps give each type the attributes it takes and no other, with defaults.
func TestStepsOfEveryType(t *testing.T) {
	for _, typ := range allTypes {
		t.Run(typ.String(), func(t *testing.T) {
			qp := &fakeQP{typ: typ}
			m := New(qp, Options{Device: roceDevice(), Strict: true})
			require.NoError(t, m.ToInit(Local{Port: 1, QKey: 7}))
			require.NoError(t, m.ToRTR(goodPath))
			require.NoError(t, m.ToRTS(goodTiming))
			require.NoError(t, m.ToErr("test"))
			require.NoError(t, m.ToReset("test"))
			require.Equal(t, verbs.Reset, m.State())
			require.Equal(t, 5, qp.calls)
			require.Len(t, m.History(), 5)
		})
	}
}

func TestStepDefaults(t *testing.T) {
	m := New(&fakeQP{typ: verbs.RC}, Options{})
	rtr, rts := m.rtrStep(goodPath).attr, m.rtsStep(goodTiming).attr
	require.EqualValues(t, 12, rtr.MinRNRTimer)
	require.EqualValues(t, 64, rtr.AV.HopLimit)
	require.True(t, rtr.AV.Global)
	require.EqualValues(t, 14, rts.Timeout)
	require.EqualValues(t, 6, rts.RetryCnt)
	require.EqualValues(t, 6, rts.RNRRetry)

	require.EqualValues(t, 7, m.rtsStep(Timing{RNRRetry: ForeverRNR}).attr.RNRRetry)
	rts = m.rtsStep(Timing{RNRRetry: NoRetry, RetryCnt: 3}).attr
	require.EqualValues(t, 0, rts.RNRRetry)
	require.EqualValues(t, 3, rts.RetryCnt)
}

// The device is asked first; its refusal is explained by what it is.
func TestRefusalIsExplained(t *testing.T) {
	qp := &fakeQP{typ: verbs.RC}
	m := New(qp, Options{Device: roceDevice()})
	require.NoError(t, m.ToInit(Local{Port: 1}))
	p := goodPath
	p.MTU, p.SGIDIndex, p.MaxDestRdAtom = verbs.MTU4096, 7, 200
	qp.fail, qp.became = refusal(syscall.EINVAL), verbs.Init

	err := m.ToRTR(p)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.EqualError(t, err, "qpstate: RC QP 0x11, INIT to RTR: invalid argument: "+
		"PATH_MTU 4096 is above the active MTU 1024 of port 1; "+
		"AV has GID index 7, which is empty on port 1; "+
		"MAX_DEST_RD_ATOMIC 200 is above the device's limit 128")
	require.Equal(t, verbs.Init, m.State())
	last := m.History()[1]
	require.Equal(t, syscall.EINVAL, last.Errno)
	require.Equal(t, verbs.Init, last.From)
	require.Equal(t, verbs.RTR, last.To)
}

func TestErrnoOfPathIsExplained(t *testing.T) {
	for errno, text := range map[syscall.Errno]string{
		syscall.ENODATA:      "GID index 1 to 10.8.1.1: the GID index is empty",
		syscall.ETIMEDOUT:    "link address did not resolve",
		syscall.ENETUNREACH:  "no route",
		syscall.EHOSTUNREACH: "no route",
	} {
		qp := &fakeQP{typ: verbs.RC}
		m := New(qp, Options{Device: roceDevice()})
		require.NoError(t, m.ToInit(Local{Port: 1}))
		qp.fail, qp.became = refusal(errno), verbs.Init
		err := m.ToRTR(goodPath)
		require.ErrorIs(t, err, errno)
		require.ErrorContains(t, err, text)
	}

	// The facts say it already.
	qp := &fakeQP{typ: verbs.RC}
	m := New(qp, Options{Device: roceDevice()})
	require.NoError(t, m.ToInit(Local{Port: 1}))
	p := goodPath
	p.SGIDIndex = 5
	qp.fail, qp.became = refusal(syscall.ENODATA), verbs.Init
	require.Len(t, transitionErrorOf(t, m.ToRTR(p)).Problems, 1)
}

// rxe leaves SQD for nothing but ERR while the sends drain.
func TestDrainingIsExplained(t *testing.T) {
	m, qp := connectedMachine(t, Options{})
	require.NoError(t, m.Modify(&verbs.QPAttr{State: verbs.SQD, SQDraining: true}, verbs.AttrState, "drain"))
	qp.fail, qp.became = refusal(syscall.EINVAL), verbs.SQD
	require.ErrorContains(t, m.ToReset("too early"), "the send queue was draining")
}

// Steps do not leave it to the device to take a path MTU of 0.
func TestStepsRefuseWhatNoDeviceMeans(t *testing.T) {
	qp := &fakeQP{typ: verbs.RC}
	m := New(qp, Options{})
	require.NoError(t, m.ToInit(Local{Port: 1}))
	p := goodPath
	p.MTU, p.RQPSN = 0, 1<<24
	e := transitionErrorOf(t, m.Connect(p, goodTiming))
	require.Len(t, e.Problems, 2)
	require.Equal(t, 1, qp.calls)
	require.Equal(t, syscall.EINVAL, m.History()[1].Errno)
	require.Equal(t, verbs.Init, m.State())
}

// A refusal nobody can explain says so.
func TestUnexplainedRefusal(t *testing.T) {
	m, qp := connectedMachine(t, Options{Device: roceDevice()})
	qp.fail, qp.became = refusal(syscall.ENOMEM), verbs.RTS
	err := m.ToErr("test")
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.EqualError(t, err, "qpstate: RC QP 0x11, RTS to ERR: cannot allocate memory: "+
		"it agrees with the table and with what is known of the device")

	qp.fail, qp.became = &verbs.Error{Op: "ibv_modify_qp", Errno: syscall.EPERM, Hint: "a hint"}, verbs.RTS
	require.EqualError(t, m.ToErr("test"), "qpstate: RC QP 0x11, RTS to ERR: operation not permitted: a hint")

	qp.fail, qp.became = errors.New("no errno"), verbs.RTS
	qp.queryErr = refusal(syscall.EIO)
	e := transitionErrorOf(t, m.ToErr("test"))
	require.ErrorContains(t, e, "no errno")
	require.ErrorContains(t, e, "the state is not certain")
	require.Equal(t, syscall.EIO, m.History()[len(m.History())-1].Errno)
	require.Equal(t, verbs.RTS, m.State())
}

// The QP failed and nobody has polled its completions yet: the refusal shows
// the true state, which goes to the history and to the listeners.
func TestRefusalFindsTheTrueState(t *testing.T) {
	m, qp := connectedMachine(t, Options{})
	var seen []Change
	m.OnChange(func(c Change) { seen = append(seen, c) })
	qp.set(verbs.Err)

	e := transitionErrorOf(t, m.Modify(&verbs.QPAttr{State: verbs.SQD}, verbs.AttrState, "drain"))
	require.True(t, e.Illegal)
	require.Equal(t, verbs.Err, e.From)
	require.ErrorContains(t, e, "ERR leads to RESET, ERR; the QP was thought to be in RTS")
	require.Equal(t, verbs.Err, m.State())
	require.Len(t, seen, 1)
	require.True(t, seen[0].Device)
	require.Equal(t, verbs.Err, seen[0].To)
}

func TestStrictDoesNotAskTheDevice(t *testing.T) {
	qp := &fakeQP{typ: verbs.RC}
	m := New(qp, Options{Strict: true, Device: roceDevice()})
	e := transitionErrorOf(t, m.ToRTS(goodTiming))
	require.True(t, e.Illegal)
	require.ErrorIs(t, e, syscall.EINVAL)
	require.Zero(t, qp.calls)
	require.Equal(t, uint32(0x11), e.QPN)
}

func TestConnectStopsAtTheFirstFailure(t *testing.T) {
	qp := &fakeQP{typ: verbs.RC}
	m := New(qp, Options{})
	require.NoError(t, m.ToInit(Local{Port: 1}))
	timing := goodTiming
	timing.Timeout = 99
	e := transitionErrorOf(t, m.Connect(goodPath, timing))
	require.ErrorContains(t, e, "TIMEOUT 99 (0x63) does not fit in 5 bits")
	require.Equal(t, verbs.RTR, m.State())
}

func TestObserve(t *testing.T) {
	m, _ := connectedMachine(t, Options{})
	require.False(t, m.Observe(verbs.SQE, "RC has no SQE"))
	require.False(t, m.Observe(verbs.Init, "no device does that"))
	require.True(t, m.Observe(verbs.Err, "transport retry count exceeded"))
	require.False(t, m.Observe(verbs.Err, "work request flushed"))
	require.Equal(t, verbs.Err, m.State())
	require.Contains(t, m.History().String(), "RTS to ERR by the device: transport retry count exceeded")

	// A late completion of the life that is over.
	require.NoError(t, m.ToReset("reuse"))
	require.False(t, m.Observe(verbs.Err, "work request flushed"))
	require.Equal(t, verbs.Reset, m.State())
}

// What is observed during a call of the device is put where it belongs once
// the call is over; Observe does not wait for it.
func TestObserveDuringModify(t *testing.T) {
	for _, tc := range []struct {
		name string
		to   verbs.QPState
		fail bool
		want []verbs.QPState // from RTS
	}{
		{"drain", verbs.SQD, false, []verbs.QPState{verbs.SQD, verbs.Err}},
		{"reset", verbs.Reset, false, []verbs.QPState{verbs.Err, verbs.Reset}},
		{"error", verbs.Err, false, []verbs.QPState{verbs.Err}},
		{"refused", verbs.SQD, true, []verbs.QPState{verbs.Err}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, qp := connectedMachine(t, Options{})
			var got []verbs.QPState
			m.OnChange(func(c Change) { got = append(got, c.To) })
			qp.during = func() { require.True(t, m.Observe(verbs.Err, "a send failed")) }
			if tc.fail {
				qp.fail, qp.became = refusal(syscall.EINVAL), verbs.Err
			}
			err := m.Modify(&verbs.QPAttr{State: tc.to}, verbs.AttrState, "test")
			require.Equal(t, tc.fail, err != nil)
			require.Equal(t, tc.want, got)
			require.Equal(t, got[len(got)-1], m.State())
			requirePath(t, verbs.RC, m.History())
		})
	}
}

// Of several observations during a call the last that counts is kept.
func TestObserveTwiceDuringModify(t *testing.T) {
	qp := &fakeQP{typ: verbs.UC}
	m := New(qp, Options{})
	require.NoError(t, m.ToInit(Local{Port: 1}))
	require.NoError(t, m.Connect(goodPath, goodTiming))
	qp.during = func() {
		m.Observe(verbs.SQE, "a send failed")
		m.Observe(verbs.Err, "a receive failed")
		m.Observe(verbs.Err, "another failed")
	}
	require.NoError(t, m.Modify(&verbs.QPAttr{State: verbs.SQD}, verbs.AttrState, "drain"))
	h := m.History()
	require.Equal(t, verbs.Err, m.State())
	require.Equal(t, "a receive failed", h[len(h)-1].Why)
}

// Where no state is named, the device's consent says nothing of it.
func TestModifyWithoutStateAsksForIt(t *testing.T) {
	m, qp := connectedMachine(t, Options{})
	require.NoError(t, m.Modify(goodAttr(0, 0), verbs.AttrMinRNRTimer, "slower"))
	require.Equal(t, verbs.RTS, m.State())
	qp.set(verbs.Err)
	require.NoError(t, m.Modify(goodAttr(0, 0), 0, "nothing at all"))
	require.Equal(t, verbs.Err, m.State())
	requirePath(t, verbs.RC, m.History())
}

func TestPathLeavesByTheBoundPort(t *testing.T) {
	d := roceDevice()
	d.attr.Ports = 2
	qp := &fakeQP{typ: verbs.RC}
	m := New(qp, Options{Device: d})
	require.NoError(t, m.ToInit(Local{Port: 2}))
	row, _ := Lookup(verbs.RC, verbs.Init, verbs.RTR)
	qp.fail, qp.became = refusal(syscall.EINVAL), verbs.Init
	err := m.Modify(goodAttr(verbs.Init, verbs.RTR), verbs.AttrState|row.Required, "by port 1")
	require.ErrorContains(t, err, "AV leaves by port 1, but the QP is bound to port 2")
}

// A listener may use the machine: no lock is held, and the order stays.
func TestListenerUsesTheMachine(t *testing.T) {
	m, _ := connectedMachine(t, Options{})
	var got []verbs.QPState
	m.OnChange(func(c Change) {
		if c.To == verbs.Err {
			require.NoError(t, m.ToReset("from a listener"))
		}
	})
	stop := m.OnChange(func(c Change) { got = append(got, c.To) })
	require.NoError(t, m.ToErr("test"))
	require.Equal(t, []verbs.QPState{verbs.Err, verbs.Reset}, got)
	stop()
	require.NoError(t, m.ToInit(Local{Port: 1}))
	require.Len(t, got, 2)
}

func TestConcurrentModifyKeepsOrder(t *testing.T) {
	m, qp := connectedMachine(t, Options{})
	var got []Change // one call at a time, by the contract: -race proves it
	m.OnChange(func(c Change) { got = append(got, c) })
	var wg sync.WaitGroup
	const workers, rounds = 8, 50
	for range workers {
		wg.Go(func() {
			for range rounds {
				_ = m.ToErr("worker")
				_ = m.Modify(&verbs.QPAttr{State: verbs.Err}, verbs.AttrState, "worker")
				_ = m.ToReset("worker")
				_ = m.ToInit(Local{Port: 1})
				_ = m.Connect(goodPath, goodTiming)
				qp.failInRTS() // untold: some call finds out
				m.Observe(verbs.SQE, "ignored, an RC QP has no SQE")
				_ = m.State().String() + m.History().String()
			}
		})
	}
	wg.Wait()
	for i := 1; i < len(got); i++ {
		require.Equal(t, got[i-1].To, got[i].From, "change %d", i)
	}
	requirePath(t, verbs.RC, m.History())
	require.LessOrEqual(t, len(m.History()), historySize)
}

// requirePath checks that a history is a path through the table: each change
// starts where the last one ended, and is a row or the device's own doing.
func requirePath(t require.TestingT, typ verbs.QPType, h History) {
	for i, c := range h {
		if i > 0 {
			require.Equal(t, stateAfter(h[i-1]), c.From, "entry %d of\n%v", i, h)
		}
		if c.Errno != 0 {
			continue
		}
		_, legal := Lookup(typ, c.From, c.To)
		require.True(t, legal && !c.Device || c.Device && Spontaneous(typ, c.From, c.To), "entry %d of\n%v", i, h)
	}
}

func stateAfter(c Change) verbs.QPState {
	if c.Errno != 0 {
		return c.From
	}
	return c.To
}

func TestHistoryKeepsTheLast(t *testing.T) {
	m := New(&fakeQP{typ: verbs.RC}, Options{})
	for range historySize {
		require.NoError(t, m.ToInit(Local{Port: 1}))
		require.NoError(t, m.ToReset("again"))
	}
	h := m.History()
	require.Len(t, h, historySize)
	require.Equal(t, verbs.Reset, h[historySize-1].To)
	require.Len(t, strings.Split(h.String(), "\n"), historySize)
	requirePath(t, verbs.RC, h)
}
