package transport

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// Sink takes in the messages of a session. It is called by one goroutine at a
// time and must not wait: one poller serves many sessions. It may call any
// method of the session and its lane that does not wait, Close too, but Forget.
type Sink interface {
	// Message takes in a message and owns its payload.
	Message(m Message)

	// GoAway says that the peer takes no new calls.
	GoAway()

	// Ended is called exactly once; nothing follows. err is a *SessionError.
	Ended(err error)
}

// Message is a CALL, REPLY or CANCEL.
type Message struct {
	Kind   wire.Kind
	Flags  wire.Flags // without those that belong to single frames
	Call   uint64
	Method uint64
	Arg    uint32

	Payload *pool.Buf // nil when empty; whoever has the message releases it
}

// Limits are what a side takes in.
type Limits struct {
	MaxMessage int // bytes of a message
	MaxCalls   int // calls at once
}

// Info says what carries a session, for people.
type Info struct {
	Kind      Kind      // of the link that carries the lane; 0 while none does
	Reason    string    // why it is not a fast link; "" when it is. "peer: …" is what the peer said
	Since     time.Time // when it was settled
	Attempts  int       // at fast links
	Fallbacks int       // attempts that failed
	Stale     int       // answers that came for another attempt, ignored
	Moves     int       // of the lane, from one link to another
	Resumes   int       // control connections after the first
	Ready     int       // fast links that carry the lane or stand by
	Link      LinkInfo  // that carries the lane
	Retention Retention

	// Failover is how long the lane was without a link at its last move from a
	// link that had died: from the death, as this side noticed it, until
	// frames could leave again.
	Failover time.Duration
}

// Retention is what a lane keeps for the peer so that it can move.
type Retention struct {
	Frames, Bytes int    // sent, and not known to be taken in
	Resent        uint64 // frames sent again
	Duplicates    uint64 // frames that came again, dropped
}

// Session is two live processes that know each other: a control link, fast
// links, and a lane that one of them carries. It has no goroutine of its own.
//
// Links deliver in their own goroutines (path). What they have in common is
// guarded by mu; sinkMu makes the calls of the sink take turns, and guards what was
// taken in of messages. Locks are taken in the order sinkMu, mu, outgoing.mu. The
// fields of the first group do not change after begin.
//
// It ends in this order: end records why and lets senders fail; shutdown says
// CLOSE, closes the links, tells the sink, waits for what still works at links
// and for the links, gives back what is kept, and closes done.
type Session struct {
	network *Network
	cfg     Config
	client  bool
	addr    string // client: of the server
	id      wire.SessionID
	peer    wire.HelloMsg
	sums    bool   // payload sums are on
	unable  string // why there can never be a fast link; "" if there can
	sink    Sink
	forget  func() // server: called when it ends

	ctx     context.Context // done when the session ends
	cancel  context.CancelFunc
	settled chan struct{} // closed when a link first carries the lane
	ending  chan struct{} // closed when err is set
	done    chan struct{} // closed when nothing of the session is left
	workers sync.WaitGroup
	lane    Lane

	sinkMu sync.Mutex
	ended  bool // the sink was told

	mu        sync.Mutex
	err       *SessionError // why it ends
	tellPeer  bool          // a CLOSE is due
	control   *path         // nil: lost
	cut       error         // why it was lost
	flaps     int           // client: control links in a row that did not last
	hurry     chan struct{} // client: a token ends the pause before the next
	redialing bool          // client: a goroutine makes another
	doubted   *path         // client: the control link, where it is silent
	heard     uint32        // of doubted, since when
	silent    bool          // and that was for silence
	away      bool          // GOAWAY was said here
	fast      []*path       // READY was seen both ways; oldest first
	fallen    []ownFrame    // QP_ABANDON of links that ended here, the last at the end
	try       *attempt      // at a fast link; nil: none is under way
	next      *nextOffer    // server: the offer that waits for its end
	move      uint32        // number of the newest move
	target    *path         // client: where that goes, until it is there
	carrying  *path         // nil: the lane pauses
	paused    time.Time     // since when
	prefer    Kind          // client: what Migrate asked for; 0: a fast link
	changed   chan struct{} // closed when carrying changes
	info      Info          // what is counted
	inRow     int           // attempts that failed and links that died, since a link held
	died      bool          // the last of them was a link
	retry     *time.Timer   // of the next attempt; nil: none is planned
	lost      *time.Timer   // ends a session without links; nil: it has one
	watched   bool          // keepAlive is called, until it ends
	unwatch   func()        // of the fabric; nil: not begun

	beat, place int // guarded by rounds.mu
}

// newSession makes the session of a HELLO that came over the link, and its
// first path. It begins with begin.
func newSession(n *Network, cfg Config, client bool, m *wire.HelloMsg, link Link, both reach) (*Session, *path) {
	s := &Session{
		network: n, cfg: cfg, client: client, id: m.Session, peer: *m,
		unable: both.never, info: Info{Reason: both.why()},
		sums:    cfg.PayloadSum || m.Features&wire.FeaturePayloadSum != 0,
		settled: make(chan struct{}),
		ending:  make(chan struct{}),
		done:    make(chan struct{}),
		changed: make(chan struct{}),
		hurry:   make(chan struct{}, 1),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if both.why() != "" {
		s.inRow = 1 // as if an attempt had failed
	}
	calls := cfg.MaxCalls
	if client {
		calls = int(min(m.MaxCalls, 1<<20)) // calls go one way, and replies to them back
	}
	s.lane.init(s, calls, link.MaxPayload())
	s.control = newPath(s, link, 0)
	s.paused = time.Now()
	return s, s.control
}

// open makes the sink. It may end the session, which then tells it.
func (s *Session) open(newSink func(*Session) Sink) {
	s.sinkMu.Lock()
	defer s.sinkMu.Unlock()
	s.sink = newSink(s)
}

// begin sets the session going.
func (s *Session) begin() {
	unwatch := func() {}
	if w, ok := s.network.Fabric.(Watcher); ok && s.client && s.unable == "" {
		unwatch = w.Watch(s.portsChanged)
	}
	if !s.beginWith(unwatch) {
		unwatch()
	}
}

func (s *Session) beginWith(unwatch func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return false
	}
	s.unwatch = unwatch
	s.network.rounds.add(s, s.tickTime())
	s.watched = true
	s.plan()
	s.steer()
	return true
}

// ID names the session for as long as both processes live.
func (s *Session) ID() wire.SessionID { return s.id }

// Lane carries the messages of the session.
func (s *Session) Lane() *Lane { return &s.lane }

// Limits is what this side takes in, as it told the peer.
func (s *Session) Limits() Limits {
	return Limits{MaxMessage: s.cfg.MaxMessage, MaxCalls: s.cfg.MaxCalls}
}

// PeerLimits is what the peer takes in.
func (s *Session) PeerLimits() Limits {
	const most = 1 << 30 // of either, so that it fits an int anywhere
	return Limits{MaxMessage: int(min(s.peer.MaxMessage, most)), MaxCalls: int(min(s.peer.MaxCalls, most))}
}

// Transport says what carries the session.
func (s *Session) Transport() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := s.info
	info.Ready = len(s.fast)
	if p := s.carrying; p != nil {
		info.Kind, info.Link, info.Since = p.link.Kind(), p.link.Info(), p.since
	}
	info.Retention = s.lane.retention()
	return info
}

// GoAway tells the peer that this side takes no new calls.
func (s *Session) GoAway() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.away = true
	s.say(wire.GoAway, nil)
	return nil
}

// Close ends the session and returns at once; Done says when nothing of it is
// left. The peer is told err; nil is the regular end. Only the first end of a
// session counts. Messages that were sent just before may be lost.
func (s *Session) Close(err error) {
	if err == nil {
		err = net.ErrClosed
	}
	s.end("closed here", err, true)
}

// Done is closed when the session has ended, its links are closed and the
// sink was told.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is nil while the session lives, then the *SessionError.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return nil
	}
	return s.err
}

// end records why the session ends; only the first counts.
func (s *Session) end(what string, err error, tellPeer bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(what, err, tellPeer)
}

func (s *Session) endLocked(what string, err error, tellPeer bool) {
	if s.err != nil {
		return
	}
	s.err = &SessionError{What: what, Err: err}
	s.tellPeer = tellPeer
	for _, t := range []*time.Timer{s.retry, s.lost} {
		if t != nil {
			t.Stop()
		}
	}
	if s.watched {
		s.network.rounds.remove(s)
	}
	s.cancel()
	close(s.ending)
	s.lane.end(s.err)
	go s.shutdown()
}

// spawn runs fn beside the session, which waits for it at its end. It does
// nothing once the session has ended. Callers hold mu.
func (s *Session) spawn(fn func()) {
	if s.err == nil {
		s.workers.Go(fn)
	}
}

// farewell bounds how long an ending session tries to tell its peer why.
const farewell = 100 * time.Millisecond

func (s *Session) shutdown() {
	s.mu.Lock()
	err, tell, unwatch := s.err, s.tellPeer, s.unwatch
	paths := append([]*path(nil), s.fast...)
	if s.control != nil {
		paths = append([]*path{s.control}, paths...)
	}
	s.control, s.fast, s.carrying = nil, nil, nil
	s.mu.Unlock()

	if tell {
		// On all of them: one may carry nothing, and nobody know yet.
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		for _, p := range paths {
			_ = s.sendOwn(ctx, p.link, ownFrame{wire.Close, closeText(err.Err)})
		}
		cancel()
	}
	for _, p := range paths {
		if tell || p.fast() {
			p.link.Close(nil)
		} else {
			p.link.Close(err) // at once: there is nothing left to say
		}
	}
	s.tellSink(err)
	s.workers.Wait()
	for _, p := range paths {
		<-p.link.Done()
	}
	s.lane.reset()
	if unwatch != nil {
		unwatch()
	}
	if s.forget != nil {
		s.forget()
	}
	close(s.done)
}

func closeText(err error) []byte {
	text := ""
	if !errors.Is(err, net.ErrClosed) {
		text = err.Error()
	}
	return wire.AppendFault(nil, text, nil)
}

func (s *Session) tellSink(err *SessionError) {
	s.sinkMu.Lock()
	defer s.sinkMu.Unlock()
	s.ended = true
	s.sink.Ended(err)
}

// take takes in a frame of the lane, and gives the message that it completes to
// the sink, in the order of frames whatever link they came by.
func (s *Session) take(p *path, h *wire.Header, payload []byte) error {
	s.sinkMu.Lock()
	defer s.sinkMu.Unlock()
	var m Message
	whole, due, err := s.lane.in.frame(p, h, payload, &m)
	if due {
		s.mu.Lock()
		s.post(p, ownFrame{kind: wire.Ack})
		s.mu.Unlock()
	}
	if !whole {
		return err
	}
	if s.ended {
		if m.Payload != nil {
			m.Payload.Release()
		}
		return err
	}
	s.sink.Message(m)
	return err
}

func (s *Session) closedByPeer(payload []byte) error {
	text, _, err := wire.ParseFault(payload)
	if err != nil {
		return err
	}
	if text == "" {
		err = net.ErrClosed
	} else {
		err = &PeerError{Text: text}
	}
	s.end("closed by the peer", err, false)
	return nil
}

func (s *Session) goneAway() {
	s.sinkMu.Lock()
	defer s.sinkMu.Unlock()
	if !s.ended {
		s.sink.GoAway()
	}
}
