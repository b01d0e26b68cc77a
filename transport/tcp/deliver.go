package tcp

import (
	"cmp"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport"
)

const (
	// helpTime bounds one call of Help, so that its caller can look whether it
	// still wants to wait.
	helpTime = 10 * time.Millisecond

	// restTime is how long the reader leaves the connection alone before it looks
	// whether helpers came, and twice as long each time that one did, up to maxRest.
	// If none did it goes on: nobody takes in what arrives for twice that at most.
	// Where it looked every millisecond, a lone caller made 15 % fewer calls.
	restTime = 500 * time.Microsecond
	maxRest  = 4 * time.Millisecond

	// loneAnswers is how many frames in a row, each waited for by one who would
	// have helped, make the reader rest: two callers at a time seldom do.
	loneAnswers = 4

	// A helper in vain, which costs two switches, makes the next minDecline wait
	// in the usual way; after that twice as many, up to maxDecline.
	minDecline = 8
	maxDecline = 1 << 10
)

// past is a deadline that ends a read at once.
var past = time.Unix(1, 0)

// delivery is the receiving side of a link: a parser, and whose turn it is to
// run it.
//
// The reader, a goroutine, has the turn while it reads. If who waits for what it
// delivers would rather have read that himself, so that he need not be woken,
// the reader gives the turn up and rests. Helpers take the turn then, one at a
// time, each until he has what he waits for or his time is over. The reader
// goes on when a helper says that others wait, when one was in vain, when the
// link ends, and when none came for restTime. So it misses none of these, it
// rests with a timer.
//
// Whoever has the turn may be waiting in Read. The deadline of reads makes him
// look around: it is set under link.mu, by a helper before he reads, and by who
// wants him to stop. One that the reader meets is of the past, unless the
// link is ending. Only the reader ends the link because of what it read.
type delivery struct {
	turn   chan struct{} // full: somebody has it; guards parser, streak and decline
	parser parser        // src is nil before the reader begins and when it has ended

	streak  int   // frames in a row that a lone helper waited for
	decline int32 // how many the last helper in vain had turned away; 0: the last was not in vain

	offers  atomic.Int32  // of help, declined since the reader last delivered
	skip    atomic.Int32  // helpers to turn away
	visits  atomic.Uint32 // helpers who came and left; odd: one has the turn
	resting atomic.Bool
	vacant  chan struct{} // one token: the reader is to go on
}

// read is the goroutine that delivers where nobody helps.
func (l *link) read(recv transport.Receiver, epoch uint64, done chan<- struct{}) {
	defer close(done)
	buf := pool.Get(readSize)
	defer buf.Release()
	l.in.turn <- struct{}{}
	l.in.parser = parser{
		src: l.conn, vec: newRawReader(l.conn), recv: recv, owner: l,
		epoch: epoch, count: &l.counters, buf: buf.Bytes(),
	}
	err := l.deliver()
	l.in.parser.uncork()
	l.in.parser = parser{}
	<-l.in.turn
	if !l.dead.Load() {
		l.mu.Lock()
		err = cmp.Or(l.state.failed, err)
		l.mu.Unlock()
		l.shut(err, false)
		return
	}
	// Closed here. Take the peer's bytes off its hands until it closes too.
	l.goOn()
	for err == nil || errors.Is(err, errStopped) {
		_, err = l.conn.Read(buf.Bytes())
	}
}

// deliver takes in frames until the stream ends or the link is closed.
func (l *link) deliver() error {
	for {
		frames, err := l.in.parser.pump()
		switch {
		case err == nil:
			if l.in.lone(frames) {
				l.rest()
			}
		case l.dead.Load():
			return cmp.Or(l.in.parser.err, errStopped)
		case !errors.Is(err, os.ErrDeadlineExceeded) || !l.goOn():
			return err
		}
	}
}

// lone says whether these frames show that one helper would do.
func (d *delivery) lone(frames int) bool {
	if frames == 0 {
		return false
	}
	if offers := d.offers.Swap(0); frames > 1 || offers != 1 {
		d.streak = 0
		return false
	}
	d.streak++
	return d.streak >= loneAnswers
}

// rest leaves the turn to helpers while they come.
func (l *link) rest() {
	d := &l.in
	d.streak = 0
	d.parser.uncork()
	d.resting.Store(true)
	before := d.visits.Load()
	<-d.turn
	pause := restTime
	timer := time.NewTimer(pause)
	for over := false; !over; {
		select {
		case <-d.vacant:
			over = true
		case <-timer.C:
			now := d.visits.Load()
			over = now == before && now%2 == 0
			before = now
			pause = min(2*pause, maxRest)
			timer.Reset(pause)
		}
	}
	timer.Stop()
	d.turn <- struct{}{}
	d.resting.Store(false)
	select {
	case <-d.vacant:
	default:
	}
}

// resume ends a rest.
func (d *delivery) resume() {
	if d.resting.Load() {
		select {
		case d.vacant <- struct{}{}:
		default:
		}
	}
}

// Help reads for a caller who waits. See transport.Helper.
func (l *link) Help(done <-chan struct{}, waiting *atomic.Int32) bool {
	d := &l.in
	if len(done) > 0 {
		return true
	}
	if d.skip.Load() > 0 && d.skip.Add(-1) >= 0 {
		return false
	}
	select {
	case d.turn <- struct{}{}:
	default:
		d.offers.Add(1)
		return false
	}
	d.visits.Add(1)
	stopped := l.readFor(done)
	there := len(done) > 0
	if there {
		d.decline = 0
	}
	d.visits.Add(1)
	<-d.turn
	if stopped || !there || waiting.Load() > 1 {
		d.resume()
	}
	return there
}

// readFor takes in frames until done has an entry, or something has stopped it.
func (l *link) readFor(done <-chan struct{}) (stopped bool) {
	d := &l.in
	until, ok := l.limit()
	if !ok {
		return true
	}
	defer d.parser.uncork()
	for len(done) == 0 {
		if _, err := d.parser.pump(); err != nil {
			if !time.Now().Before(until) {
				d.decline = min(max(2*d.decline, minDecline), maxDecline)
				d.skip.Store(d.decline)
			}
			return true
		}
	}
	return false
}

// Rouse ends the Help that is under way and the reader's rest.
// See transport.Rouser.
func (l *link) Rouse() {
	if l.in.visits.Load()%2 == 1 {
		l.mu.Lock()
		if !l.ending() {
			l.interrupt()
		}
		l.mu.Unlock()
	}
	l.in.resume()
}

// limit bounds the reads of a helper who has the turn, if he may read: not where
// nobody does any more, and not where he could not be stopped.
func (l *link) limit() (until time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, st := &l.in.parser, &l.state
	if p.src == nil || p.err != nil || l.ending() {
		return until, false
	}
	if now := time.Now(); st.readLimit.Sub(now) < helpTime/2 { // else setting it is saved
		until = now.Add(helpTime)
		if l.conn.SetReadDeadline(until) != nil {
			return until, false
		}
		st.readLimit = until
	}
	return st.readLimit, true
}

// ending says that the deadline of reads is for the reader alone. Callers hold mu.
func (l *link) ending() bool { return l.state.dead || l.state.failed != nil }

// interrupt makes whoever has the turn look around. Callers hold mu.
func (l *link) interrupt() {
	l.state.readLimit = time.Time{}
	_ = l.conn.SetReadDeadline(past)
}

// goOn lets the reader read as long as it may, if it still may.
func (l *link) goOn() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := &l.state
	if !st.until.IsZero() && !time.Now().Before(st.until) {
		return false
	}
	st.readLimit = time.Time{}
	return l.conn.SetReadDeadline(st.until) == nil
}

// adopt lets the accepting side send.
func (l *link) adopt(epoch uint64) {
	l.mu.Lock()
	l.state.epoch = epoch
	mine := l.takeFlag()
	l.mu.Unlock()
	if mine {
		l.flush(false)
	}
}

func (l *link) stopped() bool { return l.dead.Load() }

// delivered notes whether the peer has several callers at a time.
func (l *link) delivered(frames int) {
	if busy := frames > 1; busy != l.busy.Load() {
		l.busy.Store(busy)
	}
}
