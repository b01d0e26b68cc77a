package faults

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReport(t *testing.T) {
	kill := &Row{Fault: "kill -9", Limit: time.Second}
	kill.Add(Counts{Calls: 10, OK: 7, Failed: 3}, time.Second)
	kill.Add(Counts{Calls: 1, Wrong: 1, Hung: 2, Twice: 3}, time.Millisecond)
	loss := &Row{Fault: "loss"}
	loss.Add(Counts{Calls: 5}, 2*time.Second)
	r := &Report{Seed: 7, Kernel: "6.1", Rows: []*Row{kill, {Fault: "never"}, loss}, Faults: []string{"a lie"}}

	var text strings.Builder
	require.NoError(t, r.Markdown(&text))
	require.Contains(t, text.String(), "3 faults in 0s, seed 7, Linux 6.1, 1 violations")
	require.Contains(t, text.String(), "\n| kill -9 | 2 | 11 | 3 | 1 | 2 | 3 | 1.00 s |\n| loss | 1 | 5 |")
	require.Contains(t, text.String(), "\n| **all** | 3 | 16 | 3 | 1 | 2 | 3 | 2.00 s |\n")
	require.Contains(t, text.String(), "\nviolation: a lie\n")

	text.Reset()
	require.NoError(t, r.JSON(&text))
	var back Report
	require.NoError(t, json.Unmarshal([]byte(text.String()), &back))
	require.Equal(t, *r, back)
}
