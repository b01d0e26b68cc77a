package transport

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// attempt is a try at a fast link. One goroutine, of its own, takes it from
// PREPARING to READY, or to the reason why not; what the peer says reaches it
// by the channels. docs/PROTOCOL.md, "Fast links", draws it.
//
// The epoch names it. What comes for another epoch is counted and ignored.
type attempt struct {
	epoch     uint64
	from      *path         // the control link it goes by
	cancel    func(error)   // when that is lost
	answer    chan wire.QP  // one: QP_ANSWER
	abandoned chan string   // one: QP_ABANDON
	ready     chan struct{} // one: READY
	narrow    chan struct{} // one: what is kept may fit by now
	told      bool          // the peer knows that it is over; of its goroutine
}

// startAttempt lets work run as the attempt of that epoch. Callers hold mu.
func (s *Session) startAttempt(epoch uint64, work func(ctx context.Context, a *attempt) (*path, error)) {
	limit := attemptTimeout
	if !s.client {
		limit = leaseTimeout
	}
	parent, cancel := context.WithCancelCause(s.ctx)
	ctx, stop := context.WithTimeoutCause(parent, limit, fmt.Errorf("the fast link was not ready within %v", limit))
	a := &attempt{
		epoch: epoch, from: s.control, cancel: cancel,
		answer:    make(chan wire.QP, 1),
		abandoned: make(chan string, 1),
		ready:     make(chan struct{}, 1),
		narrow:    make(chan struct{}, 1),
	}
	s.try = a
	s.info.Attempts++
	s.spawn(func() {
		defer cancel(nil)
		defer stop()
		p, err := work(ctx, a)
		if !s.concluded(a, p, err) && p != nil {
			p.link.Close(nil)
			<-p.link.Done()
		}
	})
}

func newEpoch() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return max(1, binary.LittleEndian.Uint64(b[:]))
}

// offer is the client's attempt. It may return a path with an error.
func (s *Session) offer(ctx context.Context, a *attempt) (*path, error) {
	half, err := s.prepare(ctx, a)
	if err != nil {
		return nil, err
	}
	own := half.Offer()
	own.Epoch = a.epoch
	s.tell(a, wire.QPOffer, own.Append(nil))
	peer, err := await(ctx, a, a.answer, nil)
	if err != nil {
		half.Abort()
		return nil, err
	}
	p, err := s.connect(ctx, a, half, peer)
	if err != nil {
		return p, err
	}
	if err := s.sendOwn(ctx, p.link, ownFrame{kind: wire.Ready}); err != nil {
		return p, fmt.Errorf("fast link: %w", err)
	}
	_, err = await(ctx, a, a.ready, p.gone)
	return p, err
}

// accept is the server's attempt.
func (s *Session) accept(ctx context.Context, a *attempt, peer wire.QP) (*path, error) {
	if s.network.settingUp.Add(1) > maxAttempts {
		s.network.settingUp.Add(-1)
		return nil, fmt.Errorf("%d fast links are being set up already", maxAttempts)
	}
	defer s.network.settingUp.Add(-1)
	half, err := s.prepare(ctx, a)
	if err != nil {
		return nil, err
	}
	own := half.Offer()
	own.Epoch = a.epoch
	p, err := s.connect(ctx, a, half, peer)
	if err != nil {
		return p, err
	}
	s.tell(a, wire.QPAnswer, own.Append(nil))
	if _, err := await(ctx, a, a.ready, p.gone); err != nil {
		return p, err
	}
	s.mu.Lock()
	s.spawn(func() { s.askAcks(p) })
	s.mu.Unlock()
	for !s.lane.out.fits(p.link.MaxPayload()) {
		if _, err := await(ctx, a, a.narrow, p.gone); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (s *Session) prepare(ctx context.Context, a *attempt) (Half, error) {
	half, err := s.network.Fabric.Prepare(ctx, a.from.link.Info().Local)
	if err == nil && ctx.Err() != nil {
		half.Abort()
		err = context.Cause(ctx)
	}
	return half, err
}

func (s *Session) connect(ctx context.Context, a *attempt, half Half, peer wire.QP) (*path, error) {
	type result struct {
		link Link
		err  error
	}
	made := make(chan result, 1)
	s.workers.Go(func() {
		link, err := half.Connect(ctx, a.epoch, peer)
		made <- result{link, err}
	})
	r, err := await(ctx, a, made, nil)
	if err != nil { // Connect may take its time
		s.workers.Go(func() {
			if r := <-made; r.err == nil {
				r.link.Close(nil)
				<-r.link.Done()
			}
		})
		return nil, err
	}
	if r.err != nil {
		return nil, r.err
	}
	link := r.link
	p := newPath(s, link, a.epoch)
	s.limit(link.MaxPayload())
	link.Start(p)
	return p, nil
}

// await waits for what the peer says, for its giving up, for the link's death
// and for the end of the attempt.
func await[T any](ctx context.Context, a *attempt, what <-chan T, gone <-chan struct{}) (v T, err error) {
	select {
	case v = <-what:
	case text := <-a.abandoned:
		a.told = true
		err = &PeerError{text}
	case <-gone:
		err = errors.New("the fast link died before it was ready")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return v, err
}

// tell sends a frame of the attempt by its control link, unless that is lost.
func (s *Session) tell(a *attempt, kind wire.Kind, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.control == a.from {
		s.post(s.control, ownFrame{kind, payload})
	}
}

// abandonText fits what the peer takes in of an error, epoch included.
func abandonText(epoch uint64, why string) []byte {
	why = why[:min(len(why), wire.MaxErrorText-8)]
	return wire.AppendFault(nil, why, binary.LittleEndian.AppendUint64(nil, epoch))
}

// concluded takes in how an attempt ended, and says whether the link is wanted.
func (s *Session) concluded(a *attempt, p *path, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.try = nil
	if s.err != nil {
		return false
	}
	if next := s.next; next != nil {
		s.next = nil
		defer s.offeredLocked(next.from, next.qp)
	}
	if err == nil && p.isGone() {
		err = errors.New("the fast link died before it was ready")
	}
	if err == nil {
		s.arrived(p)
		return true
	}
	if !a.told && !errors.Is(err, errSuperseded) && s.control == a.from {
		s.post(s.control, ownFrame{wire.QPAbandon, abandonText(a.epoch, err.Error())})
	}
	s.info.Fallbacks++
	if s.control == a.from && s.control != s.doubted { // else it says nothing of fast links
		s.inRow++
		s.died = false
	}
	s.setReason(err)
	s.relimit()
	if s.cfg.FastLink == RequireFastLink && !s.isSettled() {
		s.endLocked("closed here", &NoFastLinkError{Reason: s.info.Reason}, true)
	}
	s.plan()
	s.steer()
	return false
}

// arrived takes in a fast link over which READY went one way; the server's
// READY says that it takes MOVE.
func (s *Session) arrived(p *path) {
	p.since = time.Now()
	s.fast = append(s.fast, p)
	s.relimit()
	if !s.client {
		s.post(p, ownFrame{kind: wire.Ready})
	} else {
		s.spawn(func() { s.askAcks(p) })
	}
	s.alive()
	s.plan()
	s.steer()
}

// setReason notes why no fast link carries the lane.
func (s *Session) setReason(err error) {
	if len(s.fast) > 0 {
		return
	}
	var peer *PeerError
	if s.info.Reason = err.Error(); errors.As(err, &peer) {
		s.info.Reason = "peer: " + peer.Text
	}
}

func (p *path) isGone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// nextOffer is an offer, and the control link that it came by.
type nextOffer struct {
	from *path
	qp   wire.QP
}

// offered takes in QP_OFFER.
func (s *Session) offered(p *path, qp wire.QP) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offeredLocked(p, qp)
}

var errSuperseded = errors.New("the client has made another offer")

func (s *Session) offeredLocked(p *path, qp wire.QP) {
	why := ""
	switch {
	case s.control != p || s.err != nil:
		return
	case s.try != nil:
		// The client makes one at a time: it has given the earlier one up.
		s.next = &nextOffer{p, qp}
		s.try.cancel(errSuperseded)
		return
	case len(s.fast) > maxStandby:
		why = fmt.Sprintf("there are %d fast links already", len(s.fast))
	}
	if why != "" {
		s.post(p, ownFrame{wire.QPAbandon, abandonText(qp.Epoch, why)})
		return
	}
	s.startAttempt(qp.Epoch, func(ctx context.Context, a *attempt) (*path, error) { return s.accept(ctx, a, qp) })
}

// answered takes in QP_ANSWER.
func (s *Session) answered(qp wire.QP) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.try == nil || s.try.epoch != qp.Epoch || !offer1(s.try.answer, qp) {
		s.info.Stale++
	}
}

// ready takes in READY.
func (s *Session) ready(p *path) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.try == nil || s.try.epoch != p.epoch || !offer1(s.try.ready, struct{}{}) {
		s.info.Stale++
	}
}

// abandoned takes in QP_ABANDON: of an attempt, or of a link that the peer has
// left.
func (s *Session) abandoned(epoch uint64, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.try != nil && s.try.epoch == epoch && offer1(s.try.abandoned, text) {
		return
	}
	for _, p := range s.fast {
		if p.epoch == epoch {
			p.left = true
			p.link.Close(&PeerError{text})
			return
		}
	}
	if s.client || s.info.Attempts > 0 {
		s.info.Stale++
		return
	}
	s.setReason(&PeerError{text}) // the client did not come as far as an offer
}

// narrowed says that what is kept has come to fit every link.
func (s *Session) narrowed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteNarrowed()
	s.steer()
}

func (s *Session) noteNarrowed() {
	if s.try != nil {
		offer1(s.try.narrow, struct{}{})
	}
}

// offer1 puts v into a channel of one, unless it is full.
func offer1[T any](ch chan<- T, v T) bool {
	select {
	case ch <- v:
		return true
	default:
		return false
	}
}

// limit bounds the payloads of frames by what another link takes.
func (s *Session) limit(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lane.out.setLimit(min(bytes, int(s.lane.out.limit.Load())))
}

// relimit bounds them by what the links that are left take. Callers hold mu.
func (s *Session) relimit() {
	if s.try != nil {
		return // it bounds them
	}
	bytes := s.lane.widest
	for _, p := range s.fast {
		bytes = min(bytes, p.link.MaxPayload())
	}
	s.lane.out.setLimit(bytes)
}
