package qpstate

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// historySize is how many changes a Machine remembers: some five lives of a
// QP that is reused (RESET, INIT, RTR, RTS, ERR, RESET).
const historySize = 32

// Change is one entry of a QP's history.
type Change struct {
	When     time.Time // when it was known to have happened
	From, To verbs.QPState
	Why      string
	Device   bool          // the device made it by itself
	Errno    syscall.Errno // not 0: an attempt that failed, the QP stayed in From
}

func (c Change) String() string {
	s := fmt.Sprintf("%s %v to %v", c.When.Format("15:04:05.000000"), c.From, c.To)
	if c.Device {
		s += " by the device"
	}
	if c.Why != "" {
		s += ": " + c.Why
	}
	if c.Errno != 0 {
		s += fmt.Sprintf(" (failed: %v)", c.Errno)
	}
	return s
}

// History lists changes, the oldest first.
type History []Change

// String has one line for each change.
func (h History) String() string {
	lines := make([]string, len(h))
	for i, c := range h {
		lines[i] = c.String()
	}
	return strings.Join(lines, "\n")
}

// ring is the last historySize changes.
type ring struct {
	at    [historySize]Change
	total int
}

func (r *ring) add(c Change) {
	r.at[r.total%historySize] = c
	r.total++
}

func (r *ring) list() History {
	first := max(0, r.total-historySize)
	h := make(History, 0, r.total-first)
	for i := first; i < r.total; i++ {
		h = append(h, r.at[i%historySize])
	}
	return h
}
