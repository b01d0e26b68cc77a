package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-rpc/verbena/bench/internal/load"
	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// serveCommand serves until standard input ends, which happens however the
// parent dies. Each line of input is answered with what this process has used.
func serveCommand(name string) error {
	k, err := findKind(name)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		failed <- k.serve(func(addr net.Addr) { fmt.Println("listening on", addr) })
	}()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			asked <- struct{}{}
		}
	}()
	out := json.NewEncoder(os.Stdout)
	for {
		select {
		case err := <-failed:
			return fmt.Errorf("serve %s: %w", name, err)
		case _, ok := <-asked:
			if !ok {
				return nil
			}
			if err := out.Encode(load.ReadUsage()); err != nil {
				return err
			}
		}
	}
}

// called is what call prints.
type called struct {
	Result load.Result `json:"result"`
	Usage  load.Usage  `json:"usage"` // of the client, from after it connected
}

// callCommand measures one cell once.
func callCommand(ctx context.Context, name string, args []string) error {
	k, err := findKind(name)
	if err != nil {
		return err
	}
	var o load.Options
	fs := flag.NewFlagSet("peers call", flag.ContinueOnError)
	addr := fs.String("addr", "", "`address` of a server of the same kind")
	size := fs.Int("size", 64, "payload `bytes`")
	fs.IntVar(&o.Callers, "callers", 1, "`number` of concurrent callers")
	fs.DurationVar(&o.Duration, "duration", time.Second, "measured time")
	fs.DurationVar(&o.Warmup, "warmup", 200*time.Millisecond, "time before it that does not count")
	if err := parse(fs, args); err != nil {
		return err
	}
	c, err := k.dial(ctx, *addr)
	if err != nil {
		return fmt.Errorf("dial %s: %w", name, err)
	}
	before := load.ReadUsage()
	r, err := c.measure(ctx, *size, o)
	usage := load.ReadUsage().Sub(before)
	if err := errors.Join(err, c.close()); err != nil {
		return fmt.Errorf("call %s: %w", name, err)
	}
	return json.NewEncoder(os.Stdout).Encode(called{r, usage})
}

// measure starts a server and a client of kind k, and returns what they showed.
func measure(ctx context.Context, k kind, size int, o load.Options) (results.Sample, load.Histogram, error) {
	server, err := startServer(ctx, k)
	if err != nil {
		return results.Sample{}, load.Histogram{}, err
	}
	defer server.stop()
	before, err := server.usage()
	if err != nil {
		return results.Sample{}, load.Histogram{}, err
	}
	// A cell may take ten times its duration; what takes longer hangs.
	limit := time.Minute + 20*o.Duration + o.Warmup
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no result after %v", limit))
	defer cancel()
	cmd := exec.CommandContext(ctx, server.cmd.Path, "call", k.name, "-addr", server.addr, "-size", strconv.Itoa(size),
		"-callers", strconv.Itoa(o.Callers), "-duration", o.Duration.String(), "-warmup", o.Warmup.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return results.Sample{}, load.Histogram{}, fmt.Errorf("%s, %d B, %d callers: %w", k.name, size, o.Callers, cmp.Or(context.Cause(ctx), err))
	}
	after, err := server.usage()
	if err != nil {
		return results.Sample{}, load.Histogram{}, err
	}
	var c called
	if err := json.Unmarshal(out, &c); err != nil {
		return results.Sample{}, load.Histogram{}, fmt.Errorf("%s: what the client printed: %w", k.name, err)
	}
	return results.NewSample(c.Result, c.Usage, after.Sub(before)), c.Result.Latency, nil
}

// serverProcess is a child that serves. It ends when its standard input does.
type serverProcess struct {
	name  string
	addr  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
}

func startServer(ctx context.Context, k kind) (*serverProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &serverProcess{name: k.name, cmd: exec.CommandContext(ctx, self, "serve", k.name)}
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := p.out.ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		p.stop()
		return nil, fmt.Errorf("the server of %s did not start: it said %q", k.name, line)
	}
	p.addr = addr
	return p, nil
}

func (p *serverProcess) usage() (u load.Usage, err error) {
	if _, err = fmt.Fprintln(p.stdin, "usage"); err == nil {
		var line []byte
		if line, err = p.out.ReadBytes('\n'); err == nil {
			err = json.Unmarshal(line, &u)
		}
	}
	if err != nil {
		return u, fmt.Errorf("usage of the server of %s: %w", p.name, err)
	}
	return u, nil
}

func (p *serverProcess) stop() {
	_ = p.stdin.Close()
	_ = p.cmd.Wait() // what matters was measured before
}
