package transport

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// restingLink is one whose reader rests until it is roused.
type restingLink struct {
	*nullLink
	roused int
}

func newRestingLink() *restingLink { return &restingLink{nullLink: newNullLink(TCP)} }

func (l *restingLink) Help(*Signal, *atomic.Int32) bool { return false }
func (l *restingLink) Rouse()                           { l.roused++ }

// A link that a lane leaves takes in itself what the session gets there, however
// the lane left; one that it stays on is left alone.
func TestLinkThatIsLeftIsRoused(t *testing.T) {
	o := new(outgoing)
	o.init(4<<20, 64<<10)
	a, b := newRestingLink(), newRestingLink()
	roused := func() [2]int { return [2]int{a.roused, b.roused} }
	on := func(l *restingLink, move uint32) *carrier { return newCarrier(l, move) }

	o.bind(on(a, 1))
	o.bind(on(a, 1)) // the answer to a move that was bound at once
	require.Equal(t, [2]int{}, roused())
	o.bind(on(b, 2))
	require.Equal(t, [2]int{1, 0}, roused(), "another link")
	require.True(t, o.announce(on(b, 3), Slot{}, 0))
	require.Equal(t, [2]int{1, 1}, roused(), "a pause: nobody finds the way to it")
	o.bind(on(b, 3))
	require.True(t, o.announce(on(a, 4), Slot{}, 0))
	require.Equal(t, [2]int{1, 1}, roused(), "the lane is still on it")
	require.True(t, o.lost(b))
	require.Equal(t, [2]int{1, 2}, roused(), "it may live, and be about to be closed")
	o.bind(on(a, 4))
	o.reset()
	require.Equal(t, [2]int{2, 2}, roused())
}
