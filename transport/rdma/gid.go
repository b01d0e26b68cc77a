package rdma

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// candidate is a GID that a link might leave by.
type candidate struct {
	device string
	port   uint8
	attr   verbs.PortAttr
	entry  verbs.GIDEntry
}

func (c candidate) String() string {
	return fmt.Sprintf("%s/%d index %d: %v %v (%v)", c.device, c.port, c.entry.Index, c.entry.Type, c.entry.GID.Addr(), c.attr.State)
}

// same says that c is the same entry of the same table, with what it had.
func (c *candidate) same(other candidate) bool {
	return c.port == other.port && c.entry.Index == other.entry.Index &&
		c.entry.GID == other.entry.GID && c.entry.Type == other.entry.Type
}

// active says that links can leave by it.
func (c candidate) active() bool {
	return c.attr.State == verbs.PortActive || c.attr.State == verbs.PortActiveDefer
}

// NoGIDError says that no GID suits a link from the local address, and which
// there are.
type NoGIDError struct {
	Local      netip.Addr
	Want       string // what was looked for
	Candidates []string
}

func newNoGIDError(local netip.Addr, want string, all []candidate) error {
	err := &NoGIDError{Local: local, Want: want}
	for _, c := range all {
		err.Candidates = append(err.Candidates, c.String())
	}
	return err
}

func (e *NoGIDError) Error() string {
	if len(e.Candidates) == 0 {
		return fmt.Sprintf("rdma: no %s for local address %v: the GID tables are empty", e.Want, e.Local)
	}
	return fmt.Sprintf("rdma: no %s for local address %v among: %s", e.Want, e.Local, strings.Join(e.Candidates, "; "))
}

// chooseGID picks the GID that a link to the peer of a control connection
// leaves by: RoCE v2, on an active port, of the connection's local address
// (case 45). With an index given, that entry of whatever type. It is pure; the
// candidates are read anew for each link, since entries move (case 44).
func chooseGID(all []candidate, local netip.Addr, index *int) (candidate, error) {
	local = local.Unmap().WithZone("")
	want := "active port with a RoCE v2 GID"
	if index != nil {
		want = fmt.Sprintf("active port with GID index %d", *index)
	}
	for _, c := range all {
		fits := c.entry.Type == verbs.GIDRoCEv2 && c.entry.GID.Addr() == local
		if index != nil {
			fits = c.entry.Index == *index
		}
		if fits && c.active() {
			return c, nil
		}
	}
	return candidate{}, newNoGIDError(local, want, all)
}

// gidTables are the GID tables of an open device, as they were read since the
// last event that may have changed one: reading them takes longer than all else
// that a link from the warm pool needs, on rxe. Any goroutine may call them.
type gidTables struct {
	mu      sync.Mutex
	version uint64 // events
	byPort  map[uint8][]verbs.GIDEntry
}

func (t *gidTables) of(dev verbs.Device, port uint8) ([]verbs.GIDEntry, error) {
	t.mu.Lock()
	table, ok := t.byPort[port]
	version := t.version
	t.mu.Unlock()
	if ok {
		return table, nil
	}
	table, err := dev.QueryGIDs(port)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if version == t.version { // else it may be from before the event
		if t.byPort == nil {
			t.byPort = map[uint8][]verbs.GIDEntry{}
		}
		t.byPort[port] = table
	}
	return table, nil
}

// forget has the tables read again.
func (t *gidTables) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.version++
	t.byPort = nil
}
