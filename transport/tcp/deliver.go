package tcp

import (
	"cmp"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/transport"
)

const (
	// restTime is how long the reader leaves the connection alone before it looks
	// whether helpers came, and twice as long each time that one did, up to maxRest.
	// It goes on if none did, and if one has been there all the time. So nobody
	// takes in what arrives for 2*maxRest at most, and a Help lasts as long at most.
	// Every timer costs: with one per millisecond a lone caller made 15 % fewer calls.
	restTime = 500 * time.Microsecond
	maxRest  = 5 * time.Millisecond

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
// time, each until he has what he waits for. The reader goes on when a helper says
// that others wait, when the link is roused or ends, and when its timer finds that
// none came or that one is there in vain.
//
// Whoever has the turn may be waiting in Read. To stop him, a deadline in the past
// is set; the reader, who goes on then, clears it, and no helper reads before he
// has. Only the reader ends the link because of what was read.
type delivery struct {
	turn   chan struct{} // full: somebody has it; guards parser, streak and decline
	parser parser        // src is nil before the reader begins and when it has ended

	streak  int   // frames in a row that a lone helper waited for
	decline int32 // how many the last helper in vain had turned away; 0: the last was not in vain

	offers  atomic.Int32  // of help, declined since the reader last delivered
	skip    atomic.Int32  // helpers to turn away
	visits  atomic.Uint32 // helpers who came and left; odd: one has the turn
	resting bool          // guarded by link.mu
	vacant  chan struct{} // one token: the reader is to go on
}

// read is the goroutine that delivers where nobody helps.
func (l *link) read(recv transport.Receiver, epoch uint64, done chan<- struct{}) {
	defer close(done)
	l.in.turn <- struct{}{}
	p := &l.in.parser
	*p = parser{
		src: l.conn, vec: newRawReader(l.conn), recv: recv, owner: l,
		epoch: epoch, count: &l.counters,
	}
	err := l.deliver()
	p.uncork()
	p.empty()
	p.give()
	*p = parser{}
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
	if errors.Is(err, errStopped) {
		_, _ = io.Copy(io.Discard, l.conn)
	}
}

// deliver takes in frames until the stream ends or the link is closed.
func (l *link) deliver() error {
	canStop := l.goOn() // else nobody may help
	for {
		frames, err := l.in.parser.pump()
		switch {
		case err == nil:
			if canStop && l.in.lone(frames) {
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
	offers := d.offers.Load()
	if offers > 0 {
		d.offers.Store(0) // one who comes now is not counted: he comes again
	}
	if frames > 1 || offers != 1 {
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
	l.setResting(true)
	visits := d.visits.Load()
	<-d.turn
	inVain := d.sleep(visits)
	l.setResting(false)
	d.turn <- struct{}{}
	select {
	case <-d.vacant:
	default:
	}
	if inVain {
		d.decline = min(max(2*d.decline, minDecline), maxDecline)
		d.skip.Store(d.decline)
	}
}

// sleep returns when the reader is to go on, and says whether a helper is there
// who has waited for long. So many visits there were before.
func (d *delivery) sleep(visits uint32) (inVain bool) {
	pause := restTime
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-d.vacant:
			return false
		case <-timer.C:
		}
		before := visits
		if visits = d.visits.Load(); visits == before {
			return visits%2 == 1
		}
		pause = min(2*pause, maxRest)
		timer.Reset(pause)
	}
}

// setResting opens the connection to helpers, or closes it and stops the one who
// is there.
func (l *link) setResting(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in.resting = on
	if !on && l.in.visits.Load()%2 == 1 {
		l.interrupt()
	}
}

// resume ends a rest, or the next if there is none: the reader may be about to.
func (d *delivery) resume() {
	select {
	case d.vacant <- struct{}{}:
	default:
	}
}

// Help reads for a caller who waits. See transport.Helper.
func (l *link) Help(done *transport.Signal, waiting *atomic.Int32) bool {
	d := &l.in
	if done.IsSet() {
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
	stopped := l.admit() && l.readFor(done)
	there := done.IsSet()
	if there {
		d.decline = 0
	}
	d.visits.Add(1)
	if stopped || waiting.Load() > 1 {
		d.resume() // before the turn is free: who goes on then has seen it
	}
	<-d.turn
	return there
}

// readFor takes in frames until done is set, or something has stopped it.
func (l *link) readFor(done *transport.Signal) (stopped bool) {
	p := &l.in.parser
	p.help(true)
	defer func() {
		p.help(false)
		p.uncork()
	}()
	for !done.IsSet() {
		if _, err := p.pump(); err != nil {
			return true
		}
	}
	return false
}

// admit says whether a helper who has the turn may read. The reader may want it
// back already.
func (l *link) admit() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.in.resting && !l.state.interrupted && !l.ending()
}

// Rouse ends the reader's rest, and by that the Help that is under way.
// See transport.Rouser.
func (l *link) Rouse() { l.in.resume() }

// ending says that the reader alone may read, and for how long. Callers hold mu.
func (l *link) ending() bool { return l.state.dead || l.state.failed != nil }

// interrupt stops whoever reads. Callers hold mu.
func (l *link) interrupt() {
	l.state.interrupted = true
	_ = l.conn.SetReadDeadline(past)
}

// goOn lets the reader read as long as it may, if it still may.
func (l *link) goOn() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.interrupted = false
	until := l.state.until
	return (until.IsZero() || time.Now().Before(until)) && l.conn.SetReadDeadline(until) == nil
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
	l.crowd.Arrived(frames)
}
