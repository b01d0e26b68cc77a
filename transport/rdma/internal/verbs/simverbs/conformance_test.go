package simverbs_test

import (
	"testing"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/verbstest"
)

func TestMain(m *testing.M) { verbstest.Main(m) }

// TestConformance runs the suite against each model, direct and over a
// network, and against a device whose ends are its own peers.
func TestConformance(t *testing.T) {
	mtu1024 := []simverbs.Host{
		{Devices: []simverbs.Device{{Ports: []simverbs.Port{{MTU: verbs.MTU1024}}}}},
		{Devices: []simverbs.Device{{Ports: []simverbs.Port{{MTU: verbs.MTU1024}}}}},
	}
	for _, c := range []struct {
		name   string
		cfg    simverbs.Config
		quirks verbstest.Quirks
		peer   string
	}{
		{"RXE", simverbs.Config{Hosts: mtu1024}, verbstest.RXE, "b"},
		{"Spec", simverbs.Config{Model: simverbs.Spec}, verbstest.Quirks{}, "b"},
		{"Latency", simverbs.Config{Latency: 20 * time.Microsecond, Doorbell: 10 * time.Microsecond}, verbstest.RXE, "b"},
		{"SpecLatency", simverbs.Config{Model: simverbs.Spec, Latency: 20 * time.Microsecond}, verbstest.Quirks{}, "b"},
		{"OneHost", simverbs.Config{Hosts: make([]simverbs.Host, 1)}, verbstest.RXE, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := simverbs.NewFabric(c.cfg)
			f.Watch(t)
			verbstest.Run(t, verbstest.Rig{A: end(t, f, "a"), B: end(t, f, c.peer), Quirks: c.quirks})
		})
	}
}

// end is sim0 of a host, reached by its last GID.
func end(t *testing.T, f *simverbs.Fabric, host string) verbstest.End {
	t.Helper()
	dev, err := f.Provider(host).Open("sim0")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	gids, err := dev.QueryGIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	return verbstest.End{Provider: f.Provider(host), Device: "sim0", GID: gids[len(gids)-1].GID}
}
