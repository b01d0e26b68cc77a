package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/bench/internal/load"
	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// The test binary is also the server and client processes that run starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "serve" || os.Args[1] == "call") {
		main()
		return
	}
	os.Exit(m.Run())
}

// Every kind answers, small and large, from one caller and from many.
func TestEveryKindAnswers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.json")
	require.NoError(t, dispatch(t.Context(), []string{
		"run", "-sizes", "64,300000", "-callers", "1,8", "-rounds", "1", "-duration", "100ms", "-warmup", "0s", "-json", path,
	}))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var f results.PeersFile
	require.NoError(t, json.Unmarshal(b, &f))
	require.Len(t, f.Rows, 4*len(kinds))
	for _, r := range f.Rows {
		cell := fmt.Sprintf("%s, %d B, %d callers", r.Peer, r.Size, r.Callers)
		require.Positive(t, r.Calls, cell)
		require.Positive(t, r.CallsPerSec, cell)
		require.LessOrEqual(t, r.P50, r.P99, cell)
	}
	require.Len(t, f.Compared, 4*2)
}

// More in flight than the sockets hold must not stop both sides.
func TestTheBoundDoesNotStall(t *testing.T) {
	addr := make(chan string, 1)
	go func() { _ = serveSocket(func(a net.Addr) { addr <- a.String() }) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := socketConn{<-addr}.measure(ctx, 4<<20, load.Options{Callers: 16, Duration: 200 * time.Millisecond})
	require.NoError(t, err)
	require.Positive(t, r.Calls)
}

func TestBadArguments(t *testing.T) {
	for want, args := range map[string][]string{
		`no kind "smoke"`:  {"run", "-only", "smoke"},
		`no kind "fog"`:    {"serve", "fog"},
		`-sizes has "x"`:   {"run", "-sizes", "x"},
		`-callers has "0"`: {"run", "-callers", "0"},
		"-rounds is 0":     {"run", "-rounds", "0"},
		"dial ttrpc":       {"call", "ttrpc", "-addr", "127.0.0.1:1"},
		`got "spare"`:      {"run", "spare"},
		"usage":            {"walk"},
	} {
		require.ErrorContains(t, dispatch(t.Context(), args), want)
	}
}

// good has two cells in which every ratio holds.
func good() *results.PeersFile {
	f := &results.PeersFile{}
	add := func(name, role string, size int, s results.Sample) {
		f.Rows = append(f.Rows, results.PeerRow{Peer: name, Role: role, Cell: results.Cell{Size: size, Callers: 16, Rounds: 5, Sample: s}})
	}
	for _, size := range []int{64, 64 << 10} {
		add(nameBound, results.RoleBound, size, results.Sample{CallsPerSec: 1000})
		add(nameProto, results.RoleOurs, size, results.Sample{CallsPerSec: 650, P99: 10, ClientCPU: 1, ServerCPU: 1, ClientObjects: 2, ServerObjects: 2})
		add(nameRaw, results.RoleOurs, size, results.Sample{CallsPerSec: 900})
		add(nameGRPC, results.RolePeer, size, results.Sample{CallsPerSec: 100, P99: 40, ClientCPU: 5, ServerCPU: 5})
		add("drpc", results.RolePeer, size, results.Sample{CallsPerSec: 400, P99: 20})
	}
	f.Compared = f.Ratios()
	return f
}

// Each ratio is noticed when it is missed, and names the cell to measure again.
func TestCheckNamesTheRatio(t *testing.T) {
	missed, again := checkRatios(good())
	require.Empty(t, missed)
	require.Empty(t, again)
	for want, spoil := range map[string]func(f *results.PeersFile){
		"0.93 of the calls/s of drpc":        func(f *results.PeersFile) { f.Rows[4].CallsPerSec = 700 },
		"1 of 2 cells have 1.5 times":        func(f *results.PeersFile) { f.Rows[4].CallsPerSec = 500 },
		"than the 0.42 that gorpc had":       func(f *results.PeersFile) { f.Rows[0].CallsPerSec = 1600 },
		"p99 is 2.00 of the lowest":          func(f *results.PeersFile) { f.Rows[4].P99 = 5 },
		"CPU per call is 0.40":               func(f *results.PeersFile) { f.Rows[1].ServerCPU = 3 },
		"64 B, 16 callers: the raw codec":    func(f *results.PeersFile) { f.Rows[2].CallsPerSec = 490 },
		"64 KiB, 16 callers: the raw codec":  func(f *results.PeersFile) { f.Rows[7].CallsPerSec = 840 },
		"protobuf has 0.59":                  func(f *results.PeersFile) { f.Rows[6].CallsPerSec, f.Rows[9].CallsPerSec = 590, 300 },
		"verbena allocates 3.00 objects":     func(f *results.PeersFile) { f.Rows[1].ServerObjects = 3 },
		"verbena-raw allocates 0.20 objects": func(f *results.PeersFile) { f.Rows[2].ClientObjects = 0.2 },
	} {
		f := good()
		spoil(f)
		f.Compared = f.Ratios()
		missed, again := checkRatios(f)
		require.NotEmpty(t, missed, want)
		require.Contains(t, missed[0], want)
		require.Len(t, again, 1, want)
		require.NoError(t, writeTables(io.Discard, f))
	}
	missed, _ = checkRatios(&results.PeersFile{})
	require.Len(t, missed, 1)
}
