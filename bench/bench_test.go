package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/bench/internal/load"
	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// The test binary is also the server process that run starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "server" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestRunMeasuresEveryCell(t *testing.T) {
	for _, codec := range []string{"proto", "raw"} {
		path := filepath.Join(t.TempDir(), "out.json")
		err := dispatch(t.Context(), []string{
			"run", "-rate", "0,2000", "-sizes", "0,64,20K", "-callers", "1,8", "-duration", "50ms", "-warmup", "10ms", "-rounds", "2",
			"-codec", codec, "-json", path,
		})
		require.NoError(t, err)
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		var r report
		require.NoError(t, json.Unmarshal(b, &r))
		transports := map[string]bool{}
		for _, c := range r.Rows {
			transports[c.Transport] = true
		}
		require.Equal(t, os.Getenv("VERBENA_VM") != "", transports["rdma"], "measured: %v", transports)
		require.Len(t, r.Rows, len(transports)*3*2*2, "three sizes, two numbers of callers, two loads")
		for _, c := range r.Rows {
			require.NotEmpty(t, c.Transport)
			if c.Transport == "tcp" {
				require.NotEmpty(t, c.Reason)
			}
			require.Equal(t, 2, c.Rounds)
			require.Len(t, c.Samples, 2)
			require.Positive(t, c.Calls, "%+v", c)
			require.Equal(t, 100.0, c.Latency[len(c.Latency)-1].Percent)
			require.LessOrEqual(t, c.P50, c.P99)
			require.LessOrEqual(t, c.P99, c.P999)
			for _, x := range []results.Crossings{c.ClientLinks, c.ServerLinks} {
				require.Positive(t, x.Posts, "%+v", c)
				require.Positive(t, x.Polls)
				require.GreaterOrEqual(t, x.Posted, x.Posts)
				if c.Transport == "rdma" {
					require.GreaterOrEqual(t, x.Completions, x.Polls)
				}
			}
		}
		require.NotEqual(t, r.Perftest == nil, r.NoPeer == "")
		require.NotEqual(t, r.Libfabric == nil, r.NoLibfabric == "")
	}
}

func TestScaleMeasuresConnections(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scale.json")
	require.NoError(t, dispatch(t.Context(), []string{
		"scale", "-transport", "tcp", "-connections", "1,40", "-callers", "3", "-duration", "50ms", "-rest", "100ms", "-json", path,
	}))
	f, err := readFile(path)
	require.NoError(t, err)
	require.Len(t, f.scale.Rows, 2)
	for i, n := range []int{1, 40} {
		r := f.scale.Rows[i]
		require.Equal(t, "tcp", r.Link)
		require.Equal(t, n, r.Connections)
		require.Positive(t, r.CallsPerSec)
		require.LessOrEqual(t, r.P50, r.P99)
		require.GreaterOrEqual(t, r.ServerCPU, 0.0)
	}
	r := f.scale.Rows[1]
	for _, h := range []load.Held{r.Server, r.Client} {
		require.Positive(t, h.Heap)
		require.GreaterOrEqual(t, h.Goroutines, int64(40))
		if runtime.GOOS == "linux" {
			require.InDelta(t, 40, h.Files, 2)
		}
	}
	out := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, dispatch(t.Context(), []string{"report", path, "-o", out}))
	b, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Contains(t, string(b), "Many connections")
}

// More files than any system lets a process open are refused, with both figures.
func TestTooManyFiles(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no such limit")
	}
	err := allowFiles(math.MaxInt)
	var limit *FileLimitError
	require.ErrorAs(t, err, &limit)
	require.EqualValues(t, math.MaxInt, limit.Need)
	require.Less(t, limit.Have, limit.Need)
	require.ErrorContains(t, err, "RLIMIT_NOFILE")
	require.NoError(t, allowFiles(10))
}

func TestBadFlags(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "-sizes", ""}, ""}, // usage, printed by package flag
		{[]string{"run", "-callers", "0"}, "-callers has 0"},
		{[]string{"run", "-sizes", "64M"}, "-sizes has 67108864"},
		{[]string{"run", "-duration", "-1s"}, "-duration is -1s"},
		{[]string{"run", "-rate", "20M"}, "-rate has 20971520"},
		{[]string{"run", "-rounds", "0"}, "-rounds is 0"},
		{[]string{"run", "-codec", "xml"}, `-codec is "xml"`},
		{[]string{"run", "-transport", "smoke"}, `-transport is "smoke"`},
		{[]string{"run", "-port", "300"}, "-port is 300"},
		{[]string{"run", "-poll", "often"}, `-poll is "often"`},
		{[]string{"run", "-procs", "-1"}, "-procs is -1"},
		{[]string{"run", "-slot", "100"}, "SlotSize"},
		{[]string{"run", "spare"}, `got "spare"`},
		{[]string{"scale", "-connections", "0"}, "-connections has 0"},
		{[]string{"scale", "-connections", "1M"}, "-connections has 1048576"},
		{[]string{"scale", "-callers", "0"}, "-callers has 0"},
		{[]string{"scale", "-rest", "0s"}, "-rest is 0s"},
		{[]string{"scale", "-transport", "smoke"}, `-transport is "smoke"`},
		{[]string{"client", "-addr", "127.0.0.1:1"}, "127.0.0.1:1"},
	} {
		err := dispatch(context.Background(), test.args)
		require.Error(t, err, test.args)
		require.Contains(t, err.Error(), test.want, test.args)
	}
}

func TestSizesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := ints(rapid.SliceOfN(rapid.IntRange(0, 1<<30), 1, 8).Draw(t, "sizes"))
		var out ints
		require.NoError(t, out.Set(in.String()))
		require.Equal(t, in, out)
	})
	var v ints
	require.NoError(t, v.Set("64, 4K,1M"))
	require.Equal(t, ints{64, 4096, 1 << 20}, v)
	require.Error(t, v.Set("2048M"))
	require.Error(t, v.Set("9999999999999999999"))
}

func TestSettingsReachTheServer(t *testing.T) {
	in := settings{transport: "rdma", device: "mlx5_0", port: 2, gidIndex: 3, mtu: 1024, poll: "busy", sqDepth: 64, rqDepth: 32, slot: 4096, sum: true, procs: 3}
	var out settings
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	out.register(fs)
	require.NoError(t, fs.Parse(in.args()))
	require.Equal(t, in, out)
}

// Each floor of -check is noticed when it is missed, alone.
func TestCheckNamesTheFloor(t *testing.T) {
	good := func() *report {
		return &report{
			Perftest: &perftest{SendLat: 25, SendRate: 10_000},
			Rows: []row{
				{Transport: "rdma", Cell: results.Cell{Size: perftestSize, Callers: 1, Sample: results.Sample{P50: 150}}},
				{Transport: "rdma", Cell: results.Cell{Size: perftestSize, Callers: 64, Sample: results.Sample{CallsPerSec: 2500}}},
			},
		}
	}
	require.Empty(t, good().check())
	rated := good()
	rated.Rows = append(rated.Rows, row{Transport: "rdma", Cell: results.Cell{
		Size: perftestSize, Callers: 16, Rate: 1000, Sample: results.Sample{ClientObjects: 5},
	}})
	require.Empty(t, rated.check(), "floors are of closed loops")
	var table strings.Builder
	require.NoError(t, rated.writeTable(&table))
	require.Contains(t, table.String(), "  64 callers: p50 is")
	require.NotContains(t, table.String(), "  16 callers: p50 is", "nor are the ratios of a rate")
	for want, spoil := range map[string]func(r *report){
		"perftest did not run":      func(r *report) { r.Perftest = nil },
		"p50 of one caller is 3.02": func(r *report) { r.Rows[0].P50 = 151 },
		"64 callers send 0.48":      func(r *report) { r.Rows[1].CallsPerSec = 2400 },
		"no cell of one caller":     func(r *report) { r.Rows[0].Transport = "tcp" },
		"no cell of 64 callers":     func(r *report) { r.Rows[1].Size = 128 },
		"allocates 5.0 + 0.0":       func(r *report) { r.Rows[0].ClientObjects = 5 },
		"allocates 0.0 + 4.5":       func(r *report) { r.Rows[1].ServerObjects = 4.5 },
	} {
		r := good()
		spoil(r)
		short := r.check()
		require.Len(t, short, 1, want)
		require.Contains(t, short[0], want)
		require.NoError(t, r.writeTable(io.Discard))
	}
}
