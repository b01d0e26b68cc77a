package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// peers are the two ends between which other programs measure.
type peers struct {
	server, client endpoint
}

// endpoint is a port of a device and the address of its GID.
type endpoint struct {
	device   string
	port     int
	gidIndex int
	addr     string
}

// pair is a program of others that measures between two processes of its own.
type pair struct {
	program        string
	server, client []string      // arguments
	refused        string        // is in what a client prints that came before the server listened
	column         int           // of the figure in the client's table, from 0
	limit          time.Duration // after which it is given up
}

// run is once, tried again where that printed no figure.
func (p *pair) run(ctx context.Context) (v float64, err error) {
	for range 3 {
		if v, err = p.once(ctx); !errors.Is(err, errNoFigure) {
			break
		}
	}
	return v, err
}

// once runs server and client and returns the figure.
func (p *pair) once(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	var said bytes.Buffer
	server := exec.CommandContext(ctx, p.program, p.server...)
	server.Stdout, server.Stderr, server.WaitDelay = &said, &said, time.Second
	if err := server.Start(); err != nil {
		return 0, fmt.Errorf("%s server: %w", p.program, err)
	}
	ended := make(chan struct{})
	var ending error
	go func() {
		ending = server.Wait()
		close(ended)
	}()
	defer func() { _ = server.Process.Kill(); <-ended }()

	// The client gives up at once when the server does not listen yet, and
	// to look whether it does would be taken for the client.
	for {
		var out bytes.Buffer
		client := exec.CommandContext(ctx, p.program, p.client...)
		client.Stdout, client.Stderr, client.WaitDelay = &out, &out, time.Second
		err := client.Run()
		switch {
		case err == nil:
			return tableColumn(&out, p.column)
		case ctx.Err() == context.DeadlineExceeded:
			return 0, fmt.Errorf("%s hangs: no result within %v", p.program, p.limit)
		case !strings.Contains(out.String(), p.refused):
			return 0, fmt.Errorf("%s client: %w: %s", p.program, err, lastLine(out.String()))
		}
		select {
		case <-ended:
			return 0, fmt.Errorf("%s server: ended without a client (%v): %s", p.program, ending, lastLine(said.String()))
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// tableColumn finds the line of figures under a header that begins with "bytes"
// or "#bytes".
func tableColumn(out *bytes.Buffer, column int) (float64, error) {
	inTable := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 0 && strings.TrimPrefix(fields[0], "#") == "bytes" {
			inTable = true
			continue
		}
		if inTable && len(fields) > column {
			v, err := strconv.ParseFloat(fields[column], 64)
			if err != nil || v <= 0 || math.IsInf(v, 0) {
				return 0, fmt.Errorf("%w: %q", errNoFigure, fields[column])
			}
			return v, nil
		}
	}
	return 0, fmt.Errorf("%w: no table with %d columns", errNoFigure, column+1)
}

// errNoFigure is a run without a usable result. perftest measures the frequency
// of the CPU first, and on a busy machine finds none at times: the latency is
// then inf.
var errNoFigure = errors.New("no figure printed")

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

func freePort(addr string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}
