//go:build linux && cgo

package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/ibverbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/rxetest"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/verbstest"
)

// A device of one provider talks to a device of the other, both ways round.
func TestConformanceWithLibibverbs(t *testing.T) {
	t.Run("to", func(t *testing.T) { verbstest.Run(t, rxetest.Rig(t, Provider(), ibverbs.Provider())) })
	t.Run("from", func(t *testing.T) { verbstest.Run(t, rxetest.Rig(t, ibverbs.Provider(), Provider())) })
}

// Both providers say the same of a device.
func TestAttributesAreLibibverbs(t *testing.T) {
	ours, theirs := rxetest.Open(t, Provider(), "rxe0").Dev, rxetest.Open(t, ibverbs.Provider(), "rxe0").Dev
	a, err := ours.Query()
	require.NoError(t, err)
	b, err := theirs.Query()
	require.NoError(t, err)
	require.Equal(t, b, a)
	pa, err := ours.QueryPort(1)
	require.NoError(t, err)
	pb, err := theirs.QueryPort(1)
	require.NoError(t, err)
	require.Equal(t, pb, pa)
	ga, err := ours.QueryGIDs(1)
	require.NoError(t, err)
	gb, err := theirs.QueryGIDs(1)
	require.NoError(t, err)
	require.Equal(t, gb, ga)
}
