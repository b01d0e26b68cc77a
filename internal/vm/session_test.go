package vm

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// guestSays plays the guest: it takes the job, sends what say writes, and goes.
func guestSays(t *testing.T, cfg Config, say func(w io.Writer)) (events []sessionEvent) {
	host, guest := net.Pipe()
	defer host.Close()
	s := newSession(host, cfg)
	_, err := readJob(guest)
	require.NoError(t, err)
	go func() {
		say(guest)
		guest.Close()
	}()
	for {
		e := <-s.events
		events = append(events, e)
		if e.ready == nil {
			return events
		}
	}
}

func TestSessionCarriesARun(t *testing.T) {
	var stdout, stderr bytes.Buffer
	dir := t.TempDir()
	cfg := Config{Args: []string{"p"}, Stdout: &stdout, Stderr: &stderr, Outputs: []Output{
		{"/f", filepath.Join(dir, "f")}, {"/d/", filepath.Join(dir, "d")},
	}}
	events := guestSays(t, cfg, func(w io.Writer) {
		writeJSONFrame(w, frameReady, ready{Kernel: "6.1"})
		writeFrame(w, frameStdout, []byte("one\n"))
		writeFrame(w, frameStderr, []byte("two\r\n"))
		writeFrame(w, frameStdout, []byte("three"))
		writeFrame(w, frameFile, filePiece(0, "", []byte("ab")))
		writeFrame(w, frameFile, filePiece(0, "", []byte("cd")))
		writeFrame(w, frameFile, filePiece(1, "x/y", []byte("e")))
		writeFrame(w, frameFile, filePiece(1, "empty", nil))
		writeJSONFrame(w, frameResult, result{ExitCode: 3})
	})
	require.Equal(t, []sessionEvent{{ready: &ready{Kernel: "6.1"}}, {result: &result{ExitCode: 3}}}, events)
	require.Equal(t, "one\nthree", stdout.String())
	require.Equal(t, "two\r\n", stderr.String())
	for name, want := range map[string]string{"f": "abcd", "d/x/y": "e", "d/empty": ""} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
}

func TestSessionRefusesAGuestThatMisbehaves(t *testing.T) {
	dir := t.TempDir()
	for want, say := range map[string]func(w io.Writer){
		"EOF":                   func(io.Writer) {},
		"frame of kind 2":       func(w io.Writer) { writeFrame(w, frameQuit, nil) },
		"bad ready frame":       func(w io.Writer) { writeFrame(w, frameReady, []byte("x")) },
		"second ready frame":    func(w io.Writer) { writeFrame(w, frameReady, []byte("{}")); writeFrame(w, frameReady, []byte("{}")) },
		"bad result frame":      func(w io.Writer) { writeFrame(w, frameResult, []byte("x")) },
		"output 1 of 1":         func(w io.Writer) { writeFrame(w, frameFile, filePiece(1, "", nil)) },
		`has a file "../a"`:     func(w io.Writer) { writeFrame(w, frameFile, filePiece(0, "../a", nil)) },
		`has a file "/etc/bad"`: func(w io.Writer) { writeFrame(w, frameFile, filePiece(0, "/etc/bad", nil)) },
	} {
		cfg := Config{Args: []string{"p"}, Stdout: io.Discard, Stderr: io.Discard, Outputs: []Output{{"/d/", dir}}}
		events := guestSays(t, cfg, say)
		require.ErrorContains(t, events[len(events)-1].err, want)
	}
}

func TestSessionNamesTheHostsOwnFaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	cfg := Config{Args: []string{"p"}, Outputs: []Output{{"/f", filepath.Join(file, "below")}}}
	events := guestSays(t, cfg, func(w io.Writer) { writeFrame(w, frameFile, filePiece(0, "", nil)) })
	require.ErrorIs(t, events[0].err, ErrOutput)
}

func TestSessionQuits(t *testing.T) {
	host, guest := net.Pipe()
	s := newSession(host, Config{Args: []string{"p"}})
	_, err := readJob(guest)
	require.NoError(t, err)
	s.quit()
	kind, _, err := readFrame(guest)
	require.NoError(t, err)
	require.Equal(t, frameQuit, kind)
	host.Close()
	require.Error(t, (<-s.events).err)
	<-s.ended
	s.quit() // after the end: no effect, no panic
}
