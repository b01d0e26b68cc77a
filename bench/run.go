package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/verbena-rpc/verbena/transport"
)

// runCommand measures with both processes on this machine: this one is the
// client, a child the server. Rounds are interleaved: perftest and libfabric, then
// every cell over every transport, then again, so that a noisy moment hits all
// alike.
//
// As perftest's, both processes poll busily by default, and share the CPUs
// evenly: more would only take each other's.
func runCommand(ctx context.Context, args []string) error {
	var (
		s settings
		w workload
	)
	fs := flag.NewFlagSet("bench run", flag.ContinueOnError)
	jsonPath := fs.String("json", "", "write the report to this `file`")
	quick := fs.Bool("quick", false, "64 B and 4 KiB, 1 and 64 callers, three short rounds")
	check := fs.Bool("check", false, "fail unless the floors against perftest hold")
	s.register(fs)
	w.register(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	if *quick {
		w.sizes, w.callers = ints{64, 4 << 10}, ints{1, 64}
		w.duration, w.rounds = time.Second, 3
	}
	if err := errors.Join(s.validate(), w.validate()); err != nil {
		return err
	}
	s.procs = cmp.Or(s.procs, max(1, runtime.NumCPU()/2))
	s.poll = cmp.Or(s.poll, "busy")
	runtime.GOMAXPROCS(s.procs)
	stopProfile, err := s.startProfile()
	if err != nil {
		return err
	}
	defer stopProfile()

	ends, noPeer := findPeers()
	addr, local := "127.0.0.1:0", ""
	if noPeer == nil {
		addr, local = ends.server.addr+":0", ends.client.addr
	}
	server, err := startServer(ctx, s, addr)
	if err != nil {
		return err
	}
	defer server.stop()

	subjects := newSubjects(s, w)
	r := newReport(s)
	if noPeer != nil {
		r.NoPeer, r.NoLibfabric = noPeer.Error(), noPeer.Error()
	} else {
		r.Perftest, r.Libfabric = &perftest{}, &libfabric{}
	}
	for round := range w.rounds {
		progress("round %d/%d: perftest, libfabric", round+1, w.rounds)
		r.others(ctx, ends)
		for _, sub := range subjects {
			if err := sub.round(ctx, local, server.addr, w, round); err != nil {
				return err
			}
			if round == 0 && sub.settings.transport == "auto" && sub.kind() == transport.TCP {
				subjects = []subject{sub} // without RDMA there is nothing to compare
				break
			}
		}
	}
	progress("")
	for _, sub := range subjects {
		for _, cell := range sub.cells {
			r.Rows = append(r.Rows, cell.row(w))
		}
	}
	if err := finish(r, *jsonPath); err != nil {
		return err
	}
	if short := r.check(); *check && len(short) > 0 {
		return fmt.Errorf("below the floor: %s", strings.Join(short, "; "))
	}
	return nil
}

// subject is one transport under measurement.
type subject struct {
	settings settings
	cells    []*cell
}

// newSubjects makes one for each transport that the settings ask for.
func newSubjects(s settings, w workload) []subject {
	kinds := []string{s.transport}
	if s.transport == "auto" {
		kinds = []string{"auto", "tcp"} // in this order, see runCommand
	}
	var subjects []subject
	for _, kind := range kinds {
		s.transport = kind
		subjects = append(subjects, subject{settings: s, cells: newCells(w)})
	}
	return subjects
}

// round measures every cell once, over a connection of its own: a poller of
// another transport must not take the CPU meanwhile.
func (s *subject) round(ctx context.Context, local, addr string, w workload, round int) error {
	c, err := dial(ctx, s.settings, local, addr)
	if err != nil {
		return err
	}
	defer c.close()
	return c.round(ctx, s.cells, w, round)
}

// kind is what carries the calls, in the first round and so in all.
func (s *subject) kind() transport.Kind { return s.cells[0].info.Kind }

// serverProcess is a child that serves. It ends when its standard input does:
// by stop, or when this process dies.
type serverProcess struct {
	addr  string
	cmd   *exec.Cmd
	stdin io.Closer
}

func startServer(ctx context.Context, s settings, listen string) (*serverProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s.transport = "auto" // the client decides
	if s.profile != "" {
		s.profile += ".server"
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"server", "-listen", listen, "-until-stdin-ends"}, s.args()...)...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &serverProcess{cmd: cmd, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		p.stop()
		return nil, fmt.Errorf("the server did not start: it said %q", line)
	}
	p.addr = addr
	return p, nil
}

func (p *serverProcess) stop() {
	_ = p.stdin.Close()
	if err := p.cmd.Wait(); err != nil {
		fmt.Fprintln(os.Stderr, "bench: server:", err)
	}
}

// progress shows what is being done, on a terminal only; "" wipes it.
func progress(format string, args ...any) {
	if info, err := os.Stderr.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	fmt.Fprintf(os.Stderr, "\r\033[K"+format, args...)
}
