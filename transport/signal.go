package transport

import "sync/atomic"

// Signal tells one goroutine, which waits for it or looks whether it is there, that
// something has happened. Who finds it there pays for no channel. The zero value is
// ready for use, again and again. Any goroutine may set it.
type Signal struct {
	state atomic.Uint32
	woken chan struct{} // made by who waits first, before others see awaited
}

// States of a Signal.
const (
	unset   = iota
	set     // and nobody waits
	awaited // woken gets an entry
)

// Set sets the signal, and wakes who waits. It does not wait.
func (s *Signal) Set() {
	for {
		switch s.state.Load() {
		case unset:
			if s.state.CompareAndSwap(unset, set) {
				return
			}
		case set:
			return
		case awaited:
			if s.state.CompareAndSwap(awaited, unset) {
				s.woken <- struct{}{}
				return
			}
		}
	}
}

// IsSet says whether the signal is there; Await will not wait then.
func (s *Signal) IsSet() bool { return s.state.Load() == set }

// Await takes the signal: nil where it is set, else a channel that gets an entry when
// it is, to be received, or to be left by Cancel.
func (s *Signal) Await() <-chan struct{} {
	if s.IsSet() {
		s.state.Store(unset)
		return nil
	}
	if s.woken == nil {
		s.woken = make(chan struct{}, 1)
	}
	if !s.state.CompareAndSwap(unset, awaited) {
		s.state.Store(unset)
		return nil
	}
	return s.woken
}

// Wait waits until the signal is set, and takes it.
func (s *Signal) Wait() {
	if woken := s.Await(); woken != nil {
		<-woken
	}
}

// Cancel ends what Await began, where it is sure that nobody sets the signal.
func (s *Signal) Cancel() { s.state.Store(unset) }
