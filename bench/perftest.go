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
	"slices"
	"strconv"
	"strings"
	"time"
)

// perftestSize is the message size of the comparison in bytes.
const perftestSize = 64

// perftest is what ib_send_lat and ib_send_bw showed: medians over the rounds.
type perftest struct {
	SendLat  float64 `json:"send_lat_us"`           // half a round trip, as printed
	SendRate float64 `json:"send_messages_per_sec"` // one way
	lats     []float64
	rates    []float64
}

// peers are the two ends between which perftest runs.
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

// round runs both programs once and takes their figures in.
func (p *perftest) round(ctx context.Context, ends peers) error {
	size := strconv.Itoa(perftestSize)
	// Column 4 of ib_send_lat is t_typical in µs; column 4 of ib_send_bw the
	// message rate in millions per second.
	lat, err := runPerftest(ctx, "ib_send_lat", ends, 4, "-s", size, "-n", "1000")
	if err != nil {
		return err
	}
	rate, err := runPerftest(ctx, "ib_send_bw", ends, 4, "-s", size, "-n", "10000")
	if err != nil {
		return err
	}
	p.lats, p.rates = append(p.lats, lat), append(p.rates, rate*1e6)
	p.SendLat, p.SendRate = middle(p.lats), middle(p.rates)
	return nil
}

func middle(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// runPerftest is perftestOnce, tried again where that printed no figure.
func runPerftest(ctx context.Context, program string, ends peers, column int, args ...string) (v float64, err error) {
	for range 3 {
		if v, err = perftestOnce(ctx, program, ends, column, args...); !errors.Is(err, errNoFigure) {
			break
		}
	}
	return v, err
}

// perftestOnce runs a perftest program as server and client and returns the
// given column (from 0) of the client's table.
func perftestOnce(ctx context.Context, program string, ends peers, column int, args ...string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	port, err := freePort(ends.server.addr)
	if err != nil {
		return 0, err
	}
	command := func(e endpoint, peer ...string) *exec.Cmd {
		all := []string{"-F", "-d", e.device, "-i", strconv.Itoa(e.port), "-x", strconv.Itoa(e.gidIndex), "-p", strconv.Itoa(port)}
		return exec.CommandContext(ctx, program, append(append(all, args...), peer...)...)
	}
	server := command(ends.server)
	if err := server.Start(); err != nil {
		return 0, fmt.Errorf("%s server: %w", program, err)
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()

	// The client gives up at once when the server does not listen yet, and
	// to look whether it does would be taken for the client.
	for {
		var out bytes.Buffer
		client := command(ends.client, ends.server.addr)
		client.Stdout, client.Stderr = &out, &out
		if err = client.Run(); err == nil {
			return tableColumn(&out, column)
		}
		err = fmt.Errorf("%s client: %w: %s", program, err, lastLine(out.String()))
		if !strings.Contains(out.String(), "Couldn't connect") {
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// tableColumn finds the line of figures under perftest's "#bytes" header.
func tableColumn(out *bytes.Buffer, column int) (float64, error) {
	inTable := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 0 && strings.HasPrefix(fields[0], "#bytes") {
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

// errNoFigure is a run of perftest without a usable result. It measures the
// frequency of the CPU first, and on a busy machine finds none at times: the
// latency is then inf.
var errNoFigure = errors.New("perftest printed no figure")

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

func freePort(addr string) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
