package faults

import (
	"fmt"
	"time"
)

// Margin is how long after its deadline a call may end before it counts as
// hung. 100 ms are promised; the rest is for a kernel under emulation, in which
// a process that is ready may wait for a processor.
const Margin = time.Second

// Counts are what a Ledger has seen.
type Counts struct {
	Calls  int // ended, for their caller
	OK     int
	Failed int // neither OK nor, if they were hasty, late
	Wrong  int // wrong payload, a reply without execution, an execution of what was said not to be executed
	Hung   int // ended by Margin after their deadline, or never
	Twice  int // executions of a call beyond its first
}

// Minus is what came since an earlier count.
func (c Counts) Minus(d Counts) Counts {
	return Counts{c.Calls - d.Calls, c.OK - d.OK, c.Failed - d.Failed, c.Wrong - d.Wrong, c.Hung - d.Hung, c.Twice - d.Twice}
}

// Ledger holds the records of a run against what is promised. It belongs to
// one goroutine.
type Ledger struct {
	Counts
	// Faults name the first violations, for people.
	Faults []string
	// Overrun is the longest that a call ended after its deadline.
	Overrun time.Duration

	executed map[uint64]bool
	ended    map[uint64]Outcome
	missing  map[uint64]bool // have a reply and no execution yet
}

// NewLedger makes an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{executed: map[uint64]bool{}, ended: map[uint64]Outcome{}, missing: map[uint64]bool{}}
}

// Take takes in a record. Those of both sides may come in any order.
func (l *Ledger) Take(r Record) {
	if r.Wrong {
		l.fault(&l.Wrong, "call %#x: foreign payload (%v)", r.ID, r.Outcome)
	}
	if r.Outcome == Executed {
		l.takeExecution(r)
		return
	}
	l.takeEnd(r)
}

func (l *Ledger) takeExecution(r Record) {
	if l.executed[r.ID] {
		l.fault(&l.Twice, "call %#x was executed again", r.ID)
		return
	}
	l.executed[r.ID] = true
	delete(l.missing, r.ID)
	if l.ended[r.ID] == NotExecuted {
		l.fault(&l.Wrong, "call %#x was executed, and its caller told that it was not", r.ID)
	}
}

func (l *Ledger) takeEnd(r Record) {
	if before := l.ended[r.ID]; before != 0 {
		l.fault(&l.Wrong, "call %#x ended twice: %v, %v", r.ID, before, r.Outcome)
		return
	}
	l.ended[r.ID] = r.Outcome
	l.Calls++
	l.Overrun = max(l.Overrun, r.Overrun)
	if r.Overrun > Margin {
		l.fault(&l.Hung, "call %#x ended %v after its deadline", r.ID, r.Overrun)
	}
	switch {
	case r.Outcome == OK:
		l.OK++
		if !l.executed[r.ID] {
			l.missing[r.ID] = true
		}
		return
	case r.Outcome == NotExecuted && l.executed[r.ID]:
		l.fault(&l.Wrong, "call %#x was executed, and its caller told that it was not", r.ID)
	}
	if !r.Hasty || !r.Late {
		l.Failed++
	}
}

// Hang says that n calls have not ended Margin after their deadline.
func (l *Ledger) Hang(n int) {
	for range n {
		l.fault(&l.Hung, "a call has not ended %v after its deadline", Margin)
	}
}

// Settle is called when all records of calls that ended have been taken: a
// reply must have had an execution.
func (l *Ledger) Settle() {
	for id := range l.missing {
		l.fault(&l.Wrong, "call %#x got a reply and was never executed", id)
	}
	clear(l.missing)
}

// maxFaults bounds the list of violations.
const maxFaults = 50

func (l *Ledger) fault(count *int, format string, args ...any) {
	*count++
	if len(l.Faults) < maxFaults {
		l.Faults = append(l.Faults, fmt.Sprintf(format, args...))
	}
}
