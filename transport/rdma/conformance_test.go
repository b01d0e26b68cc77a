package rdma

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
)

func TestConformance(t *testing.T) {
	t.Run("sim", func(t *testing.T) {
		conform(t, func(t *testing.T) [2]end { _, ends := simEnds(t, simverbs.Config{}); return ends })
	})
	t.Run("spec", func(t *testing.T) { // slots of the device are free only once polled
		conform(t, func(t *testing.T) [2]end { _, ends := simEnds(t, simverbs.Config{Model: simverbs.Spec}); return ends })
	})
	for name, which := range map[string]Provider{"rxe": AutoProvider, "rxe by libibverbs": Libibverbs} {
		t.Run(name, func(t *testing.T) {
			// Once before, for what the process opens at first use and keeps.
			_, links := pair(t, realEndsOf(t, which), Config{})
			exchange(t, [2]transport.Link{links[0], links[1]})
			conform(t, func(t *testing.T) [2]end { return realEndsOf(t, which) })
		})
	}
}

func conform(t *testing.T, ends func(t *testing.T) [2]end) {
	linktest.Run(t, func(t *testing.T) (a, b transport.Link) {
		e := ends(t)
		fabrics := [2]*Fabric{e[0].fabric(t, Config{}), e[1].fabric(t, Config{})}
		links, err := join(context.Background(), fabrics, e)
		require.NoError(t, err)
		return links[0], links[1]
	})
}
