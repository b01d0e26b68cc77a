package rpc

import (
	"context"
	"sync"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// cancels are calls whose CANCEL found no room. A goroutine that lives as long
// as there are any waits to send them. They are no more than calls that the
// link took before it was full, for each has had its request sent.
type cancels struct {
	mu      sync.Mutex
	ids     fifo[uint64]
	sending bool
}

// cancel tells the server that nobody waits for the call any more, without
// waiting itself. expired says that the server sees that by its own clock.
func (s *clientSession) cancel(p *pending, id uint64, expired bool) {
	s.lane.Forget(id)
	p.header = wire.Header{Kind: wire.Cancel, Call: id}
	if sendNow(s.lane, transport.Control, &p.header, nil) == nil || expired {
		return
	}
	q := &s.cancels
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ids.push(id)
	if !q.sending {
		q.sending = true
		go s.sendCancels()
	}
}

func (s *clientSession) sendCancels() {
	for {
		s.cancels.mu.Lock()
		if s.cancels.ids.len() == 0 {
			s.cancels.sending = false
			s.cancels.mu.Unlock()
			return
		}
		id := s.cancels.ids.pop()
		s.cancels.mu.Unlock()
		// It fails when the session is over, and the call with it.
		_ = send(context.Background(), s.lane, transport.Control, &wire.Header{Kind: wire.Cancel, Call: id}, nil)
	}
}
