package qpstate

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// knownAttrs are all bits that have a name; RATE_LIMIT is the highest.
func knownAttrs() (bits []verbs.AttrMask) {
	for b := verbs.AttrCurState; b <= verbs.AttrRateLimit; b <<= 1 {
		if b.String()[0] != '0' {
			bits = append(bits, b)
		}
	}
	return bits
}

// goodAttr has values for every attribute that roceFacts agree with.
func goodAttr(from, to verbs.QPState) *verbs.QPAttr {
	return &verbs.QPAttr{
		State: to, CurState: from, Port: 1, PathMTU: verbs.MTU1024, DestQPN: 0x12, RQPSN: 1, SQPSN: 2,
		AV:      verbs.AHAttr{Global: true, DGID: v4dst, SGIDIndex: 1, HopLimit: 64, Port: 1},
		Timeout: 14, RetryCnt: 6, RNRRetry: 6, MinRNRTimer: 12, MaxRdAtomic: 4, MaxDestRdAtom: 4,
	}
}

func roceFacts() Facts { return FactsOf(roceDevice(), 1) }

// Each row of each type: complete it is accepted, with any optional attribute
// too; without any one of its required attributes, or with any one that is in
// neither, exactly that attribute is named.
func TestCheckEveryRow(t *testing.T) {
	eachRow(func(typ verbs.QPType, row Row) {
		attr := goodAttr(row.From, row.To)
		base := verbs.AttrState | row.Required
		check := func(mask verbs.AttrMask) *TransitionError {
			return Check(typ, row.From, attr, mask, roceFacts())
		}
		name := fmt.Sprintf("%v %v to %v", typ, row.From, row.To)
		require.Nil(t, check(base), name)
		require.Nil(t, check(base|row.Optional), name)
		for _, bit := range knownAttrs() {
			switch {
			case row.Required&bit != 0:
				e := check(base &^ bit)
				require.NotNil(t, e, "%s without %v", name, bit)
				require.Equal(t, bit, e.Missing, name)
				require.Zero(t, e.Extra, name)
				require.ErrorContains(t, e, "missing "+bit.String())
			case row.Optional&bit != 0:
				require.Nil(t, check(base|bit), "%s with %v", name, bit)
			default:
				e := check(base | bit)
				require.NotNil(t, e, "%s with %v", name, bit)
				require.Equal(t, bit, e.Extra, name)
				require.Zero(t, e.Missing, name)
				require.Empty(t, e.Problems, name)
				require.ErrorContains(t, e, "not allowed here: "+bit.String())
			}
		}
	})
}

// What is no row is illegal, and the error says where the state leads.
func TestCheckEveryIllegalTransition(t *testing.T) {
	for _, typ := range allTypes {
		for from := range verbs.QPState(states) {
			for to := range verbs.QPState(states) {
				if _, ok := Lookup(typ, from, to); ok {
					continue
				}
				e := Check(typ, from, goodAttr(from, to), verbs.AttrState, roceFacts())
				require.NotNil(t, e, "%v %v to %v", typ, from, to)
				require.True(t, e.Illegal)
				require.ErrorIs(t, e, syscall.EINVAL)
				require.ErrorContains(t, e, fmt.Sprintf("%v leads to RESET", from))
			}
		}
	}
	e := Check(77, verbs.Reset, &verbs.QPAttr{State: 200}, verbs.AttrState, Facts{})
	require.EqualError(t, e, "qpstate: QPType(77) QP, RESET to QPState(200): invalid argument: "+
		"no such transition, and none is known from RESET for this type")
}

// Without STATE the attributes change within the state, where that is a row.
func TestCheckWithoutState(t *testing.T) {
	attr := goodAttr(verbs.RTS, verbs.RTS)
	require.Nil(t, Check(verbs.RC, verbs.RTS, attr, verbs.AttrMinRNRTimer, roceFacts()))
	e := Check(verbs.RC, verbs.RTR, attr, verbs.AttrMinRNRTimer, roceFacts())
	require.True(t, e.Illegal)
	require.Equal(t, verbs.RTR, e.To)
}

func TestUnknownBitsAreNamedInHex(t *testing.T) {
	e := Check(verbs.RC, verbs.RTS, goodAttr(verbs.RTS, verbs.Err), verbs.AttrState|1<<30|verbs.AttrSQPSN, Facts{})
	require.ErrorContains(t, e, "not allowed here: SQ_PSN|0x40000000")
}

// Each wrong value is one problem, named with its attribute; without facts,
// only what no device takes is.
func TestProblems(t *testing.T) {
	rtr := func(f func(*verbs.QPAttr)) *verbs.QPAttr { a := goodAttr(verbs.Init, verbs.RTR); f(a); return a }
	rts := func(f func(*verbs.QPAttr)) *verbs.QPAttr { a := goodAttr(verbs.RTR, verbs.RTS); f(a); return a }
	device := func(f func(*fakeDevice)) Facts { d := roceDevice(); f(d); return FactsOf(d, 1) }
	same := func(*verbs.QPAttr) {}
	for _, tc := range []struct {
		attr  *verbs.QPAttr
		with  verbs.AttrMask // optional attributes to bring
		facts Facts
		want  string
	}{
		{rtr(func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 }), 0, Facts{}, "RQ_PSN 16777216 (0x1000000) does not fit in 24 bits"},
		{rtr(func(a *verbs.QPAttr) { a.DestQPN = 1 << 24 }), 0, Facts{}, "DEST_QPN 16777216 (0x1000000) does not fit in 24 bits"},
		{rtr(func(a *verbs.QPAttr) { a.MinRNRTimer = 32 }), 0, Facts{}, "MIN_RNR_TIMER 32 (0x20) does not fit in 5 bits"},
		{rtr(func(a *verbs.QPAttr) { a.PathMTU = 0 }), 0, Facts{}, "PATH_MTU code 0 is none (1 to 5 stand for 256 to 4096)"},
		{rtr(func(a *verbs.QPAttr) { a.PathMTU = 6 }), 0, Facts{}, "PATH_MTU code 6 is none (1 to 5 stand for 256 to 4096)"},
		{rtr(func(a *verbs.QPAttr) { a.AV.Port = 0 }), 0, Facts{}, "AV has port 0; ports count from 1"},
		{rtr(func(a *verbs.QPAttr) { a.AV.DGID = verbs.GID{} }), 0, Facts{}, "AV has an empty destination GID"},
		{rtr(func(a *verbs.QPAttr) { a.AV.FlowLabel = 1 << 20 }), 0, Facts{}, "AV has flow label 0x100000, which does not fit in 20 bits"},
		{rts(func(a *verbs.QPAttr) { a.SQPSN = 1 << 31 }), 0, Facts{}, "SQ_PSN 2147483648 (0x80000000) does not fit in 24 bits"},
		{rts(func(a *verbs.QPAttr) { a.Timeout = 32 }), 0, Facts{}, "TIMEOUT 32 (0x20) does not fit in 5 bits"},
		{rts(func(a *verbs.QPAttr) { a.RetryCnt = 8 }), 0, Facts{}, "RETRY_CNT 8 (0x8) does not fit in 3 bits"},
		{rts(func(a *verbs.QPAttr) { a.RNRRetry = 8 }), 0, Facts{}, "RNR_RETRY 8 (0x8) does not fit in 3 bits"},
		{rts(func(a *verbs.QPAttr) { a.CurState = verbs.SQD }), verbs.AttrCurState, Facts{}, "CUR_STATE says SQD, but the QP is in RTR"},

		{rtr(func(a *verbs.QPAttr) { a.PathMTU = verbs.MTU2048 }), 0, roceFacts(), "PATH_MTU 2048 is above the active MTU 1024 of port 1"},
		{rtr(func(a *verbs.QPAttr) { a.MaxDestRdAtom = 129 }), 0, roceFacts(), "MAX_DEST_RD_ATOMIC 129 is above the device's limit 128"},
		{rts(func(a *verbs.QPAttr) { a.MaxRdAtomic = 129 }), 0, roceFacts(), "MAX_QP_RD_ATOMIC 129 is above the device's limit 128"},
		{rts(func(a *verbs.QPAttr) { a.MaxRdAtomic = 129 }), 0, device(func(d *fakeDevice) { d.attr.MaxQPInitRdAtomic = 0 }),
			"MAX_QP_RD_ATOMIC 129 is above the device's limit 128"},
		{rtr(func(a *verbs.QPAttr) { a.PKeyIndex = 1 }), verbs.AttrPKeyIndex, roceFacts(), "PKEY_INDEX 1 is outside the P_Key table of port 1 (1 entries)"},
		{rtr(func(a *verbs.QPAttr) { a.AV.Port = 2 }), 0, roceFacts(), "AV has port 2, the device has 1"},
		{rtr(func(a *verbs.QPAttr) { a.AV.Port = 2 }), 0, Facts{Bound: 1}, "AV leaves by port 2, but the QP is bound to port 1"},
		{rtr(func(a *verbs.QPAttr) { a.AV.Global = false }), 0, roceFacts(), "AV has no GRH, which Ethernet needs"},
		{rtr(func(a *verbs.QPAttr) { a.AV.SGIDIndex = 16 }), 0, roceFacts(), "AV has GID index 16, outside the table of port 1 (16 entries)"},
		{rtr(func(a *verbs.QPAttr) { a.AV.SGIDIndex = 2 }), 0, roceFacts(), "AV has GID index 2, which is empty on port 1"}, // case 44
		{rtr(func(a *verbs.QPAttr) { a.AV.DGID = v6dst }), 0, roceFacts(), // case 45
			"AV has source 10.8.0.1 (GID index 1) and destination fd00::1 of different IP families"},
		{rtr(same), 0, device(func(d *fakeDevice) { d.gids = nil }), "AV has GID index 1, which is empty on port 1"},
		{rtr(same), 0, device(func(d *fakeDevice) { d.port.State = verbs.PortDown }), "AV leaves by port 1, which is DOWN"},
	} {
		from, to := tc.attr.State-1, tc.attr.State
		row, _ := Lookup(verbs.RC, from, to)
		e := Check(verbs.RC, from, tc.attr, verbs.AttrState|row.Required|tc.with, tc.facts)
		require.NotNil(t, e, tc.want)
		require.Len(t, e.Problems, 1, tc.want)
		require.Equal(t, tc.want, e.Problems[0].String())
		require.Contains(t, e.Error(), tc.want)
		require.False(t, e.Illegal || e.Missing != 0 || e.Extra != 0)
	}
}

func TestPortOfInit(t *testing.T) {
	init := verbs.AttrState | verbs.AttrPort | verbs.AttrPKeyIndex | verbs.AttrAccess
	for port, want := range map[uint8]string{0: "PORT has port 0; ports count from 1", 3: "PORT has port 3, the device has 1"} {
		e := Check(verbs.RC, verbs.Reset, &verbs.QPAttr{State: verbs.Init, Port: port}, init, roceFacts())
		require.ErrorContains(t, e, want)
	}
	// A QP may wait in INIT while its port is down.
	d := roceDevice()
	d.port.State = verbs.PortDown
	require.Nil(t, Check(verbs.RC, verbs.Reset, &verbs.QPAttr{State: verbs.Init, Port: 1}, init, FactsOf(d, 1)))
}

// Facts of one port say nothing about another, and InfiniBand needs no GRH.
func TestFactsThatDoNotApply(t *testing.T) {
	d := roceDevice()
	d.attr.Ports = 2
	d.port.State = verbs.PortDown
	row, _ := Lookup(verbs.RC, verbs.Init, verbs.RTR)
	attr := goodAttr(verbs.Init, verbs.RTR)
	attr.AV.Port, attr.AV.SGIDIndex = 2, 9
	require.Nil(t, Check(verbs.RC, verbs.Init, attr, verbs.AttrState|row.Required, FactsOf(d, 1)))

	d = roceDevice()
	d.port.LinkLayer = verbs.LinkInfiniBand
	attr.AV = verbs.AHAttr{DLID: 3, Port: 1}
	require.Nil(t, Check(verbs.RC, verbs.Init, attr, verbs.AttrState|row.Required, FactsOf(d, 1)))
}

// All findings of one attempt are in one error.
func TestOneErrorNamesEverything(t *testing.T) {
	row, _ := Lookup(verbs.RC, verbs.Init, verbs.RTR)
	attr := goodAttr(verbs.Init, verbs.RTR)
	attr.RQPSN = 1 << 24
	attr.SQPSN = 1 << 24 // does not belong here: no second complaint
	mask := verbs.AttrState | row.Required&^(verbs.AttrPathMTU|verbs.AttrMinRNRTimer) | verbs.AttrSQPSN
	require.EqualError(t, Check(verbs.RC, verbs.Init, attr, mask, Facts{}),
		"qpstate: RC QP, INIT to RTR: invalid argument: missing PATH_MTU|MIN_RNR_TIMER; "+
			"not allowed here: SQ_PSN; RQ_PSN 16777216 (0x1000000) does not fit in 24 bits")
}
