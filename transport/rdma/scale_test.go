package rdma

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

var (
	manyLinks = flag.Int("rdma.links", chunkSharers, "how many links two processes have in TestSharedByProcesses")
	manyChild = flag.Bool("rdma.child", false, "be the other process")
)

// maxPinned is what an idle link that shares may pin, in bytes.
const maxPinned = 4 << 10

// pinned is how many bytes the process has pinned.
func pinned() (int, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(status), "VmPin:")
	kb, err := strconv.Atoi(strings.Fields(after)[0])
	return kb << 10, err
}

// other is the process at the other end, which answers each line with one: an offer
// with its own, an empty line with the bytes that it has pinned.
type other struct {
	to   io.WriteCloser
	from *bufio.Scanner
}

func startOther(t *testing.T) *other {
	cmd := exec.Command(os.Args[0], "-test.run=^TestSharedByProcesses$", "-rdma.child")
	cmd.Stderr = os.Stderr
	to, err := cmd.StdinPipe()
	require.NoError(t, err)
	from, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		to.Close()
		require.NoError(t, cmd.Wait())
	})
	return &other{to, bufio.NewScanner(from)}
}

func (o *other) ask(t *testing.T, question, answer any) {
	t.Helper()
	line, err := json.Marshal(question)
	require.NoError(t, err)
	_, err = fmt.Fprintf(o.to, "%s\n", line)
	require.NoError(t, err)
	require.True(t, o.from.Scan(), o.from.Err())
	require.NoError(t, json.Unmarshal(o.from.Bytes(), answer), o.from.Text())
}

// echoing answers each frame with its own.
type echoing struct {
	*sink
	link transport.Link
}

func (e *echoing) Take(h *wire.Header, payload []byte) error {
	number, n := int(h.Call), len(payload)
	go send(e.link, number, n) //nolint:errcheck // who waits for it notices
	return nil
}

// beOther is that process. It ends with its input.
func beOther(t *testing.T) {
	ends := realEnds(t)
	f := NewOn(ends[1].provider, Config{Dedicated: -1, Warm: -1})
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var offer *wire.QP
		var answer any
		err := json.Unmarshal(in.Bytes(), &offer)
		if err == nil && offer == nil {
			answer, err = pinned()
		} else if err == nil {
			answer, err = accept(f, ends[1], offer)
		}
		if err != nil {
			answer = err.Error()
		}
		line, _ := json.Marshal(answer)
		fmt.Printf("%s\n", line)
	}
	if err := f.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0) // without the lines of package testing
}

func accept(f *Fabric, at end, offer *wire.QP) (own wire.QP, err error) {
	half, err := f.Prepare(context.Background(), at.addr)
	if err != nil {
		return own, err
	}
	l, err := half.Connect(context.Background(), 0xe10c, *offer)
	if err != nil {
		return own, err
	}
	l.Start(&echoing{newSink(), l})
	return half.Offer(), nil
}

// Thousands of links between two processes: what each pins while they are idle is
// bounded, and calls on all at once are answered. -rdma.links=4096 is what a server
// is to bear.
func TestSharedByProcesses(t *testing.T) {
	if *manyChild {
		beOther(t)
	}
	ends := realEnds(t)
	checkLeaks(t)
	o := startOther(t)
	f := ends[0].fabric(t, Config{Dedicated: -1, Warm: -1})
	require.NoError(t, f.Usable(ends[0].addr))
	before := [2]int{}
	var err error
	before[0], err = pinned()
	require.NoError(t, err)
	o.ask(t, nil, &before[1])

	n := *manyLinks
	var links []transport.Link
	var sinks []*sink
	began := time.Now()
	for range n {
		half, err := f.Prepare(context.Background(), ends[0].addr)
		require.NoError(t, err)
		var offer wire.QP
		o.ask(t, half.Offer(), &offer)
		l, err := half.Connect(context.Background(), 0xe10c, offer)
		require.NoError(t, err)
		s := newSink()
		l.Start(s)
		links, sinks = append(links, l), append(sinks, s)
	}
	t.Logf("%d links in %v", n, time.Since(began))
	after := [2]int{}
	after[0], err = pinned()
	require.NoError(t, err)
	o.ask(t, nil, &after[1])
	for i := range after {
		per := (after[i] - before[i]) / n
		t.Logf("process %d: %d bytes pinned for each link", i, per)
		require.Positive(t, per)
		if n%chunkSharers == 0 { // else there are slots for more
			require.LessOrEqual(t, per, maxPinned, "process %d", i)
		}
	}
	for round := range 5 {
		began = time.Now()
		for _, l := range links {
			require.NoError(t, send(l, round, 64))
		}
		for _, s := range sinks {
			s.await(t, round+1)
			require.NoError(t, checkFill(s.got[round], round))
		}
		t.Logf("a call on each link at once: %v", time.Since(began))
	}
	began = time.Now()
	for _, l := range links {
		l.Close(nil)
	}
	for _, l := range links {
		<-l.Done()
	}
	t.Logf("they were closed in %v", time.Since(began))
	require.Zero(t, f.Stats().LostDrains)
	require.Zero(t, f.Stats().RNR)
	require.Zero(t, f.Stats().Queueing)
}
