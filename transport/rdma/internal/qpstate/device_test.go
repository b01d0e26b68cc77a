package qpstate_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/qpstate"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/ibverbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
)

// The rows of the table, one by one, on a device: what the table allows is
// done, and all else is refused with EINVAL and explained.
//
// SQE is left out: only a device takes a QP there, and rxe does not. XRC is
// left out: verbs.PD creates none, and rxe has none.
func TestRowsOnDevice(t *testing.T) {
	t.Run("ibverbs", func(t *testing.T) {
		testRows(t, needDevice(t, ibverbs.Provider()), quirksOfKernel)
	})
	t.Run("simverbs", func(t *testing.T) {
		testRows(t, needDevice(t, simverbs.NewFabric(simverbs.Config{}).Provider("a")), nil)
	})
}

// needDevice skips, or fails where RDMA is required, without a device.
func needDevice(t *testing.T, p verbs.Provider) verbs.Provider {
	t.Helper()
	_, err := p.Devices()
	var unavailable *verbs.UnavailableError
	if errors.As(err, &unavailable) && os.Getenv("VERBENA_REQUIRE_RDMA") != "1" {
		t.Skipf("needs an RDMA device: %s", unavailable.Reason)
	}
	require.NoError(t, err)
	return p
}

// rig makes QPs on the first device, with a path to the last: itself, when
// there is one only.
type rig struct {
	dev  verbs.Device
	pd   verbs.PD
	cq   verbs.CQ
	path qpstate.Path
}

func newRig(t *testing.T, p verbs.Provider) *rig {
	names, err := p.Devices()
	require.NoError(t, err)
	r := &rig{}
	r.dev, err = p.Open(names[0])
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.dev.Close()) })
	peer, err := p.Open(names[len(names)-1])
	require.NoError(t, err)
	defer peer.Close()

	r.pd, err = r.dev.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.pd.Dealloc()) })
	r.cq, err = r.dev.CreateCQ(16, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.cq.Destroy()) })

	src, dst := ipv4GID(t, r.dev), ipv4GID(t, peer)
	r.path = qpstate.Path{DestQPN: 0x12, RQPSN: 0x345, MTU: verbs.MTU1024, MaxDestRdAtom: 4,
		SGIDIndex: uint8(src.Index), DGID: dst.GID}
	return r
}

// ipv4GID is the RoCE v2 entry of an IPv4 address.
func ipv4GID(t *testing.T, dev verbs.Device) verbs.GIDEntry {
	gids, err := dev.QueryGIDs(1)
	require.NoError(t, err)
	for _, g := range gids {
		if g.Type == verbs.GIDRoCEv2 && g.GID.Addr().Is4() {
			return g
		}
	}
	require.FailNow(t, "no IPv4 GID of RoCE v2", "%s has %v", dev.Name(), gids)
	return verbs.GIDEntry{}
}

// bench is one QP that goes back to RESET for each trial.
type bench struct {
	*qpstate.Machine
	qp   verbs.QP
	path qpstate.Path
}

func (r *rig) newBench(t *testing.T, typ verbs.QPType) *bench {
	qp, err := r.pd.CreateQP(verbs.QPInit{Type: typ, SendCQ: r.cq, RecvCQ: r.cq,
		Caps: verbs.QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, qp.Destroy()) })
	return &bench{qpstate.New(qp, qpstate.Options{Device: r.dev}), qp, r.path}
}

// take brings the QP from RESET to a state, by the shortest way.
func (b *bench) take(t *testing.T, state verbs.QPState) {
	t.Helper()
	if b.State() == verbs.SQD {
		b.awaitDrained(t)
	}
	require.NoError(t, b.ToReset("next trial"))
	timing := qpstate.Timing{SQPSN: 0x678, MaxRdAtomic: 4}
	for _, s := range []struct {
		state verbs.QPState
		step  func() error
	}{
		{verbs.Init, func() error { return b.ToInit(qpstate.Local{Port: 1, QKey: 0x11}) }},
		{verbs.RTR, func() error { return b.ToRTR(b.path) }},
		{verbs.RTS, func() error { return b.ToRTS(timing) }},
		{verbs.SQD, func() error { return b.Modify(&verbs.QPAttr{State: verbs.SQD}, verbs.AttrState, "drain") }},
		{verbs.Err, func() error { return b.ToErr("trial") }},
	} {
		if s.state <= state {
			require.NoError(t, s.step(), "on the way to %v", state)
		}
	}
	b.requireState(t, state)
	if state == verbs.SQD {
		b.awaitDrained(t)
	}
}

// awaitDrained waits until SQD may be left: nothing was sent, but rxe drains
// in the background all the same.
func (b *bench) awaitDrained(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		q, err := b.qp.Query()
		return err == nil && !q.SQDraining
	}, time.Minute, time.Millisecond)
}

func (b *bench) requireState(t *testing.T, want verbs.QPState) {
	t.Helper()
	q, err := b.qp.Query()
	require.NoError(t, err)
	require.Equal(t, want, q.State, "as the device says")
	require.Equal(t, want, b.State(), "as the machine knows")
}

// attr has a good value for every attribute.
func (b *bench) attr(from, to verbs.QPState) *verbs.QPAttr {
	return &verbs.QPAttr{
		State: to, CurState: from, Port: 1, QKey: 0x11,
		PathMTU: b.path.MTU, DestQPN: b.path.DestQPN, RQPSN: b.path.RQPSN, SQPSN: 0x678,
		AV:          verbs.AHAttr{Global: true, DGID: b.path.DGID, SGIDIndex: b.path.SGIDIndex, HopLimit: 64, Port: 1},
		Timeout:     qpstate.DefaultTimeout,
		RetryCnt:    qpstate.DefaultRetryCnt,
		RNRRetry:    qpstate.DefaultRNRRetry,
		MinRNRTimer: qpstate.DefaultMinRNRTimer,
		MaxRdAtomic: 4, MaxDestRdAtom: 4,
	}
}

var (
	deviceTypes  = []verbs.QPType{verbs.RC, verbs.UC, verbs.UD}
	deviceStates = []verbs.QPState{verbs.Reset, verbs.Init, verbs.RTR, verbs.RTS, verbs.SQD, verbs.Err}
	targetStates = append([]verbs.QPState{verbs.SQE}, deviceStates...)

	// plainAttrs are those that verbs.QPAttr has a field for.
	plainAttrs = []verbs.AttrMask{
		verbs.AttrCurState, verbs.AttrEnSQDNotify, verbs.AttrAccess, verbs.AttrPKeyIndex, verbs.AttrPort, verbs.AttrQKey,
		verbs.AttrAV, verbs.AttrPathMTU, verbs.AttrTimeout, verbs.AttrRetryCnt, verbs.AttrRNRRetry, verbs.AttrRQPSN,
		verbs.AttrMaxRdAtomic, verbs.AttrMinRNRTimer, verbs.AttrSQPSN, verbs.AttrMaxDestRdAtom, verbs.AttrDestQPN,
	}
)

// quirk is an optional attribute that a device refuses.
type quirk struct {
	typ      verbs.QPType
	from, to verbs.QPState
	attr     verbs.AttrMask
}

// quirksOfKernel are those of Linux 6.1, seen on rxe.
var quirksOfKernel = map[quirk]bool{
	// Where AV comes without a change to RTR, the kernel adds PORT (modify_qp
	// in uverbs_cmd.c), which its own table then refuses for UC.
	{verbs.UC, verbs.SQD, verbs.SQD, verbs.AttrAV}: true,
}

func testRows(t *testing.T, p verbs.Provider, quirks map[quirk]bool) {
	r := newRig(t, p)
	for _, typ := range deviceTypes {
		b := r.newBench(t, typ)
		for _, from := range deviceStates {
			for _, to := range targetStates {
				t.Run(fmt.Sprintf("%v/%v_to_%v", typ, from, to), func(t *testing.T) {
					if row, ok := qpstate.Lookup(typ, from, to); ok {
						testLegal(t, b, row, quirks)
					} else {
						testIllegal(t, b, from, to)
					}
				})
			}
		}
	}
}

func testLegal(t *testing.T, b *bench, row qpstate.Row, quirks map[quirk]bool) {
	attr := b.attr(row.From, row.To)
	base := verbs.AttrState | row.Required
	b.take(t, row.From)
	require.NoError(t, b.Modify(attr, base, "complete"))
	b.requireState(t, row.To)

	for _, bit := range plainAttrs {
		switch {
		case row.Required&bit != 0:
			b.take(t, row.From)
			e := b.refused(t, attr, base&^bit)
			require.Equal(t, bit, e.Missing)
			require.Zero(t, e.Extra)
		case row.Optional&bit != 0:
			b.take(t, row.From)
			err := b.Modify(attr, base|bit, "with "+bit.String())
			if quirks[quirk{b.qp.Type(), row.From, row.To, bit}] {
				require.ErrorIs(t, err, syscall.EINVAL)
				continue
			}
			require.NoError(t, err)
			b.requireState(t, row.To)
		default:
			b.take(t, row.From)
			e := b.refused(t, attr, base|bit)
			require.Equal(t, bit, e.Extra)
			require.Zero(t, e.Missing)
		}
	}
}

func testIllegal(t *testing.T, b *bench, from, to verbs.QPState) {
	b.take(t, from)
	e := b.refused(t, b.attr(from, to), verbs.AttrState)
	require.True(t, e.Illegal)
	require.Equal(t, from, e.From)
	require.Equal(t, to, e.To)
}

// refused tries what the device must refuse with EINVAL, leaving the QP as it
// is.
func (b *bench) refused(t *testing.T, attr *verbs.QPAttr, mask verbs.AttrMask) *qpstate.TransitionError {
	t.Helper()
	state := b.State()
	err := b.Modify(attr, mask, "to be refused")
	require.Error(t, err, "%v with %v", state, mask)
	require.ErrorIs(t, err, syscall.EINVAL)
	var e *qpstate.TransitionError
	require.ErrorAs(t, err, &e)
	b.requireState(t, state)
	return e
}

// Values that cannot be right, one at a time on an RC QP. Strict names each
// before the device is asked; if the device refuses, the refusal is explained.
func TestValuesOnDevice(t *testing.T) {
	t.Run("ibverbs", func(t *testing.T) {
		testValues(t, needDevice(t, ibverbs.Provider()))
	})
	t.Run("simverbs", func(t *testing.T) {
		testValues(t, needDevice(t, simverbs.NewFabric(simverbs.Config{}).Provider("a")))
	})
}

const accepted syscall.Errno = 0

// seen is what rxe of Linux 6.1 answers. What it accepts it may cut to size
// (the kernel: PSNs, to 24 bits), ignore, or take seriously (path MTU 0).
var wrongValues = []struct {
	name string
	to   verbs.QPState // from the state below
	with verbs.AttrMask
	set  func(*verbs.QPAttr)
	seen syscall.Errno
	want string // in the problem
}{
	{"port 0", verbs.Init, 0, func(a *verbs.QPAttr) { a.Port = 0 }, syscall.EINVAL, "PORT has port 0"},
	{"port 9", verbs.Init, 0, func(a *verbs.QPAttr) { a.Port = 9 }, syscall.EINVAL, "PORT has port 9"},
	{"P_Key index", verbs.Init, 0, func(a *verbs.QPAttr) { a.PKeyIndex = 9999 }, accepted, "PKEY_INDEX 9999 is outside"},

	{"path MTU 0", verbs.RTR, 0, func(a *verbs.QPAttr) { a.PathMTU = 0 }, accepted, "PATH_MTU code 0"},
	{"path MTU 6", verbs.RTR, 0, func(a *verbs.QPAttr) { a.PathMTU = 6 }, syscall.EINVAL, "PATH_MTU code 6"},
	{"destination QPN", verbs.RTR, 0, func(a *verbs.QPAttr) { a.DestQPN = 1 << 24 }, accepted, "DEST_QPN"},
	{"RQ PSN", verbs.RTR, 0, func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 }, accepted, "RQ_PSN"},
	{"min_rnr_timer", verbs.RTR, 0, func(a *verbs.QPAttr) { a.MinRNRTimer = 32 }, accepted, "MIN_RNR_TIMER"},
	{"max_dest_rd_atomic", verbs.RTR, 0, func(a *verbs.QPAttr) { a.MaxDestRdAtom = 200 }, accepted, "MAX_DEST_RD_ATOMIC 200 is above"},
	{"no GRH", verbs.RTR, 0, func(a *verbs.QPAttr) { a.AV.Global = false }, syscall.EINVAL, "AV has no GRH"},
	{"AV port 0", verbs.RTR, 0, func(a *verbs.QPAttr) { a.AV.Port = 0 }, syscall.EINVAL, "AV has port 0"},
	{"AV port 9", verbs.RTR, 0, func(a *verbs.QPAttr) { a.AV.Port = 9 }, syscall.EINVAL, "AV has port 9"},
	{"GID index empty", verbs.RTR, 0, func(a *verbs.QPAttr) { a.AV.SGIDIndex = 15 }, syscall.ENODATA, "AV has GID index 15, which is empty"},
	{"GID empty", verbs.RTR, 0, func(a *verbs.QPAttr) { a.AV.DGID = verbs.GID{} }, syscall.EINVAL, "AV has an empty destination GID"},
	{"IP families", verbs.RTR, 0, func(a *verbs.QPAttr) { a.AV.DGID = verbs.GID{0: 0xfd, 15: 1} }, syscall.EINVAL, "different IP families"},
	{"flow label", verbs.RTR, 0, func(a *verbs.QPAttr) { a.AV.FlowLabel = 1 << 20 }, accepted, "flow label"},

	{"SQ PSN", verbs.RTS, 0, func(a *verbs.QPAttr) { a.SQPSN = 1 << 24 }, accepted, "SQ_PSN"},
	{"timeout", verbs.RTS, 0, func(a *verbs.QPAttr) { a.Timeout = 32 }, syscall.EINVAL, "TIMEOUT 32"},
	{"retry_cnt", verbs.RTS, 0, func(a *verbs.QPAttr) { a.RetryCnt = 8 }, accepted, "RETRY_CNT 8"},
	{"rnr_retry", verbs.RTS, 0, func(a *verbs.QPAttr) { a.RNRRetry = 8 }, accepted, "RNR_RETRY 8"},
	{"max_rd_atomic", verbs.RTS, 0, func(a *verbs.QPAttr) { a.MaxRdAtomic = 200 }, syscall.EINVAL, "MAX_QP_RD_ATOMIC 200 is above"},
	{"current state", verbs.RTS, verbs.AttrCurState, func(a *verbs.QPAttr) { a.CurState = verbs.RTS }, syscall.EINVAL, "CUR_STATE says RTS"},
}

func testValues(t *testing.T, p verbs.Provider) {
	r := newRig(t, p)
	b := r.newBench(t, verbs.RC)
	strict := r.newBench(t, verbs.RC)
	strict.Machine = qpstate.New(strict.qp, qpstate.Options{Device: r.dev, Strict: true})
	for _, v := range wrongValues {
		t.Run(v.name, func(t *testing.T) {
			from := v.to - 1
			row, ok := qpstate.Lookup(verbs.RC, from, v.to)
			require.True(t, ok)
			attr, mask := b.attr(from, v.to), verbs.AttrState|row.Required|v.with
			v.set(attr)

			strict.take(t, from)
			e := strict.refused(t, attr, mask)
			require.Len(t, e.Problems, 1, "%v", e)
			require.Contains(t, e.Problems[0].String(), v.want)

			b.take(t, from)
			err := b.Modify(attr, mask, v.name)
			if strings.HasPrefix(r.dev.Name(), "rxe") {
				if v.seen == accepted {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, v.seen)
				}
			}
			if err != nil {
				require.ErrorContains(t, err, v.want)
				b.requireState(t, from)
			}
		})
	}
}

// A destination that nobody has keeps RTR waiting, then the error says for whom.
func TestNoSuchPeerOnDevice(t *testing.T) {
	for _, p := range []verbs.Provider{ibverbs.Provider(), simverbs.NewFabric(simverbs.Config{}).Provider("a")} {
		t.Run(p.Name(), func(t *testing.T) {
			b := newRig(t, needDevice(t, p)).newBench(t, verbs.RC)
			b.take(t, verbs.Init)
			b.path.DGID = verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 8, 14: 0, 15: 77}
			err := b.ToRTR(b.path)
			require.ErrorIs(t, err, syscall.ETIMEDOUT)
			require.ErrorContains(t, err, "10.8.0.77: the peer's link address did not resolve")
			b.requireState(t, verbs.Init)
		})
	}
}
