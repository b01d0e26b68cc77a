package simverbs

import (
	"encoding/binary"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// number sends a WR whose message is the number n, from a slot of its own.
func (e *end) number(n uint64, flags verbs.SendFlags) {
	e.t.Helper()
	off := n % 64 * 8
	binary.LittleEndian.PutUint64(e.mem[off:], n)
	_, err := e.qp.PostSend([]verbs.SendWR{{ID: n, Opcode: verbs.OpSend, Flags: flags,
		Addr: e.mr.Addr() + off, Length: 8, LKey: e.mr.LKey()}})
	require.NoError(e.t, err)
}

func (e *end) recvNumber(n uint64) {
	e.t.Helper()
	_, err := e.qp.PostRecv([]verbs.RecvWR{{ID: n, Addr: e.mr.Addr() + 4096 + n%64*8, Length: 8, LKey: e.mr.LKey()}})
	require.NoError(e.t, err)
}

// stream sends count numbers from a to b, a window at a time.
func stream(a, b *end, count uint64) {
	const window = 16
	for n := uint64(0); n < count; n += window {
		for i := range uint64(window) {
			b.recvNumber(n + i)
		}
		for i := range uint64(window) {
			a.number(n+i, verbs.SendSignaled)
		}
		sent, got := a.wait(window), b.wait(window)
		for i := range uint64(window) {
			for _, wc := range []verbs.WC{sent[i], got[i]} {
				require.Equal(a.t, verbs.WCSuccess, wc.Status, "message %d", n+i)
				require.Equal(a.t, n+i, wc.ID)
			}
			require.Equal(a.t, n+i, binary.LittleEndian.Uint64(b.mem[4096+(n+i)%64*8:]))
		}
	}
}

// TestReliableOverABadNetwork: loss, duplicates and reordering cost time, and
// are not seen otherwise. Twice the same seed is twice the same run.
func TestReliableOverABadNetwork(t *testing.T) {
	for _, model := range []Model{RXE, Spec} {
		var stats [2]Stats
		var took [2]time.Duration
		for i := range stats {
			cfg := Config{Model: model, Latency: 5 * time.Microsecond,
				Faults: Faults{Seed: 0x5eed, Drop: 0.05, Duplicate: 0.05, Delay: 20 * time.Microsecond}}
			inBubble(t, cfg, func(t *testing.T, f *Fabric) {
				a, b := pair(t, f, 16)
				start := time.Now()
				stream(a, b, 2000)
				stats[i], took[i] = f.Stats(), time.Since(start)
			})
		}
		require.Greater(t, stats[0].Packets, uint64(4100), "some were sent again")
		require.Equal(t, stats[0], stats[1])
		require.Equal(t, took[0], took[1])
	}
}

// TestOneSidedOverABadNetwork: an atomic takes effect once, however often it
// is sent, and a READ whose response was lost is served again.
func TestOneSidedOverABadNetwork(t *testing.T) {
	cfg := Config{Latency: 5 * time.Microsecond, Faults: Faults{Drop: 0.1, Duplicate: 0.1, Delay: 20 * time.Microsecond}}
	inBubble(t, cfg, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 16)
		cell := b.mem[1<<16:]
		for n := range uint64(500) {
			one := verbs.SendWR{Addr: a.mr.Addr(), Length: 8, LKey: a.mr.LKey(), Flags: verbs.SendSignaled,
				RemoteAddr: b.mr.Addr() + 1<<16, RKey: b.mr.RKey()}
			add, read := one, one
			add.ID, add.Opcode, add.CompareAdd = 1, verbs.OpFetchAdd, 1
			read.ID, read.Opcode, read.Addr = 2, verbs.OpRead, read.Addr+8
			_, err := a.qp.PostSend([]verbs.SendWR{add, read})
			require.NoError(t, err)
			for _, wc := range a.wait(2) {
				require.Equal(t, verbs.WCSuccess, wc.Status)
			}
			require.Equal(t, n, binary.NativeEndian.Uint64(a.mem), "found")
			require.Equal(t, n+1, binary.NativeEndian.Uint64(a.mem[8:]), "read")
			require.Equal(t, n+1, binary.NativeEndian.Uint64(cell))
		}
	})
}

func TestRetryCount7(t *testing.T) {
	for _, c := range []struct {
		model Model
		wcs   int
	}{{RXE, 0}, {Spec, 1}} {
		inBubble(t, Config{Model: c.model}, func(t *testing.T, f *Fabric) {
			a, b := newEnd(t, f, "a", 8), newEnd(t, f, "b", 8)
			a.init()
			a.connect(b, 10, 7, 7)
			a.number(1, verbs.SendSignaled)
			time.Sleep(time.Minute)
			a.wait(c.wcs)
			a.idle()
		})
	}
}

func TestPartitionIsOneWay(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		b.recvNumber(1)
		f.Partition("b", "a") // requests arrive, acknowledgements do not
		a.number(1, verbs.SendSignaled)
		require.Equal(t, verbs.WCSuccess, b.wait(1)[0].Status)
		a.idle()
		f.Heal()
		require.Equal(t, verbs.WCSuccess, a.wait(1)[0].Status)
		b.idle("the repeated message is not delivered again")
	})
}

func TestFailCall(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, b := newEnd(t, f, "a", 8), newEnd(t, f, "b", 8)
		f.FailCall("a", "ibv_modify_qp INIT", 1, syscall.EIO)
		f.FailCall("a", "ibv_alloc_pd", 2, syscall.ENOMEM)
		f.FailCall("a", "ibv_post_recv", 1, syscall.ENOMEM)
		err := a.qp.Modify(&verbs.QPAttr{State: verbs.Init}, verbs.AttrState)
		require.ErrorIs(t, err, syscall.EIO)
		require.Equal(t, "ibv_modify_qp", err.(*verbs.Error).Op)
		a.init()
		b.init()
		pd, err := a.dev.AllocPD()
		require.NoError(t, err)
		_, err = a.dev.AllocPD()
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.NoError(t, pd.Dealloc())
		n, err := a.qp.PostRecv([]verbs.RecvWR{{ID: 1}})
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.Zero(t, n)
		a.recvNumber(2)
	})
}

// onRecv is a hook for the receives of host b.
func onRecv(fate func(*rand.Rand) Fate) Faults {
	return Faults{OnCompletion: func(c Completion, r *rand.Rand) Fate {
		if c.Send || c.Host != "b" || c.WC.Status != verbs.WCSuccess {
			return Fate{}
		}
		return fate(r)
	}}
}

func TestCompletionFates(t *testing.T) {
	arrive := func(t *testing.T, f *Fabric) *end {
		a, b := pair(t, f, 8)
		b.recvNumber(1)
		b.recvNumber(2)
		a.number(1, 0)
		return b
	}
	for name, c := range map[string]struct {
		fate Fate
		test func(*testing.T, *end)
	}{
		"Drop":      {Fate{Drop: true}, func(t *testing.T, b *end) { b.idle() }},
		"Duplicate": {Fate{Duplicate: true}, func(t *testing.T, b *end) { require.Equal(t, []uint64{1, 1}, ids(b.wait(2))) }},
		"Delay": {Fate{Delay: time.Second}, func(t *testing.T, b *end) {
			start := time.Now()
			require.NoError(t, b.cq.Arm())
			b.idle()
			reason, err := b.ch.Wait(-1)
			require.NoError(t, err)
			require.Equal(t, verbs.WakeEvent, reason)
			require.Equal(t, time.Second, time.Since(start))
			b.wait(1)
		}},
		"Status": {Fate{Status: verbs.WCGeneralErr}, func(t *testing.T, b *end) {
			got := b.wait(2)
			require.Equal(t, []uint64{1, 2}, ids(got))
			require.Equal(t, verbs.WCGeneralErr, got[0].Status)
			require.Equal(t, verbs.WCWRFlushErr, got[1].Status)
		}},
		"HoldToArm": {Fate{HoldToArm: true}, func(t *testing.T, b *end) { // case 33
			b.idle()
			require.NoError(t, b.cq.Arm())
			reason, err := b.ch.Wait(time.Second)
			require.NoError(t, err)
			require.Equal(t, verbs.WakeTimeout, reason, "no event: who does not poll again sleeps")
			b.wait(1)
		}},
		"HoldToArmForgotten": {Fate{HoldToArm: true}, func(t *testing.T, b *end) { b.wait(1) }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{Faults: onRecv(func(*rand.Rand) Fate { return c.fate })}, func(t *testing.T, f *Fabric) {
				c.test(t, arrive(t, f))
			})
		})
	}
}

// TestNoFlush: a drain that never completes (case 14).
func TestNoFlush(t *testing.T) {
	noFlush := func(c Completion, _ *rand.Rand) Fate { return Fate{Drop: c.WC.Status == verbs.WCWRFlushErr} }
	inBubble(t, Config{Faults: Faults{OnCompletion: noFlush}}, func(t *testing.T, f *Fabric) {
		a, _ := pair(t, f, 8)
		a.recvNumber(1)
		require.NoError(t, a.qp.Modify(&verbs.QPAttr{State: verbs.Err}, verbs.AttrState))
		time.Sleep(time.Hour)
		a.idle()
	})
}

// TestLateCompletions: completions of a destroyed QP come when its number
// belongs to another (case 9).
func TestLateCompletions(t *testing.T) {
	cfg := Config{LowestQPN: true, Faults: onRecv(func(*rand.Rand) Fate { return Fate{Delay: time.Millisecond} })}
	inBubble(t, cfg, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		b.recvNumber(1)
		a.number(1, 0)
		old := b.qp.Num()
		require.NoError(t, b.qp.Destroy())
		b.newQP(8)
		require.Equal(t, old, b.qp.Num())
		late := b.wait(1)[0]
		require.Equal(t, old, late.QPNum)
		require.Equal(t, uint64(1), late.ID)
	})
}

// TestLostEvent (case 35): the CQ is disarmed, nobody is woken.
func TestLostEvent(t *testing.T) {
	inBubble(t, Config{Faults: Faults{LoseEvent: 1}}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		require.NoError(t, b.cq.Arm())
		b.recvNumber(1)
		a.number(1, 0)
		reason, err := b.ch.Wait(10 * time.Millisecond)
		require.NoError(t, err)
		require.Equal(t, verbs.WakeTimeout, reason)
		b.wait(1)
	})
}

func TestPortFlap(t *testing.T) {
	for model, want := range map[Model]verbs.WCStatus{RXE: verbs.WCLocQPOpErr, Spec: verbs.WCRetryExcErr} {
		inBubble(t, Config{Model: model}, func(t *testing.T, f *Fabric) {
			a, b := pair(t, f, 8)
			f.SetPort("a", "sim0", 1, false)
			f.Raise("a", "sim0", verbs.AsyncEvent{Type: verbs.EventPortErr, Port: 1})
			f.SetPort("a", "sim0", 1, true)
			f.SetPort("a", "sim0", 1, false)
			for _, want := range []verbs.EventType{verbs.EventPortErr, verbs.EventPortErr, verbs.EventPortActive, verbs.EventPortErr} {
				e, err := a.dev.AsyncEvent()
				require.NoError(t, err)
				require.Equal(t, verbs.AsyncEvent{Type: want, Port: 1}, e)
			}
			port, err := a.dev.QueryPort(1)
			require.NoError(t, err)
			require.Equal(t, verbs.PortDown, port.State)
			a.number(1, verbs.SendSignaled)
			require.Equal(t, want, a.wait(1)[0].Status)
			attr, err := b.qp.Query()
			require.NoError(t, err)
			require.Equal(t, verbs.RTS, attr.State)
		})
	}
}

func TestDeviceFatal(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		a.recvNumber(1)
		f.KillDevice("a", "sim0")
		e, err := a.dev.AsyncEvent()
		require.NoError(t, err)
		require.Equal(t, verbs.EventDeviceFatal, e.Type)
		_, err = a.dev.QueryPort(1)
		require.ErrorIs(t, err, syscall.EIO)
		_, err = a.qp.PostSend([]verbs.SendWR{{}})
		require.ErrorIs(t, err, syscall.EIO)
		a.idle("no flushes from a dead device")
		b.number(1, verbs.SendSignaled)
		require.Equal(t, verbs.WCRetryExcErr, b.wait(1)[0].Status)
	})
}

func TestHostKilled(t *testing.T) {
	inBubble(t, Config{LowestQPN: true}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		a.recvNumber(1)
		f.KillHost("b")
		time.Sleep(time.Hour)
		a.idle("an idle QP is not told")
		a.number(2, 0)
		require.Equal(t, []uint64{2, 1}, ids(a.wait(2)))
		b.idle()

		// A process that starts there anew does not lose its QP to the old one.
		again := newEnd(t, f, "b", 8)
		require.Equal(t, b.qp.Num(), again.qp.Num())
		require.NoError(t, b.qp.Destroy())
		b.newQP(8)
		require.NotEqual(t, b.qp.Num(), again.qp.Num())
	})
}

// TestDoorbell: a slot that is written to before the device has read it goes
// out corrupted, an inline send does not.
func TestDoorbell(t *testing.T) {
	inBubble(t, Config{Doorbell: time.Microsecond}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		b.recvNumber(1)
		b.recvNumber(2)
		a.number(1, 0)
		a.number(2, verbs.SendInline)
		clear(a.mem[:64])
		b.wait(2)
		require.Equal(t, uint64(0), binary.LittleEndian.Uint64(b.mem[4096+8:]))
		require.Equal(t, uint64(2), binary.LittleEndian.Uint64(b.mem[4096+16:]))
	})
}

func TestViolations(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *Fabric) {
		a, b := pair(t, f, 8)
		mem := make([]byte, 64)
		mr, err := b.pd.RegisterMR(mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		require.NoError(t, err)
		_, err = b.qp.PostRecv([]verbs.RecvWR{{ID: 1, Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}})
		require.NoError(t, err)
		require.Empty(t, f.Violations())
		require.NoError(t, mr.Deregister())
		require.Len(t, f.Violations(), 1)
		require.Contains(t, f.Violations()[0], "under 1 outstanding work requests of QP")

		a.number(1, verbs.SendSignaled)
		require.Equal(t, verbs.WCRemOpErr, a.wait(1)[0].Status)
		require.Len(t, f.Violations(), 2)
		require.Contains(t, f.Violations()[1], "device b/sim0 asked for 8 bytes under key")
		f.violations = nil // Watch would fail the test
	})
}
