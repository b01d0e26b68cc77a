package rpc

import (
	"context"

	"github.com/verbena-rpc/verbena/transport"
)

// Migrate moves the calls of c, those in flight too, to a link of that kind,
// and keeps them there until the next Migrate, the end of the session, or until
// no such link is left. The error is a *transport.MoveError. ctx bounds the wait.
func (c *Conn) Migrate(ctx context.Context, to transport.Kind) error {
	s := c.current.Load()
	if s == nil {
		return &transport.MoveError{To: to, Err: ErrConnClosed}
	}
	return s.session.Migrate(ctx, to)
}

// Reconnect closes the links of c and makes new ones at once. Calls in flight go
// on on these.
func (c *Conn) Reconnect() {
	if s := c.current.Load(); s != nil {
		s.session.Reconnect()
	}
}
