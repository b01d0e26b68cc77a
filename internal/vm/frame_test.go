package vm

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestFramesComeBackAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.SliceOf(rapid.ByteRange(byte(frameJob), byte(frameResult))).Draw(t, "kinds")
		var stream bytes.Buffer
		var payloads [][]byte
		for _, k := range kinds {
			p := rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "payload")
			payloads = append(payloads, p)
			require.NoError(t, writeFrame(&stream, frameKind(k), p))
		}
		for i, k := range kinds {
			kind, payload, err := readFrame(&stream)
			require.NoError(t, err)
			require.Equal(t, frameKind(k), kind)
			require.True(t, bytes.Equal(payloads[i], payload))
		}
		_, _, err := readFrame(&stream)
		require.Equal(t, io.EOF, err)
	})
}

func TestReadFrameRefuses(t *testing.T) {
	for name, in := range map[string]struct {
		bytes []byte
		want  string
	}{
		"kind 0":            {[]byte{0, 0, 0, 0, 0}, "unknown frame kind"},
		"kind too high":     {[]byte{byte(frameResult) + 1, 0, 0, 0, 0}, "unknown frame kind"},
		"length":            {[]byte{1, 0xff, 0xff, 0xff, 0xff}, "is over"},
		"truncated header":  {[]byte{1, 0}, "unexpected EOF"},
		"truncated payload": {[]byte{1, 2, 0, 0, 0, 'x'}, "unexpected EOF"},
		"missing payload":   {[]byte{1, 2, 0, 0, 0}, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := readFrame(bytes.NewReader(in.bytes))
			require.ErrorContains(t, err, in.want)
		})
	}
}

func TestWriteFrameRefusesTooMuch(t *testing.T) {
	require.ErrorContains(t, writeFrame(io.Discard, frameStdout, make([]byte, maxFrame+1)), "is over")
}

func TestReadJob(t *testing.T) {
	var stream bytes.Buffer
	want := job{Args: []string{"a", "b"}, Dir: "/d", Env: []string{"X=1"}, Outputs: []Output{{Guest: "/g"}}, MTU: 1500}
	require.NoError(t, writeJSONFrame(&stream, frameJob, want))
	got, err := readJob(&stream)
	require.NoError(t, err)
	require.Equal(t, want, got)

	for want, frame := range map[string]func(){
		"first frame is of kind": func() { writeFrame(&stream, frameQuit, nil) },
		"invalid character":      func() { writeFrame(&stream, frameJob, []byte("x")) },
		"0 arguments":            func() { writeFrame(&stream, frameJob, []byte("{}")) },
	} {
		frame()
		_, err := readJob(&stream)
		require.ErrorContains(t, err, want)
	}
}

func TestFilePiece(t *testing.T) {
	index, name, data, err := parseFilePiece(filePiece(7, "a/b", []byte("data")))
	require.NoError(t, err)
	require.Equal(t, 7, index)
	require.Equal(t, "a/b", name)
	require.Equal(t, "data", string(data))
	for _, short := range [][]byte{nil, {1, 2}, {1, 2, 0, 'x'}} {
		_, _, _, err := parseFilePiece(short)
		require.Error(t, err)
	}
}
