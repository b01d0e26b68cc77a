package transport

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// side is one end of a session under test, and the messages on their way to it.
type side struct {
	t       *testing.T
	s       *Session
	held    []Slot              // reserved, to be committed
	ordered []uint64            // committed in this order by the other side, and not here yet
	loose   map[uint64]struct{} // likewise, in any order
	bytes   map[uint64]int      // of both
}

func (d *side) GoAway()     {}
func (d *side) Ended(error) {}

func (d *side) Message(m Message) {
	n := 0
	if m.Payload != nil {
		defer m.Payload.Release()
		n = m.Payload.Len()
		for i, b := range m.Payload.Bytes() {
			if b != byte(m.Call)+byte(i) {
				d.t.Errorf("message %d is damaged at byte %d of %d", m.Call, i, n)
				break
			}
		}
	}
	if want, sent := d.bytes[m.Call]; !sent || want != n {
		d.t.Errorf("message %d of %d bytes was never sent, or came before", m.Call, n)
	}
	delete(d.bytes, m.Call)
	if _, ok := d.loose[m.Call]; ok {
		delete(d.loose, m.Call)
		return
	}
	if len(d.ordered) == 0 || d.ordered[0] != m.Call {
		d.t.Errorf("message %d comes out of turn", m.Call)
		return
	}
	d.ordered = d.ordered[1:]
}

// world is a client and a server over lists.
type world struct {
	t     *testing.T
	n     *lists
	sides [2]*side
	call  uint64
}

// FuzzLane takes bytes as operations on a session whose links carry frames when
// they are told to: send, deliver a frame or half of it, let an end of a link die
// with what is under way or without, move, and wait. Whatever happens, in
// whatever order, once links work again each message has come once, whole, and
// in order, both sides live, nothing is kept, and no memory was written to that
// was given away.
func FuzzLane(f *testing.F) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 0))
		b := make([]byte, 40+seed*40)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	for _, steps := range [][]byte{
		{opSend, 3, opSend + 1, 4, opAll, 0, opKill, 3, opWait, 20, opAll, 0, opSend, 5, opWait, 20, opAll, 0, opSend, 1},
		{opMigrate, 0, opAll, 0, opSend, 6, opSend + 1, 6, opAll, 0, opMigrate, 1, opSend, 2, opDeliver, 0, opDeliver, 1, opLose, 2},
		{opMigrate, 0, opAll, 0, opSend, 4, opMigrate, 1, opDeliver, 3, opDeliver, 2, opLose, 3, opSend, 3, opAll, 0},
		{opSend, 3, opHalf, 2, opKill, 2, opWait, 20, opAll, 0, opSend + 1, 4, opSend + 1, 5, opHalf, 3, opKill, 3},
		{opSend, 7, opDeliver, 2, opHalf, 2, opLose, 3, opAll, 0, opSend, 6, opDeliver, 1, opHalf, 1, opKill, 1, opWait, 9},
		// A pump waits for room on the fast link as the lane goes back to TCP, where another does.
		{opMigrate, 0, opAll, 0, opSend, 3, opSend, 3, opMigrate, 1, opFull, 3, opDeliver, 2, opDeliver, 3, opMigrate, 0, opFull, 0,
			opDrain, 1, opDrain, 0, opFull, 3, opFull, 0, opAll, 0},
		{opHold, 0x0a, opHold, 0x0b, opKill, 2, opWidth, 0, opWait, 30, opAll, 0, opWait, 30, opAll, 0, opCommit, 0, opCommit, 1},
	} {
		f.Add(steps)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		pooltest.Check(t)
		synctest.Test(t, func(t *testing.T) { playLane(t, ops) })
	})
}

func playLane(t *testing.T, ops []byte) {
	w := newWorld(t)
	for ; len(ops) >= 2 && !t.Failed(); ops = ops[2:] {
		w.step(ops[0]%ops_, ops[1])
		synctest.Wait()
	}
	w.finish()
}

func newWorld(t *testing.T) *world {
	return newWorldOf(t, Config{
		MaxMessage: 1 << 20, MaxCalls: 8, ResumeWithin: 24 * time.Hour,
		ReturnAfter: time.Millisecond, RetryAfter: 10 * time.Millisecond,
	})
}

func newWorldOf(t *testing.T, cfg Config) *world {
	n := newLists(t)
	w := &world{t: t, n: n}
	for i := range w.sides {
		w.sides[i] = &side{t: t, loose: map[uint64]struct{}{}, bytes: map[uint64]int{}}
	}
	network := func() *Network {
		return &Network{Carrier: n, Fabric: n, Config: cfg}
	}
	a, err := network().Listen("")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() {
		served <- a.Serve(func(s *Session) Sink { w.sides[1].s = s; return w.sides[1] })
	}()
	dialed := make(chan error, 1)
	go func() {
		s, err := network().Dial(t.Context(), "", func(*Session) Sink { return w.sides[0] })
		w.sides[0].s = s
		dialed <- err
	}()
	for settled := false; !settled; {
		w.deliverAll()
		select {
		case err := <-dialed:
			require.NoError(t, err)
			settled = true
		default:
		}
	}
	t.Cleanup(func() {
		require.NoError(t, a.Close())
		require.NoError(t, <-served)
		synctest.Wait()
		n.release()
	})
	return w
}

// Operations; the operand chooses a side, an end of a link, or a size.
const (
	opSend    = iota // and opSend+1: the client, the server
	_                //
	opHold           // reserve
	opCommit         // what was reserved, or discard it
	opDeliver        // a frame
	opHalf           // of a frame
	opDrain          // all that comes over a link
	opAll            // all that comes over any
	opKill           // an end
	opLose           // an end, and what it sent last
	opFull           // an end has no room, or has
	opWait           // 10 ms for each
	opMigrate        // the lane
	opWidth          // of fast links to be made
	opRefuse         // connections, or not
	opAgain          // a MOVE
	opReconnect
	ops_
)

func (w *world) step(op, x byte) {
	end := func() *listEnd {
		live := w.n.live()
		if len(live) == 0 {
			return &listEnd{n: w.n, dead: true, peer: &listEnd{}}
		}
		return live[int(x)%len(live)]
	}
	switch op {
	case opSend, opSend + 1:
		if slot, ok := w.reserve(int(op-opSend), x); ok {
			w.commit(int(op-opSend), slot)
		}
	case opHold:
		if d := w.sides[x&1]; len(d.held) < 8 {
			if slot, ok := w.reserve(int(x&1), x>>1); ok {
				d.held = append(d.held, slot)
			}
		}
	case opCommit:
		if d := w.sides[x&1]; len(d.held) > 0 {
			slot := d.held[0]
			d.held = d.held[1:]
			if x&0x80 != 0 {
				d.s.Lane().Discard(slot)
			} else {
				w.commit(int(x&1), slot)
			}
		}
	case opDeliver, opHalf:
		end().deliver(op == opHalf)
	case opDrain:
		for e := end(); e.deliver(false); {
			synctest.Wait()
		}
	case opAll:
		w.deliverAll()
	case opKill:
		end().die(errDead)
	case opLose:
		e := end()
		e.truncate(len(e.sent) / 2)
		e.die(errDead)
	case opFull:
		e := end()
		e.setFull(!e.full)
	case opWait:
		time.Sleep(time.Duration(x) * 10 * time.Millisecond)
	case opMigrate:
		_ = w.sides[0].s.Migrate(now, []Kind{TCP, RDMA}[x&1])
	case opWidth:
		w.n.mu.Lock()
		w.n.width = []int{100, 400, 1000}[x%3]
		w.n.mu.Unlock()
	case opRefuse:
		w.n.mu.Lock()
		w.n.refuses = x&1 == 1
		w.n.mu.Unlock()
	case opAgain:
		end().again()
	case opReconnect:
		w.sides[x&1].s.Reconnect()
	}
}

func (w *world) reserve(from int, x byte) (Slot, bool) {
	size := []int{0, 1, 60, 100, 350, 900, 2000, 7000}[x%8]
	slot, err := w.sides[from].s.Lane().Reserve(now, Small, size)
	if err != nil && err != ErrTooWide {
		require.ErrorIs(w.t, err, context.Canceled)
	}
	return slot, err == nil
}

func (w *world) commit(from int, slot Slot) {
	w.call++
	for i := range slot.Payload {
		slot.Payload[i] = byte(w.call) + byte(i)
	}
	lane, to := w.sides[from].s.Lane(), w.sides[1-from]
	wide := len(slot.Payload) > lane.MaxPayload()
	size := len(slot.Payload)
	err := lane.Commit(slot, &wire.Header{Kind: wire.Call, Call: w.call})
	if wide {
		require.Equal(w.t, ErrTooWide, err)
		return
	}
	require.NoError(w.t, err)
	to.bytes[w.call] = size
	to.ordered = append(to.ordered, w.call)
}

// deliverAll lets all arrive that is under way, and what follows from it.
func (w *world) deliverAll() {
	for came := true; came; {
		came = false
		for _, e := range w.n.live() {
			came = e.deliver(false) || came
		}
		synctest.Wait()
	}
}

// finish lets links work, and looks whether all has come.
func (w *world) finish() {
	c, s := w.sides[0], w.sides[1]
	for _, d := range w.sides {
		for _, slot := range d.held {
			d.s.Lane().Discard(slot)
		}
	}
	w.n.mu.Lock()
	w.n.refuses = false
	w.n.mu.Unlock()
	for range 300 {
		for _, e := range w.n.live() {
			e.setFull(false)
		}
		w.deliverAll()
		time.Sleep(100 * time.Millisecond)
	}
	require.NoError(w.t, errors.Join(c.s.Err(), s.s.Err()))
	for _, d := range w.sides {
		require.Empty(w.t, d.bytes, "messages that never came")
		kept := d.s.Transport().Retention
		require.Zero(w.t, kept.Frames+kept.Bytes, "kept although the peer has it")
		for i := range d.s.lane.out.room {
			count, _ := d.s.lane.out.room[i].Used()
			require.Zero(w.t, count, "room of class %d that was not given back", i)
		}
		require.Zero(w.t, d.s.lane.in.parts.open+int64(d.s.lane.in.parts.slack))
	}
	require.NotZero(w.t, c.s.Transport().Kind)
	require.Equal(w.t, c.s.Transport().Kind, s.s.Transport().Kind)
	c.s.Close(errors.New("over"))
	synctest.Wait()
	w.deliverAll()
	<-c.s.Done()
	<-s.s.Done()
}
