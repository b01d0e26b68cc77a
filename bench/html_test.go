package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/bench/internal/load"
	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// someCell has five rounds around callsPerSec.
func someCell(size, callers, rate int, callsPerSec float64) results.Cell {
	h := load.NewHistogram()
	for i := range 1000 {
		h.Record(time.Duration(20+i/4) * time.Microsecond)
	}
	var samples []results.Sample
	for i := range 5 {
		samples = append(samples, results.Sample{Calls: 1000, Unsent: int64(rate), PacerP99: float64(rate) / 8, CallsPerSec: callsPerSec + float64(i), P50: 145, P99: 267, P999: 269, ClientCPU: 3, ServerCPU: 4,
			ClientLinks: results.Crossings{Posts: 2, Posted: 4.5, Polls: 1, Completions: 2}, ServerLinks: results.Crossings{Posts: 1, Posted: 2, Polls: 2, Completions: 2}})
	}
	return results.NewCell(size, callers, rate, samples, h)
}

// writeSamples writes a file of each benchmark and returns their paths.
func writeSamples(t *testing.T) (paths []string) {
	write := func(name string, v any) {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, results.Write(path, v))
		paths = append(paths, path)
	}
	run := &report{Header: results.NewHeader(results.Run), Poll: "busy", Perftest: &perftest{SendLat: 20, SendRate: 30_000}, Libfabric: &libfabric{Pingpong: 100}}
	for _, transport := range []string{"rdma", "tcp"} {
		for _, size := range []int{64, 4096} {
			for i, callers := range []int{1, 64} {
				run.Rows = append(run.Rows, row{Transport: transport, Reason: "a <reason>", Codec: "proto", Cell: someCell(size, callers, 0, 9_000*float64(i+1))})
			}
		}
		for _, rate := range []int{1000, 2000, 4000} {
			run.Rows = append(run.Rows, row{Transport: transport, Codec: "proto", Cell: someCell(64, 16, rate, float64(rate))})
		}
	}
	write("run.json", run)
	peers := &results.PeersFile{Header: results.NewHeader(results.Peers), Missed: []string{"64 B: p99"}}
	for i, callers := range []int{1, 16} {
		for _, p := range []struct{ name, role string }{{"socket", results.RoleBound}, {"verbena", results.RoleOurs}, {"grpc", results.RolePeer}} {
			peers.Rows = append(peers.Rows, results.PeerRow{Peer: p.name, Role: p.role, Cell: someCell(64, callers, 0, 5_000*float64(i+1))})
		}
	}
	peers.Compared = peers.Ratios()
	peers.Elsewhere = []results.ElsewhereCell{{Size: 64, Callers: 1, Bound: 100, Best: 40, Peer: "other"}}
	write("peers.json", peers)
	write("connect.json", &connectReport{Header: results.NewHeader(results.Connect), Gain: 3.8, Rows: []connectRow{
		{Kind: fromPool, N: 25, phases: phases{Hello: 17760, Prepare: 365, Total: 61545}}, {Kind: overTCP, N: 25, phases: phases{Hello: 18528, Total: 28833}},
	}})
	write("failover.json", &failoverReport{Header: results.NewHeader(results.Failover), Gain: 20, Rows: []failoverRow{{Kind: "to a standby link", N: 20, Resumed: 300, P90: 500, Gap: 900}}})
	return paths
}

func TestReportShowsEveryFile(t *testing.T) {
	paths := writeSamples(t)
	out := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, dispatch(t.Context(), append([]string{"report", paths[0], "-o", out}, paths[1:]...)))
	b, err := os.ReadFile(out)
	require.NoError(t, err)
	html := string(b)
	for _, want := range []string{
		"run.json", "peers.json", "connect.json", "failover.json", "polling: busy", "64 B: throughput", "64 B: latency, 64 callers",
		"64 B: latency at a given rate, 16 callers", "p50 in round trips of ib_send_lat",
		"a lone caller&#39;s p50 is 0.72 of those, its mean 0.56", "WR per post client", ">2.25<", ">unsent<", ">20000<", ">pacer µs<", ">500.0<", "Calls/s in those of the best peer",
		"a &lt;reason&gt;", "Dial to the reply of the first call", "When the link dies that carries calls", "Ratios that do not hold", "64 B: p99",
	} {
		require.Contains(t, html, want)
	}
	require.NotContains(t, html, "NaN")
}

func TestReportRefusesOtherFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	for text, want := range map[string]string{
		"":                                     "expected a result of a benchmark",
		"[]":                                   "expected a result of a benchmark",
		"{}":                                   `"benchmark" is ""`,
		`{"benchmark":"run","rows":7}`:         "x.json",
		`{"benchmark":"peers","rows":["a"]}`:   "x.json",
		`{"benchmark":"marathon","rows":[{}]}`: `"benchmark" is "marathon"`,
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.ErrorContains(t, dispatch(t.Context(), []string{"report", path, "-o", path + ".html"}), want)
	}
	require.ErrorContains(t, dispatch(t.Context(), []string{"report"}), "at least one file")
}

// A browser draws the page: every chart has a size and marks inside of it, no
// text is cut off, nothing is asked from the network, and no script is needed.
func TestABrowserDrawsTheReport(t *testing.T) {
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
			break
		}
	}
	if browser == "" {
		t.Skip("no chromium, chromium-browser or google-chrome is installed (apt-get install chromium)")
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "report.html")
	require.NoError(t, dispatch(t.Context(), append([]string{"report", "-o", out}, writeSamples(t)...)))
	b, err := os.ReadFile(out)
	require.NoError(t, err)
	// The page is measured by a script that only the test adds.
	probe := filepath.Join(dir, "probe.html")
	require.NoError(t, os.WriteFile(probe, append(b, []byte(measureScript)...), 0o600))
	cmd := exec.CommandContext(t.Context(), browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--user-data-dir="+filepath.Join(dir, "profile"), "--window-size=1200,900", "--virtual-time-budget=2000", "--dump-dom", "file://"+probe)
	cmd.WaitDelay = 10 * time.Second
	dom, err := cmd.Output()
	require.NoError(t, err)
	_, found, ok := strings.Cut(string(dom), `<pre id="measured">`)
	require.True(t, ok, "the browser printed: %.300s", dom)
	found, _, _ = strings.Cut(found, "</pre>")
	var m struct {
		Charts, Marks, Outside, Tables, Requests int
		Which                                    []string // texts or tags of those outside
		Wide                                     bool
	}
	require.NoError(t, json.Unmarshal([]byte(found), &m), found)
	t.Logf("%s: %+v", browser, m)
	require.GreaterOrEqual(t, m.Charts, 12)
	require.GreaterOrEqual(t, m.Tables, 6)
	require.Greater(t, m.Marks, 200)
	require.Zero(t, m.Outside, "marks or texts that leave their chart: %q", m.Which)
	require.Zero(t, m.Requests, "requests for other files")
	require.False(t, m.Wide, "the page is wider than the window")
}

const measureScript = `<script>
let marks = 0, outside = 0, which = [];
const charts = [...document.querySelectorAll("svg")].filter(s => s.getBoundingClientRect().height > 100);
for (const svg of charts) {
  const frame = svg.getBoundingClientRect();
  for (const e of svg.querySelectorAll("rect, circle, polyline, text")) {
    const r = e.getBoundingClientRect();
    marks++;
    if (r.left < frame.left - 1 || r.right > frame.right + 1 || r.top < frame.top - 1 || r.bottom > frame.bottom + 1) { outside++; which.push(e.textContent || e.outerHTML); }
  }
}
const pre = document.createElement("pre");
pre.id = "measured";
pre.textContent = JSON.stringify({
  Charts: charts.length, Marks: marks, Outside: outside, Which: which, Tables: document.querySelectorAll("table").length,
  Requests: performance.getEntriesByType("resource").length,
  Wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
});
document.body.append(pre);
</script>`
