package main

import (
	"bytes"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTableColumn(t *testing.T) {
	for text, want := range map[string]struct {
		column int
		figure float64
	}{
		"noise\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n 64      1000          23.28          53879.56      24.71    \t       590.37\n": {4, 24.71},
		"bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n64      1k      =1k      125k        0.35s      0.37     175.21       0.01\n":             {6, 175.21},
	} {
		v, err := tableColumn(bytes.NewBufferString(text), want.column)
		require.NoError(t, err)
		require.Equal(t, want.figure, v)
	}
	for _, bad := range []string{"Couldn't connect\n", " #bytes\n 64 1 2 3\n", " #bytes\n 64 1 2 3 inf\n", " #bytes\n 64 1 2 3 0.00\n", "bytes moved\n"} {
		_, err := tableColumn(bytes.NewBufferString(bad), 4)
		require.ErrorIs(t, err, errNoFigure, bad)
	}
}

// Whatever a program of others does, its pair ends, with a figure or a reason.
func TestPairEnds(t *testing.T) {
	if _, err := exec.LookPath("/bin/sh"); err != nil {
		t.Skip("no shell to write programs in: ", err)
	}
	const waits, prints = "exec sleep 100", "echo bytes us; echo 64 1.5"
	for _, c := range []struct {
		name, server, client string
		limit                time.Duration
		want                 string // error; empty: a figure
	}{
		{"figure", waits, prints, time.Minute, ""},
		{"the server listens late", "sleep 0.5; touch $DIR/late; " + waits, "test -e $DIR/late || { echo refused; exit 1; }; " + prints, time.Minute, ""},
		{"no figure", waits, "echo bytes us; echo 64 inf", time.Minute, `no figure printed: "inf"`},
		{"client hangs", waits, waits, time.Second, "hangs: no result within 1s"},
		{"server hangs", waits, "echo refused; exit 1", time.Second, "hangs: no result within 1s"},
		{"a child keeps the output", "sleep 4 & wait", "sleep 4 & wait", time.Second, "hangs: no result within 1s"},
		{"client fails", waits, "echo first; echo no device; exit 3", time.Minute, "client: exit status 3: no device"},
		{"server fails", "echo no provider; exit 2", "sleep 0.5; echo refused; exit 1", time.Minute, "ended without a client (exit status 2): no provider"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			script := func(text string) []string { return []string{"-c", "DIR=" + t.TempDir() + "/..; " + text} }
			p := pair{program: "/bin/sh", server: script(c.server), client: script(c.client), refused: "refused", column: 1, limit: c.limit}
			v, err := p.run(t.Context())
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, 1.5, v)
		})
	}
	_, err := (&pair{program: "no-such-program", limit: time.Minute}).run(t.Context())
	require.ErrorIs(t, err, exec.ErrNotFound)
}
