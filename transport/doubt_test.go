package transport

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// ackedLink takes in everything; its peer's system has acknowledged so many bytes.
type ackedLink struct {
	noLink
	acked uint64
}

func (l *ackedLink) Reserve(context.Context, Class, int) (Slot, error) { return Slot{}, nil }
func (l *ackedLink) Commit(Slot, *wire.Header) error                   { return nil }
func (l *ackedLink) Flush()                                            {}
func (l *ackedLink) Acked() uint64                                     { return l.acked }

// TestDoubtWaits: a control link is not given up while it carries what stands before the
// answer, and is soon after that.
func TestDoubtWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ackedLink{}
		s := &Session{client: true, cfg: Config{Keepalive: 15 * time.Second}, redialing: true}
		s.control = &path{s: s, link: l}
		doubted := func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.doubted != nil
		}
		s.mu.Lock()
		s.doubt()
		s.mu.Unlock()
		for range 100 {
			time.Sleep(probeTime / 2)
			s.mu.Lock()
			l.acked++
			s.mu.Unlock()
			require.False(t, doubted())
		}
		time.Sleep(2*probeTime + 1)
		require.True(t, doubted())
	})
}
