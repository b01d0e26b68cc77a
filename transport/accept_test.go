package transport_test

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// TestCloseWhileTheyCome: an acceptor is closed while connections come that say
// nothing, or what is refused. All are closed, and Serve returns. The race
// detector looks on.
func TestCloseWhileTheyCome(t *testing.T) {
	for range 20 {
		n := overTCP()
		n.Config.HandshakeTimeout = time.Millisecond
		a, err := n.Listen("127.0.0.1:0")
		require.NoError(t, err)
		served := make(chan error, 1)
		go func() { served <- a.Serve(func(*transport.Session) transport.Sink { return newSink() }) }()
		var callers sync.WaitGroup
		for i := range 8 {
			callers.Go(func() {
				for range 5 {
					conn, err := net.Dial("tcp", a.Addr().String())
					if err != nil {
						return // closed
					}
					if i%2 == 0 {
						_, _ = conn.Write(frame(wire.Header{Kind: wire.Hello}, []byte{1}))
					}
					_ = conn.SetReadDeadline(time.Now().Add(patience))
					for err == nil {
						_, err = conn.Read(make([]byte, 100))
					}
					if ne, ok := err.(net.Error); ok && ne.Timeout() {
						t.Error("a connection stays open")
					}
					conn.Close()
				}
			})
		}
		time.Sleep(3 * time.Millisecond)
		require.NoError(t, a.Close())
		require.NoError(t, within(t, served))
		callers.Wait()
	}
}
