package vm

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
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
			if writeFrame(w, frameQuit) != nil {
				return
			}
		case <-s.ended:
			return
		}
	}
}

// read carries output and files to their places until the result comes.
func (s *session) read(r io.Reader, cfg Config) (*result, error) {
	files := make([]*os.File, len(cfg.Outputs))
	defer func() {
		for _, f := range files {
			f.Close() // closing nil is harmless
		}
	}()
	wasReady := false
	for {
		kind, payload, err := readFrame(r)
		if err != nil {
			return nil, err
		}
		switch kind {
		case frameReady:
			var rdy ready
			if err := json.Unmarshal(payload, &rdy); err != nil || wasReady {
				return nil, fmt.Errorf("bad ready frame: %w", err)
			}
			wasReady = true
			s.events <- sessionEvent{ready: &rdy}
		case frameStdout:
			_, err = cfg.Stdout.Write(payload)
		case frameStderr:
			_, err = cfg.Stderr.Write(payload)
		case frameFile:
			err = writeOutput(files, cfg.Outputs, payload)
		case frameResult:
			var res result
			if err := json.Unmarshal(payload, &res); err != nil {
				return nil, fmt.Errorf("bad result frame: %w", err)
			}
			return &res, nil
		default:
			err = fmt.Errorf("frame of kind %d from the guest", kind)
		}
		if err != nil {
			return nil, err
		}
	}
}

// writeOutput appends a piece to its file, which the first piece creates.
func writeOutput(files []*os.File, outputs []Output, payload []byte) (err error) {
	if len(payload) == 0 || int(payload[0]) >= len(outputs) {
		return fmt.Errorf("file frame names none of %d outputs", len(outputs))
	}
	i := payload[0]
	if files[i] == nil {
		if files[i], err = os.Create(outputs[i].Host); err != nil {
			return err
		}
	}
	_, err = files[i].Write(payload[1:])
	return err
}
