//go:build !linux

package tcp

import (
	"net"
	"time"
)

// setUserTimeout has no effect: keepalive alone finds dead peers here.
func setUserTimeout(*net.TCPConn, time.Duration) error { return nil }

// rawWriter exists on Linux alone; elsewhere the writer goroutine writes.
type rawWriter struct{}

func newRawWriter(net.Conn) *rawWriter { return nil }

func (*rawWriter) acked() uint64 { return 0 }

func (*rawWriter) write(*outgoing, bool) (int64, error) { return 0, errWouldBlock }

// rawReader exists on Linux alone.
type rawReader struct{}

func newRawReader(net.Conn) *rawReader { return nil }

func (*rawReader) read(first, _ []byte) (int, error) { panic("tcp: no rawReader here") }

func (*rawReader) readLate(*parser) (int, error) { panic("tcp: no rawReader here") }

func (*rawReader) help(bool) { panic("tcp: no rawReader here") }
