package qpstate

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// Machine owns the transitions of one QP: from its creation on, nobody else
// calls Modify on it. It holds nothing to close; drop it with the QP.
//
//	Modify, To…      any goroutine but a poller: the device may block for a
//	                 second; one at a time
//	Observe          any goroutine, a poller too: never waits for the device
//	State, History   any goroutine
//
// State is what the machine last knew. A QP that failed is in ERR before
// anybody could tell: trust State to say what was asked of the QP, and the
// device to say what it is in.
type Machine struct {
	qp     verbs.QP
	dev    verbs.Device
	strict bool
	state  atomic.Uint32 // written with mu held

	// turn is held across calls of the device, and taken before mu.
	turn sync.Mutex
	port uint8 // turn: the port the QP was bound to last

	mu         sync.Mutex // guards what follows, never held for long
	busy       bool       // a call of the device is under way
	deferred   *Change    // observed meanwhile
	history    ring
	listeners  []*func(Change)
	pending    []Change // the listeners have not seen these
	delivering bool     // a goroutine is calling listeners
}

// Options of a Machine. The zero value is for production.
type Options struct {
	// Device explains refusals by its limits, ports and GIDs, which are asked
	// only after a refusal. With nil, by the table alone.
	Device verbs.Device

	// Strict checks each transition before the device is asked, and refuses
	// what the device might take. It costs three queries per transition:
	// meant for tests.
	Strict bool
}

// New returns the machine of a QP that was just created, in RESET.
func New(qp verbs.QP, o Options) *Machine {
	return &Machine{qp: qp, dev: o.Device, strict: o.Strict}
}

// State is the state the QP was last known to be in.
func (m *Machine) State() verbs.QPState { return verbs.QPState(m.state.Load()) }

// History returns the last 32 changes and failed attempts.
func (m *Machine) History() History {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.history.list()
}

// OnChange calls fn after each change of the state or, within a state, of
// attributes; not for failed attempts. Calls come one at a time, in the order
// of the changes, and with no lock held: fn may use the machine. They come on
// the goroutine that made the change, or on one that is delivering already: so
// Modify may return before fn ran, and fn may run on a poller that made an
// observation. It must not block.
//
// After stop returned, fn is not called for later changes.
func (m *Machine) OnChange(fn func(Change)) (stop func()) {
	l := &fn
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners = append(m.listeners, l)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.listeners = slices.DeleteFunc(slices.Clone(m.listeners), func(o *func(Change)) bool { return o == l })
	}
}

// Modify changes the attributes of the QP named by mask, and its state if
// STATE is among them. why goes to the history.
//
// The device is asked first, for it may know more than the table. When it
// refuses, for whatever reason, the QP is queried for its true state and the
// attempt checked: the error is a *TransitionError that says what is missing
// or inconsistent, and unwraps to the errno.
func (m *Machine) Modify(attr *verbs.QPAttr, mask verbs.AttrMask, why string) error {
	return m.inTurn(func() error { return m.modify(attr, mask, why) })
}

// inTurn runs f when no other transition is under way, and calls the listeners
// afterwards.
func (m *Machine) inTurn(f func() error) error {
	m.turn.Lock()
	err := f()
	m.turn.Unlock()
	m.deliver()
	return err
}

// modify is Modify in turn.
func (m *Machine) modify(attr *verbs.QPAttr, mask verbs.AttrMask, why string) error {
	if m.strict {
		if e := Check(m.qp.Type(), m.State(), attr, mask, m.facts(attr, mask)); e != nil {
			return m.refuse(e, why)
		}
	}
	m.begin()
	from := m.State()
	if err := m.qp.Modify(attr, mask); err != nil {
		e := m.explain(attr, mask, err)
		m.end(e.From, Change{To: e.To, Why: why, Errno: errnoOf(err)})
		return e
	}
	if mask&verbs.AttrPort != 0 {
		m.port = attr.Port
	}
	to := attr.State
	if mask&verbs.AttrState == 0 {
		// The device was content with a state that nobody named.
		if q, err := m.qp.Query(); err == nil {
			from = q.State
		}
		to = from
	}
	m.end(from, Change{To: to, Why: why})
	return nil
}

// refuse ends an attempt that the device was not asked for.
func (m *Machine) refuse(e *TransitionError, why string) error {
	e.QPN = m.qp.Num()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record(Change{From: m.State(), To: e.To, Why: why, Errno: errnoOf(e.Err)})
	return e
}

// begin makes observations wait until the call of the device is over: only
// then is it known which came first.
func (m *Machine) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = true
}

// end records the outcome of a call of the device, before which the QP turned
// out to be in from, and what was observed meanwhile.
func (m *Machine) end(from verbs.QPState, c Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = false
	seen := m.deferred
	m.deferred = nil

	// What was seen during a RESET belongs to the life that ended with it, and
	// may be why another call failed; otherwise it came after the change.
	first := c.To == verbs.Reset || c.Errno != 0
	if seen != nil && first && m.observe(*seen) {
		from = m.State()
	}
	if from != m.State() {
		m.record(Change{From: m.State(), To: from, Device: true, Why: "found when asked"})
	}
	c.From = from
	m.record(c)
	if seen != nil && !first {
		m.observe(*seen)
	}
}

// Observe tells the machine of a transition that the device made by itself:
// an error completion took the QP to ERR (UC and UD: a send to SQE), or an
// asynchronous event did. Repetitions, and what no device does from the
// present state, are ignored and reported false: a completion of an earlier
// life of the QP says nothing about this one. During a Modify the observation
// waits for its end, and true is returned.
func (m *Machine) Observe(state verbs.QPState, why string) bool {
	c := Change{When: time.Now(), To: state, Why: why, Device: true}
	m.mu.Lock()
	if m.busy {
		if m.deferred == nil || m.deferred.To != verbs.Err {
			m.deferred = &c
		}
		m.mu.Unlock()
		return true
	}
	ok := m.observe(c)
	m.mu.Unlock()
	m.deliver()
	return ok
}

// observe is Observe with mu held.
func (m *Machine) observe(c Change) bool {
	c.From = m.State()
	if !Spontaneous(m.qp.Type(), c.From, c.To) {
		return false
	}
	m.record(c)
	return true
}

// record takes in a change; mu is held.
func (m *Machine) record(c Change) {
	if c.When.IsZero() {
		c.When = time.Now()
	}
	m.history.add(c)
	if c.Errno != 0 {
		return
	}
	m.state.Store(uint32(c.To))
	m.pending = append(m.pending, c)
}

// deliver calls the listeners, unless a goroutine is at it: that one goes on
// until nothing is left, which keeps the order and lets a listener use the
// machine.
func (m *Machine) deliver() {
	m.mu.Lock()
	if m.delivering {
		m.mu.Unlock()
		return
	}
	m.delivering = true
	for len(m.pending) > 0 {
		changes, listeners := m.pending, m.listeners
		m.pending = nil
		m.mu.Unlock()
		for _, c := range changes {
			for _, l := range listeners {
				(*l)(c)
			}
		}
		m.mu.Lock()
	}
	m.delivering = false
	m.mu.Unlock()
}

// facts asks the device for what concerns a transition.
func (m *Machine) facts(attr *verbs.QPAttr, mask verbs.AttrMask) Facts {
	port := m.port
	switch {
	case mask&verbs.AttrPort != 0:
		port = attr.Port
	case mask&verbs.AttrAV != 0:
		port = attr.AV.Port
	}
	f := FactsOf(m.dev, port)
	f.Bound = m.port
	return f
}
