package sim

import (
	"encoding/binary"
	"math/rand/v2"
	"time"
)

// callerPlan is what one goroutine does: calls to one server, one after the
// other.
type callerPlan struct {
	client, server int
	calls          []*call
}

// call is a call and all that is known of it. The first group is the plan. The
// caller sets the second; the handlers' part is guarded by model.mu.
type call struct {
	id       uint64 // never 0, and of this call alone
	caller   int
	method   methodKind
	zero     int // methodZero: which of the methods
	size     int // of the request in bytes
	reply    int // of the response
	think    time.Duration
	work     time.Duration // of the handler
	obedient bool          // the handler obeys its context
	deadline time.Duration
	cancel   time.Duration // when the caller gives up; 0: never

	session    int // which of the client's sessions with the server, from 1
	start, end time.Time
	made       bool // false: there was no session to make it on
	outcome    outcome
	err        error

	executions int
}

type methodKind uint8

const (
	methodEcho   methodKind = iota // on a worker
	methodInline                   // where the call arrives
	methodZero                     // no payload: the method itself names the call
)

// A call cannot be told by its payload where it has none: each such call has a
// method of its own.
const zeroMethods = 8

// patient is a deadline that no fault of a world outlasts.
const patient = 40 * time.Second

// header of a request: id, size of the reply, work in µs, flags.
const headerSize = 32

func newCallers(p *plan, r *rand.Rand) []callerPlan {
	var callers []callerPlan
	total := 40 + r.IntN(160)
	n := 1 + r.IntN(12)
	zeros := 0
	for i := range n {
		cr := newRand(p.seed, streamCallers+uint64(i))
		c := callerPlan{client: cr.IntN(len(p.clients)), server: cr.IntN(len(p.servers))}
		for range max(1, total/n) {
			c.calls = append(c.calls, newCall(p, cr, i, total/n, &zeros))
		}
		callers = append(callers, c)
	}
	id := uint64(0)
	for i := range callers {
		for _, c := range callers[i].calls {
			id++
			c.id = id
		}
	}
	return callers
}

func newCall(p *plan, r *rand.Rand, caller, calls int, zeros *int) *call {
	c := &call{
		caller: caller, obedient: chance(r, 0.5), deadline: patient,
		size: sizeOf(r), reply: sizeOf(r),
		think: time.Duration(r.Int64N(int64(2*p.span)/int64(max(calls, 1)) + 1)),
	}
	if chance(r, 0.4) {
		c.work = between(r, 10*time.Microsecond, 50*time.Millisecond)
	}
	if chance(r, 0.2) {
		c.deadline = between(r, 50*time.Microsecond, time.Second)
	}
	if chance(r, 0.1) {
		c.cancel = between(r, time.Microsecond, 50*time.Millisecond)
	}
	switch {
	case chance(r, 0.25):
		c.method, c.size, c.reply, c.work = methodInline, headerSize+r.IntN(64), headerSize+r.IntN(300), 0
	case chance(r, 0.05) && *zeros < zeroMethods:
		c.method, c.zero, c.size, c.reply, c.work = methodZero, *zeros, 0, 0, 0
		*zeros++
	}
	return c
}

func sizeOf(r *rand.Rand) int {
	most := pick(r, 256, 256, 256, 256, 4<<10, 4<<10, 4<<10, 32<<10, 32<<10, 200<<10)
	return headerSize + r.IntN(most-headerSize+1)
}

// request is the message of a call.
func (c *call) request() []byte {
	if c.size == 0 {
		return nil
	}
	b := make([]byte, c.size)
	fill(b, c.id, 0)
	binary.LittleEndian.PutUint64(b[8:], uint64(c.session))
	return b
}

// fill makes bytes that are those of one message of one call alone: each word
// is made of the id, the direction and its place.
func fill(b []byte, id, direction uint64) {
	if len(b) < headerSize {
		return
	}
	binary.LittleEndian.PutUint64(b, id)
	clear(b[8:headerSize])
	x := (id*2 + direction) * 0x9e3779b97f4a7c15
	at := headerSize
	for ; at+8 <= len(b); at += 8 {
		x += 0x9e3779b97f4a7c15
		binary.LittleEndian.PutUint64(b[at:], x^x>>29)
	}
	for ; at < len(b); at++ {
		b[at] = byte(x) + byte(at)
	}
}
