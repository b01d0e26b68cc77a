package faults

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// Outcome is how a call ended for its caller, or that a handler ran.
type Outcome uint8

// Outcomes.
const (
	Executed      Outcome = iota + 1 // a handler ran; said by the server
	OK                               // the caller has its reply
	NotExecuted                      // failed, and no handler has run or will
	MaybeExecuted                    // failed, and nothing is known
	Refused                          // the server answered with an error, which it never does
)

func (o Outcome) String() string {
	names := [...]string{Executed: "executed", OK: "ok", NotExecuted: "not executed",
		MaybeExecuted: "maybe executed", Refused: "refused"}
	if o >= Executed && int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Record is a line of what a process writes down about a call.
type Record struct {
	ID      uint64
	Outcome Outcome
	Wrong   bool          // the payload was not that of the call
	Hasty   bool          // the call had a short deadline, and may miss it
	Late    bool          // it failed because of its deadline
	Overrun time.Duration // from its deadline to its end
}

// recordSize divides the size of a page: a record is never on two, and a write
// of it is done in full or not at all when its process is killed.
const recordSize = 32

// Append appends the encoded record to b.
func (r Record) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, r.ID)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Overrun))
	b = append(b, byte(r.Outcome), bit(r.Wrong), bit(r.Hasty), bit(r.Late))
	return append(b, make([]byte, recordSize-20)...)
}

func bit(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// readRecord reads one record; io.EOF says that there is none yet.
func readRecord(r io.Reader) (Record, error) {
	var b [recordSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Record{}, err
	}
	rec := Record{
		ID:      binary.LittleEndian.Uint64(b[:]),
		Overrun: time.Duration(binary.LittleEndian.Uint64(b[8:])),
		Outcome: Outcome(b[16]), Wrong: b[17] != 0, Hasty: b[18] != 0, Late: b[19] != 0,
	}
	if rec.Outcome < Executed || rec.Outcome > Refused {
		return rec, fmt.Errorf("record of call %#x has no outcome: %d", rec.ID, b[16])
	}
	return rec, nil
}

// pattern is n bytes that follow from id and differ from those of any other:
// the sequence splitmix64 starts at id.
func pattern(id uint64, n int) []byte {
	b := make([]byte, 0, n+7)
	for x := id; len(b) < n; {
		x += 0x9e3779b97f4a7c15
		z := x
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		b = binary.LittleEndian.AppendUint64(b, z^z>>31)
	}
	return b[:n]
}
