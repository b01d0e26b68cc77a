package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-rpc/verbena/rpc"
)

// grace is how long after its deadline a call may end.
const grace = 100 * time.Millisecond

// outcome is what a caller was told.
type outcome uint8

const (
	pending outcome = iota
	succeeded
	notExecuted
	maybeExecuted
	executed // and failed
)

func (o outcome) String() string {
	return [...]string{"pending", "succeeded", "not executed", "maybe executed", "executed"}[o]
}

// model is what must be true, whatever happens. mu guards the calls as their
// comment says, and the rest; handlers and callers come from many goroutines.
type model struct {
	w     *world
	calls []*call // by id, from 1

	mu       sync.Mutex
	lastSeen map[inOrder]uint64 // id of the last inline call that was executed
	excused  map[pair][]window
	resets   map[pair]time.Time // the last: what a new session may fail by
	counts   [executed + 1]int
}

// inOrder are calls that are executed in the order they were made: inline ones
// of one caller on one connection with one process.
type inOrder struct {
	caller, conn int
	by           *service
}

// pair is a client and a server.
type pair struct{ client, server int }

// window is a time in which sessions may end for a reason.
type window struct {
	from, to time.Time // to zero: it goes on
	why      string
}

func newModel(w *world) *model {
	m := &model{w: w, lastSeen: map[inOrder]uint64{}, excused: map[pair][]window{}, resets: map[pair]time.Time{}}
	for _, c := range w.plan.callers {
		m.calls = append(m.calls, c.calls...)
	}
	return m
}

// execute is told by a handler, with what it was given, and returns its call;
// nil if there is none such.
func (m *model) execute(s *service, zero int, req []byte) *call {
	c := m.find(zero, req)
	if c == nil {
		m.w.violate("a handler of %s got a request that nobody made: %d bytes, %x…", s.name, len(req), req[:min(len(req), 64)])
		return nil
	}
	conn := 0
	if c.size > 0 {
		conn = int(binary.LittleEndian.Uint64(req[8:]))
		binary.LittleEndian.PutUint64(req[8:], 0)
		want := make([]byte, c.size)
		fill(want, c.id, 0)
		if !bytes.Equal(want, req) {
			m.w.violate("%v: its request arrived damaged or as another's", c)
		}
	}
	if s.dead.Load() {
		return c // what a process does after its death is seen by nobody
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c.executions++
	switch {
	case c.executions > 1:
		m.w.violate("%v: executed %d times", c, c.executions)
	case c.outcome == notExecuted:
		m.w.violate("%v: executed after its caller was told that it was not", c)
	}
	if c.method == methodInline {
		k := inOrder{c.caller, conn, s}
		if m.lastSeen[k] > c.id {
			m.w.violate("%v: executed after call %d of the same caller and connection", c, m.lastSeen[k])
		}
		m.lastSeen[k] = c.id
	}
	return c
}

func (m *model) find(zero int, req []byte) *call {
	if len(req) == 0 {
		for _, c := range m.calls {
			if c.method == methodZero && c.zero == zero {
				return c
			}
		}
		return nil
	}
	if len(req) < headerSize {
		return nil
	}
	id := binary.LittleEndian.Uint64(req)
	if id == 0 || id > uint64(len(m.calls)) || m.calls[id-1].size != len(req) {
		return nil
	}
	return m.calls[id-1]
}

// ended is told by the caller when its call has returned.
func (m *model) ended(c *call, p pair, reply []byte, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.end, c.err = time.Now(), err
	c.outcome = outcomeOf(err)
	m.counts[c.outcome]++
	m.w.trace.add("call %d %v", c.id, c.outcome)
	if late := c.end.Sub(c.start) - c.deadline; late > grace {
		m.w.violate("%v: ended %v after its deadline", c, late)
	}
	switch c.outcome {
	case succeeded:
		want := make([]byte, c.reply)
		fill(want, c.id, 1)
		switch {
		case c.executions != 1:
			m.w.violate("%v: executed %d times", c, c.executions)
		case !bytes.Equal(want, reply):
			m.w.violate("%v: its reply is damaged or another's: %x…", c, reply[:min(len(reply), 64)])
		}
	case notExecuted:
		if c.executions > 0 {
			m.w.violate("%v: executed, and its caller was told that it was not", c)
		}
	case executed:
		if c.executions != 1 {
			m.w.violate("%v: executed %d times", c, c.executions)
		}
	}
	if err != nil {
		m.judge(c, p)
	}
}

func outcomeOf(err error) outcome {
	var e *rpc.Error
	switch {
	case err == nil:
		return succeeded
	case !errors.As(err, &e):
		return pending // judge complains
	case e.Delivery == rpc.NotExecuted:
		return notExecuted
	case e.Delivery == rpc.Executed:
		return executed
	}
	return maybeExecuted
}

// judge says whether a call may have failed as it did.
func (m *model) judge(c *call, p pair) {
	took := c.end.Sub(c.start)
	var e *rpc.Error
	if !errors.As(c.err, &e) {
		m.w.violate("%v: failed with a %T", c, c.err)
		return
	}
	switch e.Code {
	case rpc.Canceled:
		if c.cancel > 0 && took >= c.cancel {
			return
		}
	case rpc.DeadlineExceeded:
		if took >= c.deadline && c.deadline < patient || e.FromPeer() && c.deadline < patient {
			return
		}
	case rpc.ResourceExhausted:
		if m.w.plan.maxHandlers > 0 && c.outcome == notExecuted {
			return
		}
	}
	if !m.isExcused(p, c.start, c.end) {
		m.w.violate("%v: failed for no reason: %v", c, c.err)
	}
}

// notDialed is told that there was no session to make a call on.
func (m *model) notDialed(p pair, from time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now(); !m.isExcused(p, from, now) && m.resets[p].Before(from) {
		m.w.violate("client %d could not reach server %d for no reason, from %v to %v: %v",
			p.client, p.server, from.Sub(epoch), now.Sub(epoch), err)
	}
}

// reset says that the connections of p are reset: sessions go on, and one that
// is being made fails.
func (m *model) reset(p pair) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resets[p] = time.Now()
}

// excuse begins a time in which sessions of p may end, or fail to begin; the
// result ends it.
func (m *model) excuse(why string, pairs ...pair) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	from := time.Now()
	at := make([]int, len(pairs))
	for i, p := range pairs {
		at[i] = len(m.excused[p])
		m.excused[p] = append(m.excused[p], window{from: from, why: why})
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for i, p := range pairs {
			m.excused[p][at[i]].to = time.Now()
		}
	}
}

// aftermath is how long after its reason has gone a session may still end.
const aftermath = 2 * time.Second

func (m *model) isExcused(p pair, from, to time.Time) bool {
	for _, w := range m.excused[p] {
		if !w.from.After(to) && (w.to.IsZero() || w.to.Add(aftermath).After(from)) {
			return true
		}
	}
	return false
}

// settle checks what can be known only at the end.
func (m *model) settle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.calls {
		if c.made && c.outcome == pending && c.err == nil {
			m.w.violate("%v: its caller was told nothing", c)
		}
	}
}

func (c *call) String() string {
	return fmt.Sprintf("call %d (caller %d, session %d, %d bytes, reply %d, made at %v, took %v of %v, %v)",
		c.id, c.caller, c.session, c.size, c.reply, c.start.Sub(epoch), c.end.Sub(c.start), c.deadline, c.outcome)
}

// service is what a server process runs.
type service struct {
	*process
	w *world
}

// serve is the handler of all methods.
func (s *service) serve(ctx context.Context, zero int, req []byte) ([]byte, error) {
	c := s.w.model.execute(s, zero, req)
	if c == nil {
		return nil, rpc.Errorf(rpc.InvalidArgument, "no such call")
	}
	if c.work > 0 {
		var done <-chan struct{}
		if c.obedient {
			done = ctx.Done()
		}
		select {
		case <-time.After(c.work):
		case <-done:
			return nil, ctx.Err()
		}
	}
	reply := make([]byte, c.reply)
	fill(reply, c.id, 1)
	return reply, nil
}
