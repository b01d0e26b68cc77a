package rdma

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

func gid(ip string) verbs.GID { return netip.MustParseAddr(ip).As16() }

// Case 45: link-local first, v1 and v2 of each address, several ports and devices.
func TestChooseGID(t *testing.T) {
	active, down := verbs.PortAttr{State: verbs.PortActive}, verbs.PortAttr{State: verbs.PortDown}
	entry := func(i int, ip string, typ verbs.GIDType) verbs.GIDEntry {
		return verbs.GIDEntry{Index: i, GID: gid(ip), Type: typ}
	}
	all := []candidate{
		{"rxe0", 1, active, entry(0, "fe80::1", verbs.GIDRoCEv1)},
		{"rxe0", 1, active, entry(1, "fe80::1", verbs.GIDRoCEv2)},
		{"rxe0", 1, active, entry(2, "10.8.0.1", verbs.GIDRoCEv1)},
		{"rxe0", 1, active, entry(3, "10.8.0.1", verbs.GIDRoCEv2)},
		{"rxe0", 2, down, entry(3, "10.8.7.1", verbs.GIDRoCEv2)},
		{"rxe1", 1, active, entry(5, "10.8.1.1", verbs.GIDRoCEv2)},
		{"rxe1", 1, active, entry(6, "fd00::5", verbs.GIDRoCEv2)},
	}
	for _, c := range []struct {
		local string
		index *int
		want  string // device/port index, "" none
	}{
		{"10.8.0.1", nil, "rxe0/1 index 3"},
		{"::ffff:10.8.0.1", nil, "rxe0/1 index 3"},
		{"10.8.1.1", nil, "rxe1/1 index 5"},
		{"fd00::5", nil, "rxe1/1 index 6"},
		{"fe80::1%eth0", nil, "rxe0/1 index 1"},
		{"10.8.7.1", nil, ""}, // its port is down
		{"192.168.0.1", nil, ""},
		{"192.168.0.1", new(2), "rxe0/1 index 2"},
		{"192.168.0.1", new(9), ""},
	} {
		got, err := chooseGID(all, netip.MustParseAddr(c.local), c.index)
		if c.want != "" {
			require.NoError(t, err, c.local)
			require.Contains(t, got.String(), c.want+":")
			continue
		}
		var none *NoGIDError
		require.ErrorAs(t, err, &none, c.local)
		require.Len(t, none.Candidates, len(all))
		require.ErrorContains(t, err, "rxe0/1 index 3: RoCE v2 10.8.0.1 (ACTIVE)")
	}
}

func TestPace(t *testing.T) {
	var now time.Duration
	reads := 0
	clock := func() time.Duration { reads++; return now }
	// until makes empty polls, one each microsecond, until another action than again.
	until := func(p *pace) (a action, polls int) {
		for a == again && polls < 5000 {
			now += time.Microsecond
			a = p.nothing(true, clock)
			polls++
		}
		return a, polls
	}

	p := newPace(Adaptive, 50*time.Microsecond)
	a, polls := until(&p)
	require.Equal(t, sleep, a)
	require.InDelta(t, 64, polls, clockEvery, "50 µs after the first look at the clock")
	require.LessOrEqual(t, reads, 5, "the clock is read seldom")
	p.worked()
	a, again2 := until(&p)
	require.Equal(t, sleep, a)
	require.Equal(t, polls, again2, "work starts the spin anew")

	p = newPace(EventsOnly, 50*time.Microsecond)
	a, polls = until(&p)
	require.Equal(t, sleep, a)
	require.Equal(t, 1, polls)

	p = newPace(Busy, 50*time.Microsecond)
	for range 10 {
		a, polls = until(&p)
		require.Equal(t, yield, a, "never asleep")
		require.LessOrEqual(t, time.Duration(polls)*time.Microsecond, yieldEvery+2*clockEvery*time.Microsecond)
	}
	require.Equal(t, sleep, p.nothing(false, clock), "there is no link to spin for")

	for _, want := range []int{10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
		require.Equal(t, time.Duration(want)*time.Millisecond, p.tick)
		p.quiet()
	}
	p.worked()
	require.Equal(t, safetyTick, p.tick)
}

func TestConfigValidate(t *testing.T) {
	require.NoError(t, new(Config).Validate())
	for _, c := range []struct {
		field string
		cfg   Config
	}{
		{"SQDepth", Config{SQDepth: 15}},
		{"SQDepth", Config{SQDepth: 4097}},
		{"RQDepth", Config{RQDepth: 7}},
		{"RQDepth", Config{RQDepth: -1}},
		{"SlotSize", Config{SlotSize: 256}},
		{"SlotSize", Config{SlotSize: 1000}},
		{"SlotSize", Config{SlotSize: 2 << 20}},
		{"MTU", Config{MTU: 1500}},
		{"GIDIndex", Config{GIDIndex: new(-1)}},
		{"GIDIndex", Config{GIDIndex: new(256)}},
		{"Poll", Config{Poll: Busy + 1}},
		{"Spin", Config{Spin: -1}},
		{"Spin", Config{Spin: time.Minute}},
		{"Pollers", Config{Pollers: 65}},
		{"Warm", Config{Warm: -2}},
	} {
		var e *ConfigError
		require.ErrorAs(t, c.cfg.Validate(), &e)
		require.Equal(t, c.field, e.Field)
		require.ErrorAs(t, New(c.cfg).Usable(tcpAddr("10.8.0.1")), &e, "New does not fail, Usable tells")
	}
}
