//go:build linux

// Package rxetest is what providers over the kernel must pass on rdma_rxe,
// beside the conformance suite: what only this device shows, and what errors
// say. A test needs the devices rxe0 and rxe1, which reach each other.
package rxetest

import (
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/verbstest"
)

const (
	rigPort  = 1
	rigMem   = 1 << 20
	patience = 20 * time.Second // emulation is slow
)

// Require skips, with the reason, without the two rxe devices;
// VERBENA_REQUIRE_RDMA=1 makes that a failure.
func Require(t testing.TB, p verbs.Provider) {
	t.Helper()
	names, err := p.Devices()
	reason := ""
	switch {
	case err != nil:
		reason = err.Error()
	case !slices.Contains(names, "rxe0") || !slices.Contains(names, "rxe1"):
		reason = "needs the devices rxe0 and rxe1"
	default:
		return
	}
	if os.Getenv("VERBENA_REQUIRE_RDMA") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// End is one device with what a test needs of it.
type End struct {
	t   testing.TB
	Dev verbs.Device
	pd  verbs.PD
	ch  verbs.CompChannel
	cq  verbs.CQ
	mem []byte
	mr  verbs.MR
	GID verbs.GIDEntry
}

// Open opens a device; the test ends by closing it.
func Open(t testing.TB, p verbs.Provider, name string) *End {
	t.Helper()
	Require(t, p)
	e := &End{t: t}
	var err error
	e.Dev, err = p.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Dev.Close()) })
	e.pd, err = e.Dev.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.pd.Dealloc()) })
	e.ch, err = e.Dev.CreateCompChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.ch.Destroy()) })
	e.cq, err = e.Dev.CreateCQ(1024, e.ch)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.cq.Destroy()) })
	e.mem, err = unix.Mmap(-1, 0, rigMem, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(e.mem)) })
	e.mr, err = e.pd.RegisterMR(e.mem, verbs.AccessLocalWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.mr.Deregister()) })
	e.GID = e.findGID()
	return e
}

// findGID returns the IPv4-mapped entry, the one both ends can route to.
func (e *End) findGID() verbs.GIDEntry {
	gids, err := e.Dev.QueryGIDs(rigPort)
	require.NoError(e.t, err)
	i := slices.IndexFunc(gids, func(g verbs.GIDEntry) bool {
		return g.Type == verbs.GIDRoCEv2 && netip.AddrFrom16(g.GID).Is4In6()
	})
	require.GreaterOrEqual(e.t, i, 0, "%v", gids)
	return gids[i]
}

func (e *End) qp() verbs.QP { return e.qpOn(nil) }

// qpOn makes a QP that receives from an SRQ, unless that is nil.
func (e *End) qpOn(srq verbs.SRQ) verbs.QP {
	e.t.Helper()
	q, err := e.pd.CreateQP(verbs.QPInit{
		Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, SRQ: srq,
		Caps: verbs.QPCaps{MaxSendWR: 200, MaxRecvWR: 200, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	require.NoError(e.t, err)
	e.t.Cleanup(func() { require.NoError(e.t, q.Destroy()) })
	return q
}

func (e *End) toInit(q verbs.QP) {
	e.t.Helper()
	attr := verbs.QPAttr{State: verbs.Init, Port: rigPort}
	require.NoError(e.t, q.Modify(&attr, verbs.AttrState|verbs.AttrPKeyIndex|verbs.AttrPort|verbs.AttrAccess))
}

func (e *End) toRTS(q, peer verbs.QP, to *End) {
	e.t.Helper()
	rtr := verbs.QPAttr{
		State: verbs.RTR, PathMTU: verbs.MTU1024, DestQPN: peer.Num(), RQPSN: 77, MinRNRTimer: 12, AV: to.path(e),
	}
	require.NoError(e.t, q.Modify(&rtr, verbs.AttrState|verbs.AttrAV|verbs.AttrPathMTU|verbs.AttrDestQPN|
		verbs.AttrRQPSN|verbs.AttrMaxDestRdAtom|verbs.AttrMinRNRTimer))
	rts := verbs.QPAttr{State: verbs.RTS, SQPSN: 77, Timeout: 14, RetryCnt: 6, RNRRetry: 6}
	require.NoError(e.t, q.Modify(&rts, verbs.AttrState|verbs.AttrSQPSN|verbs.AttrTimeout|
		verbs.AttrRetryCnt|verbs.AttrRNRRetry|verbs.AttrMaxRdAtomic))
}

// path is the address vector by which from reaches e.
func (e *End) path(from *End) verbs.AHAttr {
	return verbs.AHAttr{Global: true, DGID: e.GID.GID, SGIDIndex: uint8(from.GID.Index), HopLimit: 64, Port: rigPort}
}

// pair is two connected RC QPs on two devices, in RTS.
type pair struct {
	a, b   *End
	qa, qb verbs.QP
}

// connect connects two QPs of a provider each.
func connect(t testing.TB, pa, pb verbs.Provider) *pair {
	t.Helper()
	p := &pair{a: Open(t, pa, "rxe0"), b: Open(t, pb, "rxe1")}
	p.qa, p.qb = p.a.qp(), p.b.qp()
	p.connect()
	return p
}

func (p *pair) connect() {
	p.a.toInit(p.qa)
	p.b.toInit(p.qb)
	p.a.toRTS(p.qa, p.qb, p.b)
	p.b.toRTS(p.qb, p.qa, p.a)
}

// recvs are n receives of size bytes, IDs from 1000, at the end of the memory.
func (e *End) recvs(n, size int) []verbs.RecvWR {
	wrs := make([]verbs.RecvWR, n)
	for i := range wrs {
		wrs[i] = verbs.RecvWR{
			ID: uint64(1000 + i), Addr: e.mr.Addr() + rigMem/2 + uint64(i*size), Length: uint32(size), LKey: e.mr.LKey(),
		}
	}
	return wrs
}

func (e *End) send(id uint64, offset, length int, flags verbs.SendFlags) verbs.SendWR {
	return verbs.SendWR{
		ID: id, Opcode: verbs.OpSend, Flags: flags,
		Addr: e.mr.Addr() + uint64(offset), Length: uint32(length), LKey: e.mr.LKey(),
	}
}

// poll polls n completions, with patience.
func (e *End) poll(n int) []verbs.WC {
	e.t.Helper()
	var got []verbs.WC
	buf := make([]verbs.WC, 32)
	for deadline := time.Now().Add(patience); len(got) < n; {
		k, err := e.cq.Poll(buf)
		require.NoError(e.t, err)
		got = append(got, buf[:k]...)
		require.False(e.t, time.Now().After(deadline), "%d of %d completions: %+v", len(got), n, got)
	}
	return got
}

// Rig is the conformance suite's: a device of a provider each.
func Rig(t *testing.T, pa, pb verbs.Provider) verbstest.Rig {
	a, b := Open(t, pa, "rxe0"), Open(t, pb, "rxe1")
	return verbstest.Rig{
		A:      verbstest.End{Provider: pa, Device: "rxe0", GID: a.GID.GID},
		B:      verbstest.End{Provider: pb, Device: "rxe1", GID: b.GID.GID},
		Quirks: verbstest.RXE,
	}
}
