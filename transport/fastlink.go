package transport

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// errEnded is what step says when the session has ended, before or by it.
var errEnded = errors.New("transport: session ended")

// step tells the attempt what happened and does what it answers.
func (s *Session) step(ev attemptEvent) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stepLocked(ev)
}

func (s *Session) stepLocked(ev attemptEvent) error {
	if s.err != nil {
		return errEnded
	}
	before := s.attempt.state
	todo, err := s.attempt.on(ev)
	if s.attempt.state != before {
		s.lane.in.Store(nil)
	}
	for _, act := range todo {
		s.do(act, ev)
	}
	if !s.attempt.underWay() {
		s.dropHold()
		if s.lease != nil {
			s.lease.Stop()
			s.lease = nil
		}
	}
	s.planRetry()
	if err == nil && s.err != nil {
		err = errEnded
	}
	return err
}

func (s *Session) do(act attemptAct, ev attemptEvent) {
	epoch := s.attempt.epoch
	switch act.op {
	case opPrepare:
		s.startLease(attemptTimeout)
		s.workers.Go(func() { s.prepare(epoch) })
	case opAccept:
		s.startLease(leaseTimeout)
		s.holds = s.network.settingUp.Add(1) <= maxAttempts
		if !s.holds {
			s.network.settingUp.Add(-1)
		}
		holds := s.holds
		s.workers.Go(func() { s.accept(epoch, act.qp, holds) })
	case opConnect:
		half := s.half
		s.half = nil
		s.workers.Go(func() { s.connect(epoch, half, act.qp) })
	case opStart:
		s.fast.Number(&s.lane.numbers)
		s.fast.Start(&receiver{s: s, link: s.fast})
	case opOffer:
		s.post(s.control, wire.QPOffer, act.qp.Append(nil))
	case opAnswer:
		s.post(s.control, wire.QPAnswer, act.qp.Append(nil))
	case opReady:
		s.post(s.fast, wire.Ready, nil)
	case opAbandon:
		details := binary.LittleEndian.AppendUint64(nil, act.epoch)
		s.post(s.control, wire.QPAbandon, wire.AppendFault(nil, act.text, details))
	case opRelease:
		s.release()
	case opBindTCP:
		if s.client {
			s.postJob(job{run: s.settleTCP}) // no call may overtake QP_ABANDON
		} else {
			s.settle(s.control)
		}
	case opBindFast:
		s.settle(s.fast)
	case opRise:
		s.rise()
	case opLeave:
		s.fast.Close(errPeerLeft)
	case opFall:
		s.fall(ev.err, act.onFast)
	case opResume, opResend:
		s.land(act.op == opResend, act.next)
	}
}

func (s *Session) settleTCP() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.lane.bound.Load(); s.err == nil && (c == nil || c.link != s.control) {
		s.settle(s.control)
	}
}

// settle binds the lane. A server may settle on TCP after it was on the fast
// link, while no frame of the lane has passed. Callers hold mu.
func (s *Session) settle(link Link) {
	if link == s.control && s.cfg.FastLink == RequireFastLink {
		s.endLocked("closed here", &NoFastLinkError{Reason: s.attempt.reason}, true)
		return
	}
	if c := s.lane.bound.Load(); c != nil && c.link == link && c.open {
		return
	}
	s.lane.gate.Lock()
	s.lane.bind(link, true)
	s.lane.gate.Unlock()
	s.since = time.Now()
	select {
	case <-s.settled:
	default:
		close(s.settled)
	}
}

// startLease bounds the attempt's time.
func (s *Session) startLease(d time.Duration) {
	epoch := s.attempt.epoch
	s.lease = time.AfterFunc(d, func() {
		_ = s.step(attemptEvent{is: evTimeout, epoch: epoch, text: fmt.Sprintf("the fast link was not ready within %v", d)})
	})
}

func (s *Session) dropHold() {
	if s.holds {
		s.holds = false
		s.network.settingUp.Add(-1)
	}
}

// release gives back half and link of an attempt that failed.
func (s *Session) release() {
	half, link := s.half, s.fast
	s.half, s.fast = nil, nil
	if half != nil {
		s.workers.Go(half.Abort)
	}
	if link != nil {
		link.Close(nil)
	}
}

// begin starts the client's attempt.
func (s *Session) begin() error {
	return s.step(attemptEvent{is: evBegin, epoch: newEpoch()})
}

func newEpoch() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return max(1, binary.LittleEndian.Uint64(b[:]))
}

// prepare is the client's first half of the work at a link. Like accept and
// connect it runs in a goroutine of its own, for it may take a second, and
// reports exactly one event.
func (s *Session) prepare(epoch uint64) {
	half, err := s.network.Fabric.Prepare(s.ctx, s.control.Info().Local)
	if err != nil {
		s.failed(epoch, err)
		return
	}
	s.mu.Lock()
	ended := s.err != nil
	if !ended {
		s.half = half
		_ = s.stepLocked(attemptEvent{is: evPrepared, epoch: epoch, qp: half.Offer()})
	}
	s.mu.Unlock()
	if ended {
		half.Abort()
	}
}

// accept is the server's work at a link.
func (s *Session) accept(epoch uint64, peer wire.QP, holds bool) {
	if !holds {
		s.failed(epoch, fmt.Errorf("%d fast links are being set up already", maxAttempts))
		return
	}
	half, err := s.network.Fabric.Prepare(s.ctx, s.control.Info().Local)
	if err != nil {
		s.failed(epoch, err)
		return
	}
	offer := half.Offer()
	s.connectHalf(epoch, half, peer, offer)
}

// connect is the client's second half.
func (s *Session) connect(epoch uint64, half Half, peer wire.QP) {
	s.connectHalf(epoch, half, peer, wire.QP{})
}

func (s *Session) connectHalf(epoch uint64, half Half, peer, own wire.QP) {
	link, err := half.Connect(s.ctx, epoch, peer)
	if err != nil {
		s.failed(epoch, err)
		return
	}
	s.mu.Lock()
	ended := s.err != nil
	if !ended {
		s.fast = link
		_ = s.stepLocked(attemptEvent{is: evConnected, epoch: epoch, qp: own})
	}
	s.mu.Unlock()
	if ended {
		link.Close(nil)
	}
	<-link.Done() // so that the session's Done says that the link is gone
}

func (s *Session) failed(epoch uint64, err error) {
	_ = s.step(attemptEvent{is: evFailed, epoch: epoch, text: err.Error()})
}
