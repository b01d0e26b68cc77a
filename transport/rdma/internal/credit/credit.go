// Package credit counts receives that are posted at a peer, so that no frame
// is sent without one (RNR costs a hundred round trips). Counts are cumulative
// and modulo 2^32, as in the credit field of docs/PROTOCOL.md.
package credit

import (
	"fmt"
	"sync/atomic"
)

// Class says how far down a frame may use the window.
type Class uint8

// Classes, by what they leave for the others.
const (
	Data   Class = iota // frames of a lane: leave Reserve
	Link                // frames of the link or session: leave one
	Credit              // CREDIT frames: leave nothing
)

// Reserve is how many receives are kept for frames of the link itself.
const Reserve = 4

// MinDepth is the smallest window that cannot lock up: half of it, the credit
// owed before a CREDIT frame is sent, must be within reach of Data.
const MinDepth = 2 * Reserve

var leave = [...]uint32{Data: Reserve, Link: 1, Credit: 0}

// In says whether a frame of the class may be sent in so much room.
func (c Class) In(room uint32) bool { return room > leave[c] }

// Window is what a sender may still send. Take is for one goroutine at a
// time, the flusher; Grant for one, the poller; Room for any.
type Window struct {
	depth   uint32
	sent    atomic.Uint32
	granted atomic.Uint32
}

// NewWindow returns the window of a peer that posted depth receives.
func NewWindow(depth uint32) *Window {
	w := &Window{depth: depth}
	w.granted.Store(depth)
	return w
}

// Room is how many receives are known to be posted and not used.
func (w *Window) Room() uint32 { return w.granted.Load() - w.sent.Load() }

// Take counts n frames that are about to be sent, for which there is room.
// Whoever takes before it sends knows that no credit can come back too early.
func (w *Window) Take(n uint32) { w.sent.Add(n) }

// Grant takes in the credit field of a frame. Old values are ignored. A value
// that grants more than the peer has receives is an error.
func (w *Window) Grant(credit uint32) error {
	if int32(credit-w.granted.Load()) <= 0 {
		return nil
	}
	if limit := w.sent.Load() + w.depth; int32(credit-limit) > 0 {
		return &Error{Credit: credit, Limit: limit}
	}
	w.granted.Store(credit)
	return nil
}

// Error is a credit beyond what the peer can have.
type Error struct {
	Credit, Limit uint32
}

func (e *Error) Error() string {
	return fmt.Sprintf("credit %d is above %d, the frames sent and the ring's depth together", e.Credit, e.Limit)
}

// Grants is what a receiver has granted to its peer. Posted is for one
// goroutine at a time, the poller; Stamp for one, the flusher; Due for any.
type Grants struct {
	half       uint32
	granted    atomic.Uint32
	advertised atomic.Uint32
}

// NewGrants returns the grants of a receiver that posted depth receives and
// has told so.
func NewGrants(depth uint32) *Grants {
	g := &Grants{half: depth / 2}
	g.granted.Store(depth)
	g.advertised.Store(depth)
	return g
}

// Posted counts receives posted in place of frames that used one.
func (g *Grants) Posted(n int) { g.granted.Add(uint32(n)) }

// Stamp returns the credit field for the frames that are sent next.
func (g *Grants) Stamp() uint32 {
	c := g.granted.Load()
	g.advertised.Store(c)
	return c
}

// Due says that half a window is owed: time for a CREDIT frame if no other
// frame leaves.
func (g *Grants) Due() bool { return g.granted.Load()-g.advertised.Load() >= g.half }
