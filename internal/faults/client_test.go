//go:build linux

package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/verbena-rpc/verbena/internal/faults/faultpb"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
)

// The load. Patient calls outlast every fault, and a pause of the whole VM beside
// it, so that none may end by its deadline; hasty ones end amid a fault.
const (
	patientCallers = 12
	hastyCallers   = 4
	patience       = time.Minute
	maxThink       = 40 * time.Millisecond // between two calls of a caller
)

// client makes calls from many goroutines. Each caller writes its own place in
// calls.
type client struct {
	first  uint64 // id of the first call
	file   *os.File
	clock  runningClock
	conn   atomic.Pointer[rpc.Conn] // nil until there is one
	paused atomic.Bool
	said   atomic.Int64                                // the second in which an error was last printed
	calls  [patientCallers + hastyCallers]atomic.Int64 // deadlines of those under way, or 0
}

// clientRole calls the server at an address from a local one. Its third
// argument sets it apart from clients before it.
func clientRole(args []string) error {
	incarnation, err := strconv.ParseUint(args[2], 10, 16)
	if err != nil {
		return err
	}
	network, fabric := newNetwork(args[1])
	c := &client{first: incarnation << 48, file: records()}
	go c.clock.run()
	go c.connect(network, args[0])
	go c.watch()
	for i := range c.calls {
		go c.caller(i)
	}
	return obey(func(o order) status {
		switch o {
		case pause, resume:
			c.paused.Store(o == pause)
		case leave:
			c.paused.Store(true)
			c.conn.Load().Close()
		}
		s := c.status()
		s.Held = held(fabric)
		return s
	})
}

func (c *client) status() status {
	var s status
	if conn := c.conn.Load(); conn != nil {
		info := conn.Transport()
		s.Kind, s.Reason, s.Moves, s.MTU = info.Kind.String(), info.Reason, info.Moves, info.Link.MTU
		s.Kept = info.Retention.Frames
	}
	now := c.clock.now()
	for i := range c.calls {
		if deadline := c.calls[i].Load(); deadline != 0 {
			s.Calls++
			if i < patientCallers {
				s.Oldest = max(s.Oldest, now+patience-time.Duration(deadline))
			}
			if now-time.Duration(deadline) > Margin {
				s.Overdue++
			}
		}
	}
	return s
}

// watch prints what all goroutines do when a call is first overdue.
func (c *client) watch() {
	for c.status().Overdue == 0 {
		time.Sleep(Margin / 10)
	}
	_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
}

// connect dials until there is a server. What comes after is the Conn's part.
func (c *client) connect(network *transport.Network, addr string) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		conn, err := rpc.Dial(ctx, network, addr)
		cancel()
		if err == nil {
			c.conn.Store(conn)
			return
		}
		time.Sleep(maxThink)
	}
}

func (c *client) caller(place int) {
	hasty := place >= patientCallers
	buf := make([]byte, 0, recordSize)
	for n := uint64(0); ; n++ {
		time.Sleep(rand.N(maxThink))
		timeout := patience
		if hasty {
			timeout = 50*time.Millisecond + rand.N(450*time.Millisecond)
		}
		// Whoever pauses the callers sees each either under way or paused.
		c.calls[place].Store(int64(c.clock.now() + timeout))
		conn := c.conn.Load()
		if c.paused.Load() || conn == nil {
			c.calls[place].Store(0)
			continue
		}
		rec := c.call(faultpb.NewLedgerClient(conn), c.first|uint64(place)<<32|n, timeout)
		rec.Hasty = hasty
		if _, err := c.file.Write(rec.Append(buf)); err != nil {
			panic(err)
		}
		c.calls[place].Store(0)
	}
}

// call makes one call and says how it ended.
func (c *client) call(stub faultpb.LedgerClient, id uint64, timeout time.Duration) Record {
	deadline := c.clock.now() + timeout
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	want := randomSize()
	reply, err := stub.Enter(ctx, &faultpb.Entry{Id: id, Data: pattern(id, randomSize()), Reply: uint32(want)})
	rec := Record{ID: id, Outcome: outcomeOf(err), Late: rpc.CodeOf(err) == rpc.DeadlineExceeded, Overrun: c.clock.now() - deadline}
	if err == nil {
		rec.Wrong = reply.Id != id || !bytes.Equal(reply.Data, pattern(^id, want))
	} else if now := time.Now().Unix(); !rec.Late && c.said.Swap(now) != now {
		fmt.Fprintf(os.Stderr, "client: call %#x: %v\n", id, err)
	}
	return rec
}

// randomSize is small most of the time, more than a slot now and then, and
// rarely a message of many chunks.
func randomSize() int {
	switch n := rand.IntN(100); {
	case n < 80:
		return rand.IntN(1024)
	case n < 98:
		return rand.IntN(20_000)
	}
	return rand.IntN(200_000)
}

func outcomeOf(err error) Outcome {
	var e *rpc.Error
	switch {
	case err == nil:
		return OK
	case !errors.As(err, &e):
		return Refused
	case e.Delivery == rpc.NotExecuted:
		return NotExecuted
	case e.Delivery == rpc.Executed && e.Code != rpc.DeadlineExceeded:
		return Refused
	}
	return MaybeExecuted
}
