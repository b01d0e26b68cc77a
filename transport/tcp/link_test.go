package tcp

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
)

// overTCP connects two links over the loopback interface.
func overTCP(t *testing.T) (a, b transport.Link) {
	t.Helper()
	var c Carrier
	l, err := c.Listen("127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a, err = c.Dial(t.Context(), l.Addr().String())
	require.NoError(t, err)
	b, err = l.Accept()
	require.NoError(t, err)
	return a, b
}

// sockets are both ends of a connection. The test closes them.
func sockets(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	near, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	far, err = l.Accept()
	require.NoError(t, err)
	return near, far
}

// overPipe connects two links over a stream that is not a socket, so that all
// frames leave through the writer.
func overPipe(t *testing.T) (a, b transport.Link) {
	t.Helper()
	ca, cb := net.Pipe()
	a, err := Client(ca)
	require.NoError(t, err)
	b, err = Server(cb)
	require.NoError(t, err)
	return a, b
}

func TestLinkOverTCP(t *testing.T)  { linktest.Run(t, overTCP) }
func TestLinkOverPipe(t *testing.T) { linktest.Run(t, overPipe) }

func TestAllocs(t *testing.T) { linktest.Allocs(t, overTCP) }
