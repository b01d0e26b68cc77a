package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// session is the host's side of the control port: one goroutine writes the job
// and then the requests to quit, one reads until the result or the end of the
// port. Both end when the port is closed.
type session struct {
	events chan sessionEvent // ready at most once, then one end
	quits  chan struct{}
	ended  chan struct{}
}

// sessionEvent is one of three: the guest is ready, it has a result, or there
// will be none.
type sessionEvent struct {
	ready  *ready
	result *result
	err    error
}

func newSession(control io.ReadWriter, cfg Config) *session {
	s := &session{
		events: make(chan sessionEvent, 2),
		quits:  make(chan struct{}, 1),
		ended:  make(chan struct{}),
	}
	go s.write(control, job{
		Args: cfg.Args, Dir: cfg.Dir, Env: cfg.Env, Outputs: cfg.Outputs, MTU: cfg.MTU,
	})
	go func() {
		r, err := s.read(control, cfg)
		s.events <- sessionEvent{result: r, err: err}
		close(s.ended)
	}()
	return s
}

// quit asks for SIGQUIT in the guest; more than one at a time is one.
func (s *session) quit() {
	select {
	case s.quits <- struct{}{}:
	default:
	}
}

// write needs to report no error: what breaks it ends read as well.
func (s *session) write(w io.Writer, j job) {
	if err := writeJSONFrame(w, frameJob, j); err != nil {
		return
	}
	for {
		select {
		case <-s.quits:
			if writeFrame(w, frameQuit, nil) != nil {
				return
			}
		case <-s.ended:
			return
		}
	}
}

// read carries output and files to their places until the result comes.
func (s *session) read(r io.Reader, cfg Config) (*result, error) {
	out := outputFiles{outputs: cfg.Outputs}
	defer out.close()
	wasReady := false
	for {
		kind, payload, err := readFrame(r)
		if err != nil {
			return nil, err
		}
		switch kind {
		case frameReady:
			var rdy ready
			if err := json.Unmarshal(payload, &rdy); err != nil {
				return nil, fmt.Errorf("bad ready frame: %w", err)
			}
			if wasReady { // events holds one
				return nil, errors.New("second ready frame")
			}
			wasReady = true
			s.events <- sessionEvent{ready: &rdy}
		case frameStdout:
			err = hostWrite(cfg.Stdout, payload)
		case frameStderr:
			err = hostWrite(cfg.Stderr, payload)
		case frameFile:
			err = out.write(payload)
		case frameResult:
			var res result
			if err := json.Unmarshal(payload, &res); err != nil {
				return nil, fmt.Errorf("bad result frame: %w", err)
			}
			return &res, out.close()
		default:
			err = fmt.Errorf("frame of kind %d from the guest", kind)
		}
		if err != nil {
			return nil, err
		}
	}
}

func hostWrite(w io.Writer, b []byte) error {
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("%w: %w", ErrOutput, err)
	}
	return nil
}

// outputFiles writes what the guest sends, one file after the other.
type outputFiles struct {
	outputs []Output
	path    string   // of the file being written
	file    *os.File // nil before the first
}

// write appends a piece to its file; the first piece makes the file.
func (o *outputFiles) write(payload []byte) error {
	index, name, data, err := parseFilePiece(payload)
	if err != nil {
		return err
	}
	if index >= len(o.outputs) {
		return fmt.Errorf("file frame is for output %d of %d", index, len(o.outputs))
	}
	path := o.outputs[index].Host
	if o.outputs[index].isDir() {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("output %s has a file %q", o.outputs[index].Guest, name)
		}
		path = filepath.Join(path, name)
	}
	if path != o.path {
		if err := o.open(path); err != nil {
			return err
		}
	}
	return hostWrite(o.file, data)
}

func (o *outputFiles) open(path string) error {
	if err := o.close(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("%w: %w", ErrOutput, err)
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOutput, err)
	}
	o.path, o.file = path, f
	return nil
}

func (o *outputFiles) close() error {
	f := o.file
	o.path, o.file = "", nil
	if f == nil {
		return nil
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("%w: %w", ErrOutput, err)
	}
	return nil
}
