package rpc

import (
	"fmt"
	"log/slog"
)

// ServerOption configures NewServer.
type ServerOption interface{ applyServer(*serverConfig) }

type serverOption func(*serverConfig)

func (f serverOption) applyServer(c *serverConfig) { f(c) }

type serverConfig struct {
	maxHandlers, maxQueued         int
	sessionHandlers, sessionQueued int // by MaxPerSession
	shared                         bool
	inline                         map[string]bool
	onError                        func(error)
}

// perSession is what one session may have of the handlers and the queue.
func (c *serverConfig) perSession() (handlers, queued int) {
	if c.shared {
		return c.sessionHandlers, c.sessionQueued
	}
	return c.maxHandlers - c.maxHandlers/4, c.maxQueued - c.maxQueued/4
}

// minWaiting is the least that the requests of one session in the queue may
// hold, in bytes, and its responses in the outbox.
const minWaiting = 128 << 20

// Defaults of server options. Handlers of a storage server mostly wait for
// disks: a thousand at once keep any disk busy, and their stacks are a few
// megabytes. The queue takes a burst of as many again.
const (
	defaultMaxHandlers = 1024
	defaultMaxQueued   = 1024
)

func defaultServerConfig() serverConfig {
	return serverConfig{
		maxHandlers: defaultMaxHandlers,
		maxQueued:   defaultMaxQueued,
		inline:      map[string]bool{},
		onError:     func(err error) { slog.Error("rpc server", "err", err) },
	}
}

func (c *serverConfig) check(methods map[uint64]*method) error {
	if c.maxHandlers < 1 || c.maxQueued < 0 {
		return fmt.Errorf("rpc: MaxHandlers(%d, %d): needs at least 1 handler and no negative queue", c.maxHandlers, c.maxQueued)
	}
	if handlers, queued := c.perSession(); handlers < 1 || queued < 0 {
		return fmt.Errorf("rpc: MaxPerSession(%d, %d): needs at least 1 handler and no negative queue", handlers, queued)
	}
	for _, m := range methods {
		delete(c.inline, m.Name)
	}
	for name := range c.inline {
		return fmt.Errorf("rpc: Inline(%q): no such method is registered", name)
	}
	return nil
}

// MaxHandlers limits how many handlers run at once on the whole server
// (default 1024) and how many calls wait for one (default 1024, 0 is none). A
// handler counts until it returns, even when its caller is long gone. Calls
// beyond both fail as ResourceExhausted, not executed.
//
// More handlers use more memory; a longer queue answers bursts later rather
// than not at all.
func MaxHandlers(running, queued int) ServerOption {
	return serverOption(func(c *serverConfig) { c.maxHandlers, c.maxQueued = running, queued })
}

// MaxPerSession limits how many of the running handlers and of the calls that
// wait for one are those of one session: by default three quarters of either,
// so that one client can fill neither. Calls beyond both fail as
// ResourceExhausted, not executed, as do those that would have the waiting
// requests of the session hold more than twice Config.MaxMessage of the
// network, or 128 MiB if that is more. Sessions whose calls wait take turns.
//
// A smaller share protects the others from more such clients; a larger one
// lets a client that is alone use the whole server.
func MaxPerSession(running, queued int) ServerOption {
	return serverOption(func(c *serverConfig) {
		c.sessionHandlers, c.sessionQueued, c.shared = running, queued, true
	})
}

// Inline runs the handlers of the given methods, "/pkg.Service/Method", where
// their calls arrive. That saves handing each call to another goroutine, and
// stalls every call of the session, and over RDMA of other sessions, for as
// long as the handler runs: it must neither wait nor take more than some
// microseconds, nor end its goroutine (runtime.Goexit). Inline handlers do not count for MaxHandlers. Responses wait
// in memory for a client that is slow to take them in, up to twice
// Config.MaxMessage of the network, or 128 MiB if that is more; beyond it the
// caller gets ResourceExhausted.
func Inline(methods ...string) ServerOption {
	return serverOption(func(c *serverConfig) {
		for _, m := range methods {
			c.inline[m] = true
		}
	})
}

// OnError has f told what goes wrong in the server and concerns no caller
// alone: a *PanicError for a handler that panicked, responses that could not
// be encoded. f may be called from several goroutines at once and must not
// wait. The default logs to slog.Default.
func OnError(f func(error)) ServerOption {
	return serverOption(func(c *serverConfig) { c.onError = f })
}

// PanicError is a handler that panicked, or ended its goroutine (Value is nil
// then). The caller got Internal.
type PanicError struct {
	Method string
	Value  any
	Stack  []byte
}

func (e *PanicError) Error() string {
	if e.Value == nil {
		return fmt.Sprintf("rpc: handler of %s ended its goroutine\n%s", e.Method, e.Stack)
	}
	return fmt.Sprintf("rpc: handler of %s panicked: %v\n%s", e.Method, e.Value, e.Stack)
}
