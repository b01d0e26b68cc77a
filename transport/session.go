package transport

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// Sink takes in the messages of a session. It is called by one goroutine at a
// time and must not wait: one poller serves many sessions. It may call any
// method of the session and its lane that does not wait, Close too.
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
	Kind      Kind      // of the link that carries the lane; 0 before that is settled
	Reason    string    // why it is not a fast link; "" when it is. "peer: …" is what the peer said
	Since     time.Time // when it was settled
	Attempts  int       // at a fast link
	Fallbacks int       // attempts that failed
	Stale     int       // answers that came for another attempt, ignored
	Moves     int       // of the lane, from a fast link and to one
	Link      LinkInfo
	Retention Retention
}

// Retention is what a lane keeps for the peer so that it can move. All is 0
// where it cannot.
type Retention struct {
	Frames, Bytes int    // sent, and not known to be taken in
	Resent        uint64 // frames sent again
	Duplicates    uint64 // frames that came again, dropped
}

// Session is two live processes that know each other: a control link, maybe a
// fast link, and a lane.
//
// Its goroutine (run) sends the frames of the session and ends it. Links
// deliver in their own goroutines (receiver). What they have in common is
// guarded by mu; sinkMu makes the calls of the sink take turns and is taken
// before mu. The fields of the first group never change after start.
//
// It ends in this order: end records why; run says CLOSE, closes both links,
// tells the sink, waits for what still works at a fast link and for the links,
// gives back what was half received, and closes done.
type Session struct {
	network *Network
	cfg     Config
	client  bool
	control Link
	newSink func(*Session) Sink

	ctx      context.Context // done when the session ends
	cancel   context.CancelFunc
	wake     chan struct{} // one token: there are jobs
	greeted  chan struct{} // closed when HELLO has been taken in
	settled  chan struct{} // closed when a link carries the lane
	ending   chan struct{} // closed when err is set
	done     chan struct{} // closed when nothing of the session is left
	deadline *time.Timer   // of HELLO
	lease    *time.Timer   // of the attempt; nil while there is none; guarded by mu
	retry    *time.Timer   // of the next attempt; likewise
	workers  sync.WaitGroup

	// set once by the frame that says HELLO, before greeted is closed
	id     wire.SessionID
	peer   wire.HelloMsg
	sums   bool   // payload sums are on
	unable string // why this side cannot have a fast link; of the client set by start
	lane   Lane

	sinkMu sync.Mutex
	sink   Sink // nil before HELLO
	ended  bool // the sink was told

	mu       sync.Mutex
	err      *SessionError // why it ends
	tellPeer bool          // a CLOSE is due
	jobs     []job
	pongs    int // of them
	attempt  attempt
	half     Half // of the attempt
	fast     Link // of the attempt
	holds    bool // one of Network.settingUp
	since    time.Time
}

// job is a frame of the session that waits to be sent, or with run what waits
// for the frames before it to be sent.
type job struct {
	link    Link
	kind    wire.Kind
	payload []byte
	run     func()
}

func newSession(n *Network, cfg Config, control Link, client bool, newSink func(*Session) Sink) *Session {
	s := &Session{
		network: n, cfg: cfg, client: client, control: control, newSink: newSink,
		wake:    make(chan struct{}, 1),
		greeted: make(chan struct{}),
		settled: make(chan struct{}),
		ending:  make(chan struct{}),
		done:    make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.attempt.client = client
	s.lane.s = s
	if client {
		rand.Read(s.id[:])
	}
	return s
}

// start sets the session going.
func (s *Session) start() {
	s.control.Number(&s.lane.numbers)
	s.mu.Lock()
	s.deadline = time.AfterFunc(s.cfg.HandshakeTimeout, s.helloTimeout)
	if s.client {
		s.unable = s.noFastLink()
		s.post(s.control, wire.Hello, s.hello())
	}
	s.mu.Unlock()
	go s.run()
	s.control.Start(&receiver{s: s, link: s.control})
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
	a := &s.attempt
	info := Info{Reason: a.reason, Since: s.since, Attempts: a.made, Fallbacks: a.failed, Stale: a.stale, Moves: a.moves}
	if c := s.lane.bound.Load(); c != nil {
		info.Kind, info.Link = c.link.Kind(), c.link.Info()
	}
	info.Retention = s.lane.numbers.info()
	return info
}

// GoAway tells the peer that this side takes no new calls.
func (s *Session) GoAway() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.post(s.control, wire.GoAway, nil)
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

func (s *Session) setupError(addr string) error {
	step := "fast link"
	if !s.isGreeted() {
		step = "hello"
	}
	return &SetupError{Addr: addr, Step: step, Err: s.Err()}
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
	if s.deadline != nil {
		s.deadline.Stop()
	}
	if s.lease != nil {
		s.lease.Stop()
	}
	if s.retry != nil {
		s.retry.Stop()
	}
	s.cancel()
	close(s.ending)
}

func (s *Session) helloTimeout() {
	s.end("closed here", errors.New("no HELLO in time"), true)
}

// post hands a job to run. Callers hold mu.
func (s *Session) post(link Link, kind wire.Kind, payload []byte) {
	s.postJob(job{link: link, kind: kind, payload: payload})
}

func (s *Session) postJob(j job) {
	s.jobs = append(s.jobs, j)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Session) run() {
	for {
		select {
		case <-s.wake:
			s.mu.Lock()
			jobs := s.jobs
			s.jobs, s.pongs = nil, 0
			s.mu.Unlock()
			for _, j := range jobs {
				s.work(j)
			}
		case <-s.ending:
			s.shutdown()
			return
		}
	}
}

func (s *Session) work(j job) {
	if j.run != nil {
		j.run()
		return
	}
	// The link that cannot send tells its receiver why.
	_ = sendControl(s.ctx, j.link, j.kind, j.payload)
}

func sendControl(ctx context.Context, link Link, kind wire.Kind, payload []byte) error {
	slot, err := link.Reserve(ctx, Control, len(payload))
	if err != nil {
		return err
	}
	copy(slot.Payload, payload)
	if err = link.Commit(slot, &wire.Header{Kind: kind}); err != nil {
		link.Discard(slot)
	}
	return err
}

// farewell bounds how long an ending session tries to tell its peer why.
const farewell = 100 * time.Millisecond

func (s *Session) shutdown() {
	s.mu.Lock()
	err, tell, fast, half := s.err, s.tellPeer, s.fast, s.half
	s.fast, s.half = nil, nil
	s.dropHold()
	s.mu.Unlock()

	if tell {
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		_ = sendControl(ctx, s.control, s.lastWord(), closeText(err.Err))
		cancel()
		s.control.Close(nil)
	} else {
		s.control.Close(err) // at once: there is nothing left to say
	}
	if fast != nil {
		fast.Close(nil)
	}
	s.tellSink(err)
	if half != nil {
		half.Abort()
	}
	s.workers.Wait()
	<-s.control.Done()
	s.lane.reset()
	close(s.done)
}

// lastWord is the kind of frame that tells the peer of the end.
func (s *Session) lastWord() wire.Kind {
	if !s.client && !s.isGreeted() {
		return wire.Refuse
	}
	return wire.Close
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
	if s.sink != nil {
		s.sink.Ended(err)
	} else if !s.client && s.cfg.OnSetupError != nil {
		remote := s.control.Info().Remote
		s.cfg.OnSetupError(remote, &SetupError{Addr: remote.String(), Step: "hello", Err: err})
	}
}

// deliver gives a message to the sink.
func (s *Session) deliver(m Message) {
	s.sinkMu.Lock()
	defer s.sinkMu.Unlock()
	if s.ended {
		if m.Payload != nil {
			m.Payload.Release()
		}
		return
	}
	s.sink.Message(m)
}

// linkEnded is told by a receiver that its link is dead.
func (s *Session) linkEnded(link Link, err error) {
	if link == s.control {
		if err == nil {
			err = net.ErrClosed
		} else if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // a regular end is said with CLOSE
		}
		s.end("control link", err, false)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if link == s.fast && err != nil {
		_ = s.stepLocked(attemptEvent{is: evLinkDown, text: err.Error(), err: err})
	}
}
