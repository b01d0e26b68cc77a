package rdma

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/qpstate"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
)

// rights remembers with which a program registers memory.
type rights struct {
	verbs.Provider
	mu  sync.Mutex
	all []verbs.Access
}

func (r *rights) Open(name string) (verbs.Device, error) {
	d, err := r.Provider.Open(name)
	return rightsDevice{d, r}, err
}

type rightsDevice struct {
	verbs.Device
	r *rights
}

func (d rightsDevice) AllocPD() (verbs.PD, error) {
	pd, err := d.Device.AllocPD()
	return rightsPD{pd, d.r}, err
}

type rightsPD struct {
	verbs.PD
	r *rights
}

func (pd rightsPD) RegisterMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	pd.r.mu.Lock()
	pd.r.all = append(pd.r.all, access)
	pd.r.mu.Unlock()
	return pd.PD.RegisterMR(mem, access)
}

// A peer reaches the memory of a link by SEND alone: neither rings, its own or shared,
// nor the QP give it rights, in each of its lives.
func TestNoRemoteRights(t *testing.T) {
	for name, cfg := range map[string]Config{"own": small, "shared": sharing} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			_, ends := simEnds(t, simverbs.Config{})
			r := &rights{Provider: ends[0].provider}
			ends[0].provider = r
			cfg.Warm = 1 // the second link is of a QP's second life
			fabrics := [2]*Fabric{ends[0].fabric(t, cfg), ends[1].fabric(t, cfg)}
			for range 3 {
				links, err := join(context.Background(), fabrics, ends)
				require.NoError(t, err)
				for _, l := range links {
					attr, err := l.(*link).ep.qp.Query()
					require.NoError(t, err)
					require.Zero(t, attr.Access&^verbs.AccessLocalWrite, "of the QP")
				}
				exchange(t, links)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			require.NotEmpty(t, r.all)
			for _, access := range r.all {
				require.Equal(t, verbs.AccessLocalWrite, access, "of memory")
			}
		})
	}
}

// A QP waits for ever for a receive of a peer that shares them, and of no other.
func TestRNRRetries(t *testing.T) {
	for _, c := range []struct {
		own, peer Config
		strict    bool
		want      uint8
	}{
		{small, small, false, qpstate.DefaultRNRRetry},
		{sharing, small, false, qpstate.DefaultRNRRetry},
		{small, small, true, 0},
		{small, sharing, false, qpstate.ForeverRNR},
		{sharing, sharing, true, qpstate.ForeverRNR},
	} {
		checkLeaks(t)
		_, ends := simEnds(t, simverbs.Config{})
		fabrics := [2]*Fabric{ends[0].fabric(t, c.own), ends[1].fabric(t, c.peer)}
		fabrics[0].cfg.Strict = c.strict // no device is open yet
		links, err := join(context.Background(), fabrics, ends)
		require.NoError(t, err)
		attr, err := links[0].(*link).ep.qp.Query()
		require.NoError(t, err)
		require.Equal(t, c.want, attr.RNRRetry, "%+v", c)
	}
}
