package vm

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// The control port carries frames: kind (1 byte), length (4 bytes, little
// endian), payload. One ordered stream, so that everything the program wrote
// has arrived when the result has.
type frameKind byte

const (
	frameJob    frameKind = iota + 1 // host to guest, first: job as JSON
	frameQuit                        // host to guest: SIGQUIT to the program
	frameReady                       // guest to host, once: ready as JSON
	frameStdout                      // guest to host: bytes of the program
	frameStderr                      // guest to host: bytes of the program
	frameFile                        // guest to host: piece of an output, see filePiece
	frameResult                      // guest to host, last: result as JSON
)

// The kernel's virtio console takes at most 32 KiB per write
// (drivers/char/virtio_console.c): pieces of output that fit with their header
// go out in one. A job may be larger: arguments and environment, which the
// kernel bounds by ARG_MAX (2 MiB).
const (
	frameHeader = 5
	maxData     = 32<<10 - 512
	maxFrame    = 4 << 20
	maxOutputs  = 255 // their index is one byte
)

// ready says that the guest is about to start the program.
type ready struct {
	Kernel string `json:"kernel"`
}

// result is the guest's last word. Fault is set when the guest failed to do its
// part, NotStarted when the program could not be executed.
type result struct {
	ExitCode   int    `json:"exitCode"`
	NotStarted string `json:"notStarted,omitempty"`
	Fault      string `json:"fault,omitempty"`
}

// writeFrame writes header and payload in one Write.
func writeFrame(w io.Writer, kind frameKind, payload []byte) error {
	if len(payload) > maxFrame {
		return fmt.Errorf("frame of %d bytes is over %d", len(payload), maxFrame)
	}
	buf := make([]byte, 0, frameHeader+len(payload))
	buf = append(buf, byte(kind))
	buf = binary.LittleEndian.AppendUint32(buf, uint32(len(payload)))
	_, err := w.Write(append(buf, payload...))
	return err
}

func writeJSONFrame(w io.Writer, kind frameKind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFrame(w, kind, b)
}

// readFrame returns io.EOF only between frames.
func readFrame(r io.Reader) (frameKind, []byte, error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	kind, n := frameKind(h[0]), binary.LittleEndian.Uint32(h[1:])
	if kind < frameJob || kind > frameResult {
		return 0, nil, fmt.Errorf("unknown frame kind %d", kind)
	}
	if n > maxFrame {
		return 0, nil, fmt.Errorf("frame of %d bytes is over %d", n, maxFrame)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return kind, payload, nil
}

// readJob reads the first frame that the host sends.
func readJob(r io.Reader) (job, error) {
	var j job
	kind, payload, err := readFrame(r)
	if err != nil {
		return j, err
	}
	if kind != frameJob {
		return j, fmt.Errorf("first frame is of kind %d, want %d", kind, frameJob)
	}
	if err := json.Unmarshal(payload, &j); err != nil {
		return j, fmt.Errorf("job: %w", err)
	}
	if len(j.Args) == 0 || len(j.Outputs) > maxOutputs {
		return j, fmt.Errorf("job has %d arguments and %d outputs", len(j.Args), len(j.Outputs))
	}
	return j, nil
}

// filePiece is the payload of a file frame: index of the output (1 byte), length
// of the file's name below an output directory (2 bytes, little endian; 0 for an
// output that is a file), name, bytes.
func filePiece(index int, name string, data []byte) []byte {
	b := make([]byte, 0, 3+len(name)+len(data))
	b = append(b, byte(index))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(name)))
	b = append(b, name...)
	return append(b, data...)
}

func parseFilePiece(b []byte) (index int, name string, data []byte, err error) {
	if len(b) < 3 {
		return 0, "", nil, fmt.Errorf("file frame of %d bytes", len(b))
	}
	n := int(binary.LittleEndian.Uint16(b[1:]))
	if len(b) < 3+n {
		return 0, "", nil, fmt.Errorf("file frame of %d bytes has a name of %d", len(b), n)
	}
	return int(b[0]), string(b[3 : 3+n]), b[3+n:], nil
}
