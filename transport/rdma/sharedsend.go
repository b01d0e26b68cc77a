package rdma

import (
	"sync"
	"sync/atomic"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/credit"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/ring"
)

// sharedSends are the send slots that endpoints of a poller share. A link has one
// from Reserve until it has completed, or came back unused. While half of them are
// free it need not have credit for it, so that frames are there to leave together when
// credit comes; otherwise it must: peers that grant nothing keep half of them
// from the others, no more.
//
// There are half as many as shared receives: a frame in one leaves at once, while
// receives wait for whoever has credit. More are added for who would wait while half are
// taken, up to the limit.
//
// A slot is its holder's, as in a sendRing: of the links' callers and flushers, or of
// the device. The others are in free, under their number in a sendRing. Memory is
// added, and stays until the poller stops. Any goroutine may call the methods.
type sharedSends struct {
	slots []sendSlot // the first have memory
	free  *ring.Stack
	above atomic.Int32 // how many are free beyond half of all; less for a moment, where a claim is tried

	waiting atomic.Int32 // in the list
	mu      sync.Mutex   // guards the list, and share.next and listed
	list    struct{ head, tail *sendRing }

	growing sync.Mutex // guards what follows
	chunks  chunks
	n       int      // slots that have memory
	limit   int      // on n
	own     []region // for frames of a link itself, free
}

func newSharedSends(d *device, limit int) *sharedSends {
	return &sharedSends{
		slots: make([]sendSlot, limit), free: ring.NewStack(credit.Reserve + limit),
		chunks: chunks{dev: d}, limit: limit,
	}
}

// enter gives an endpoint the memory for frames of its links themselves. Slots for
// the others are added with it.
func (s *sharedSends) enter() (region, error) {
	s.growing.Lock()
	defer s.growing.Unlock()
	if len(s.own) == 0 {
		if err := s.grow(); err != nil {
			return region{}, err
		}
	}
	last := len(s.own) - 1
	own := s.own[last]
	s.own = s.own[:last]
	return own, nil
}

// leave takes that memory back.
func (s *sharedSends) leave(own region) {
	s.growing.Lock()
	defer s.growing.Unlock()
	s.own = append(s.own, own)
}

// grow registers what chunkSharers endpoints need. growing is held.
func (s *sharedSends) grow() error {
	size, own := s.chunks.dev.cfg.SlotSize, credit.Reserve*linkFrame
	n := min(s.chunks.dev.cfg.chunk()/2, s.limit-s.n)
	mem, err := s.chunks.add(n*size + chunkSharers*own)
	if err != nil {
		return err
	}
	copy(s.slots[s.n:], mem.slots(n, size))
	half := s.n / 2
	for range n {
		s.free.Push(uint32(credit.Reserve + s.n))
		s.n++
	}
	s.above.Add(int32(s.n/2 - half))
	for i := range chunkSharers {
		s.own = append(s.own, mem.cut(n*size+i*own, own))
	}
	s.serve()
	return nil
}

// more adds slots where half are taken, and says whether there are more now. Where the
// device takes no more memory those that there are must do.
func (s *sharedSends) more() bool {
	if s.above.Load() > 0 {
		return false
	}
	s.growing.Lock()
	defer s.growing.Unlock()
	if s.above.Load() > 0 {
		return true // somebody else was at it
	}
	if s.n == s.limit {
		return false
	}
	if s.grow() != nil {
		s.limit = s.n
		return false
	}
	return true
}

// close gives the memory back, unless somebody has a slot: then it stays mapped for
// ever.
func (s *sharedSends) close() error {
	s.growing.Lock()
	defer s.growing.Unlock()
	home := 0
	for _, ok := s.free.Pop(); ok; _, ok = s.free.Pop() {
		home++
	}
	s.limit = s.n // no more for a caller that is late
	held := home < s.n || len(s.own) < chunkSharers*len(s.chunks.all)
	return s.chunks.close(held)
}

// enlist has a ring served in its turn, behind the others, when slots are free.
func (s *sharedSends) enlist(r *sendRing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.share.listed {
		return
	}
	r.share.listed, r.share.next = true, nil
	if s.list.head == nil {
		s.list.head = r
	} else {
		s.list.tail.share.next = r
	}
	s.list.tail = r
	s.waiting.Add(1)
}

// first takes the ring out whose turn it is.
func (s *sharedSends) first() *sendRing {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.list.head
	if r != nil {
		s.list.head = r.share.next
		r.share.listed, r.share.next = false, nil
		s.waiting.Add(-1)
	}
	return r
}

// serve hands out free slots, one to each ring in turn. Who frees one does so
// before, as with waiters.
func (s *sharedSends) serve() {
	for s.waiting.Load() > 0 && !s.free.Empty() {
		if r := s.first(); r != nil && r.serveOne() {
			s.enlist(r)
		}
	}
}

// share is what a ring has of the slots that are shared. A claim is held from before
// a slot is taken until it is free again. Any goroutine may call the methods.
type share struct {
	of     *sharedSends
	window *credit.Window // of the link
	spare  int64          // credit that chunks leave to small messages
	depth  uint32         // of the send queue
	ahead  int32          // most claims
	held   atomic.Int32   // claims
	unsent atomic.Int32   // of these, for frames that have not taken credit yet

	listed bool // of.mu
	next   *sendRing
}

// bind has the share follow the credit of a peer with so many receives. Chunks leave
// a quarter, and come to the half all the same for which the peer grants more.
func (s *share) bind(w *credit.Window, depth int64) {
	s.window, s.spare = w, min((depth-credit.Reserve)/4, depth/2-credit.Reserve)
}

// claim claims a slot.
func (s *share) claim(class transport.Class) bool {
	if s.grants(class, s.held.Add(1), s.unsent.Add(1), s.of.above.Add(-1)) {
		return true
	}
	s.unclaim()
	return false
}

// unclaim gives a claim back that was for no frame.
func (s *share) unclaim() {
	s.unsent.Add(-1)
	s.release()
}

// release ends a claim whose slot is free.
func (s *share) release() {
	s.of.above.Add(1)
	s.held.Add(-1)
}

// open says that a claim would have been granted.
func (s *share) open(class transport.Class) bool {
	return s.grants(class, s.held.Load()+1, s.unsent.Load()+1, s.of.above.Load()-1)
}

// grants says whether a claim is granted, given the counts with it: while half of the
// slots are free, or if its frame finds credit and room in the send queue.
func (s *share) grants(class transport.Class, held, unsent, above int32) bool {
	return above >= 0 && held <= s.ahead ||
		int64(held) <= int64(s.depth)-credit.Reserve && int64(unsent) <= s.credit(class)
}

// credit is how many frames of the class the peer has receives for.
func (s *share) credit(class transport.Class) int64 {
	room := int64(s.window.Room()) - credit.Reserve
	if class == transport.Bulk {
		room -= s.spare
	}
	return room
}

// unused notes that the frame in a slot will not be sent.
func (r *sendRing) unused(slot uint32) {
	if r.share != nil && slot >= credit.Reserve {
		r.share.unsent.Add(-1)
	}
}

// took notes that n frames, from start on, have taken credit.
func (r *sendRing) took(start, n uint32) {
	shared := int32(0)
	for i := range n {
		if r.order[(start+i)&r.mask] >= credit.Reserve {
			shared++
		}
	}
	r.share.unsent.Add(-shared)
}

// serve hands free slots to who waits for one: of this ring, or in turn of all that
// share.
func (r *sendRing) serve() {
	s := r.share
	if s == nil {
		r.waiting.serve(r.take)
		return
	}
	if r.waiting.n.Load() > 0 {
		r.waiting.serve(r.takeOwn)
		s.of.enlist(r)
	}
	s.of.serve()
}

// takeOwn is take for who does not need the slots that are shared.
func (r *sendRing) takeOwn(class transport.Class) (slot uint32, ok bool) {
	if class == transport.Control {
		slot, ok = r.reserved.Pop()
	}
	return slot, ok
}

// serveOne hands one slot to a waiter, and says whether others of the ring wait for
// slots that are shared: not for credit, nor for its own queue, which it is served
// for when they come.
func (r *sendRing) serveOne() (others bool) {
	given := false
	r.waiting.serve(func(class transport.Class) (slot uint32, ok bool) {
		if !given {
			slot, given = r.take(class)
			ok = given
		}
		if !ok && class != transport.Control && (class != transport.Bulk || r.bulk.Load() < r.bulkLimit) && r.share.open(class) {
			others = true
		}
		return slot, ok
	})
	return others
}

// reclaim frees the slots of a QP that is destroyed, and of which not all has
// completed. The poller does not know it any more.
func (r *sendRing) reclaim() {
	for at := r.completed.Load(); at != r.posted.Load(); at++ {
		r.put(r.order[at&r.mask])
	}
	r.serve()
}
