package faults

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The checker can fail: each violation, made up, is counted as what it is.
func TestLedgerSeesViolations(t *testing.T) {
	run := func(id uint64) Record { return Record{ID: id, Outcome: Executed} }
	end := func(id uint64, o Outcome) Record { return Record{ID: id, Outcome: o} }
	for _, test := range []struct {
		name    string
		records []Record
		want    Counts
	}{
		{"right", []Record{run(1), end(1, OK)}, Counts{Calls: 1, OK: 1}},
		{"right, read in another order", []Record{end(1, OK), run(1)}, Counts{Calls: 1, OK: 1}},
		{"honest failures", []Record{end(1, NotExecuted), run(2), end(2, MaybeExecuted), end(3, MaybeExecuted)}, Counts{Calls: 3, Failed: 3}},
		{"late in haste", []Record{run(1), {ID: 1, Outcome: MaybeExecuted, Late: true, Hasty: true}}, Counts{Calls: 1}},
		{"late with patience", []Record{run(1), {ID: 1, Outcome: MaybeExecuted, Late: true}}, Counts{Calls: 1, Failed: 1}},
		{"failed in haste", []Record{{ID: 1, Outcome: MaybeExecuted, Hasty: true}}, Counts{Calls: 1, Failed: 1}},
		{"refused", []Record{end(1, Refused)}, Counts{Calls: 1, Failed: 1}},
		{"executed twice", []Record{run(1), end(1, OK), run(1)}, Counts{Calls: 1, OK: 1, Twice: 1}},
		{"executed three times", []Record{run(1), run(1), run(1)}, Counts{Twice: 2}},
		{"foreign request", []Record{{ID: 1, Outcome: Executed, Wrong: true}}, Counts{Wrong: 1}},
		{"foreign reply", []Record{run(1), {ID: 1, Outcome: OK, Wrong: true}}, Counts{Calls: 1, OK: 1, Wrong: 1}},
		{"reply from nowhere", []Record{end(1, OK)}, Counts{Calls: 1, OK: 1, Wrong: 1}},
		{"ended twice", []Record{run(1), end(1, OK), end(1, OK)}, Counts{Calls: 1, OK: 1, Wrong: 1}},
		{"a lie", []Record{run(1), end(1, NotExecuted)}, Counts{Calls: 1, Failed: 1, Wrong: 1}},
		{"a lie that shows later", []Record{end(1, NotExecuted), run(1)}, Counts{Calls: 1, Failed: 1, Wrong: 1}},
		{"a lie in haste", []Record{run(1), {ID: 1, Outcome: NotExecuted, Late: true, Hasty: true}}, Counts{Calls: 1, Wrong: 1}},
		{"hung", []Record{run(1), {ID: 1, Outcome: OK, Overrun: Margin + 1}}, Counts{Calls: 1, OK: 1, Hung: 1}},
		{"not hung", []Record{run(1), {ID: 1, Outcome: OK, Overrun: Margin}}, Counts{Calls: 1, OK: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := NewLedger()
			for _, r := range test.records {
				l.Take(r)
			}
			l.Settle()
			require.Equal(t, test.want, l.Counts)
			require.Len(t, l.Faults, test.want.Wrong+test.want.Hung+test.want.Twice)
		})
	}
	l := NewLedger()
	l.Hang(2)
	require.Equal(t, Counts{Hung: 2}, l.Counts)
}

func TestRecords(t *testing.T) {
	all := []Record{
		{ID: 1<<63 | 7, Outcome: Executed},
		{ID: 2, Outcome: Refused, Wrong: true, Overrun: -time.Second},
		{ID: 3, Outcome: NotExecuted, Hasty: true, Late: true, Overrun: time.Hour},
	}
	var b []byte
	for _, r := range all {
		b = r.Append(b)
	}
	require.Len(t, b, len(all)*recordSize)
	in := bytes.NewReader(b)
	for _, want := range all {
		got, err := readRecord(in)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := readRecord(in)
	require.ErrorIs(t, err, io.EOF)
	_, err = readRecord(bytes.NewReader(make([]byte, recordSize)))
	require.ErrorContains(t, err, "no outcome")
}

func TestPattern(t *testing.T) {
	require.Len(t, pattern(1, 13), 13)
	require.Equal(t, pattern(1, 13), pattern(1, 100)[:13])
	require.NotEqual(t, pattern(1, 13), pattern(2, 13))
	require.NotEqual(t, pattern(1, 13), pattern(^uint64(1), 13))
}
