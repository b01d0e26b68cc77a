package rdma

import (
	"fmt"
	"net/netip"
	"strings"

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
