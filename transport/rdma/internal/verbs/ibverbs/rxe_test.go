//go:build linux && cgo

package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/rxetest"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/verbstest"
)

// The library keeps what it opened to find the devices.
func TestMain(m *testing.M) {
	verbstest.Main(m, func() { _, _ = Provider().Devices() })
}

func TestConformance(t *testing.T) { verbstest.Run(t, rxetest.Rig(t, Provider(), Provider())) }

func TestRXE(t *testing.T) { rxetest.Run(t, Provider()) }

func TestUnprivileged(t *testing.T) { rxetest.Unprivileged(t, Provider()) }

// The path for old libraries finds what the table call finds.
func TestGIDsWithoutTableCall(t *testing.T) {
	e := rxetest.Open(t, Provider(), "rxe0")
	port, err := e.Dev.QueryPort(1)
	require.NoError(t, err)
	table, err := e.Dev.QueryGIDs(1)
	require.NoError(t, err)
	single, err := e.Dev.(*device).gidsOneByOne(1, port.GIDTable)
	require.NoError(t, err)
	require.Equal(t, table, single)
	require.NotEmpty(t, e.GID.NetDev)
}

func BenchmarkEmptyPoll(b *testing.B) { rxetest.EmptyPoll(b, Provider()) }
func BenchmarkMessages(b *testing.B)  { rxetest.Messages(b, Provider()) }
