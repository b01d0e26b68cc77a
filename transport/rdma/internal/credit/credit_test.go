package credit

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWindow(t *testing.T) {
	w := NewWindow(8)
	for range 4 {
		require.True(t, Data.In(w.Room()))
		w.Take(1)
	}
	require.False(t, Data.In(w.Room()), "4 receives are kept for frames of the link")
	for range 3 {
		require.True(t, Link.In(w.Room()))
		w.Take(1)
	}
	require.False(t, Link.In(w.Room()), "one receive is kept for CREDIT")
	require.True(t, Credit.In(w.Room()))
	w.Take(1)
	require.False(t, Credit.In(w.Room()))

	require.NoError(t, w.Grant(8), "nothing new")
	require.NoError(t, w.Grant(7), "old")
	require.Zero(t, w.Room())
	require.NoError(t, w.Grant(16))
	require.EqualValues(t, 8, w.Room())
	require.Error(t, w.Grant(17), "8 frames were sent into 8 receives")
	require.EqualValues(t, 8, w.Room())
}

func TestGrants(t *testing.T) {
	g := NewGrants(8)
	g.Posted(3)
	require.False(t, g.Due())
	g.Posted(1)
	require.True(t, g.Due())
	require.EqualValues(t, 12, g.Stamp())
	require.False(t, g.Due())
}

// side is one end of a simulated link: frames to send, the window of the other
// and what is on the way to this side.
type side struct {
	w           *Window
	g           *Grants
	data, links int
	posted      int      // receives
	arriving    []uint32 // credit fields, in order
}

func newSide(own, peer uint32, shift uint32) *side {
	s := &side{w: NewWindow(peer), g: NewGrants(own), posted: int(own)}
	// Start near the wrap of the counters.
	s.w.sent.Add(shift)
	s.w.granted.Add(shift)
	s.g.granted.Add(shift)
	s.g.advertised.Add(shift)
	return s
}

// send sends a frame of the class if it may.
func (s *side) send(t *rapid.T, to *side, c Class) bool {
	if !c.In(s.w.Room()) {
		return false
	}
	s.w.Take(1)
	if len(to.arriving) >= to.posted {
		t.Fatalf("RNR: %d frames on the way to %d receives", len(to.arriving)+1, to.posted)
	}
	to.arriving = append(to.arriving, s.g.Stamp())
	return true
}

// receive takes in n frames, and posts their receives again.
func (s *side) receive(t *rapid.T, n int) {
	for _, c := range s.arriving[:n] {
		if err := s.w.Grant(c); err != nil {
			t.Fatal(err)
		}
	}
	s.arriving = s.arriving[n:]
	s.g.Posted(n)
}

// flush does what a flusher does: frames that may leave, else CREDIT if due.
func (s *side) flush(t *rapid.T, to *side) {
	sent := false
	for s.links > 0 && s.send(t, to, Link) {
		s.links--
		sent = true
	}
	for s.data > 0 && s.send(t, to, Data) {
		s.data--
		sent = true
	}
	if !sent && s.g.Due() {
		s.send(t, to, Credit)
	}
}

// Two sides with any windows and any traffic: no frame meets an empty receive
// queue (case 20), and nothing locks up, also when both are out of credit
// (case 23).
func TestNoRNRNoDeadlock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		depth := rapid.Uint32Range(MinDepth, 40)
		da, db := depth.Draw(t, "a"), depth.Draw(t, "b")
		shift := -rapid.Uint32Range(0, 20).Draw(t, "shift")
		a, b := newSide(da, db, shift), newSide(db, da, shift)
		pick := func(t *rapid.T) (s, other *side) {
			if rapid.Bool().Draw(t, "side") {
				return a, b
			}
			return b, a
		}
		t.Repeat(map[string]func(*rapid.T){
			"data": func(t *rapid.T) {
				s, other := pick(t)
				s.data += rapid.IntRange(1, 50).Draw(t, "frames")
				s.flush(t, other)
			},
			"link": func(t *rapid.T) {
				s, other := pick(t)
				s.links++
				s.flush(t, other)
			},
			"deliver": func(t *rapid.T) {
				s, other := pick(t)
				if len(s.arriving) == 0 {
					t.Skip()
				}
				s.receive(t, rapid.IntRange(1, len(s.arriving)).Draw(t, "frames"))
				s.flush(t, other)
			},
		})
		for step := 0; a.data+b.data+a.links+b.links > 0; step++ {
			if step > 10000 {
				t.Fatalf("locked up: a %d+%d frames, room %d; b %d+%d, room %d",
					a.data, a.links, a.w.Room(), b.data, b.links, b.w.Room())
			}
			a.receive(t, len(a.arriving))
			a.flush(t, b)
			b.receive(t, len(b.arriving))
			b.flush(t, a)
		}
	})
}
