package rdma

import (
	"errors"
	"net/netip"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// PortInfo is a port of an RDMA device as links see it: by one of its RoCE v2
// GIDs.
type PortInfo struct {
	Device   string // "mlx5_0"
	Port     uint8
	GIDIndex int
	Addr     netip.Addr // the GID as an address
	NetDev   string     // the network interface, "" if unknown
	Active   bool
	MTU      int // active path MTU in bytes
}

// Ports lists the RoCE v2 GIDs of this machine. The error says which devices
// could not be read, beside what was found on others.
func Ports() ([]PortInfo, error) {
	f := New(Config{})
	ports, err := f.ports()
	return ports, errors.Join(err, f.Close())
}

func (f *Fabric) ports() ([]PortInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	names, err := f.names()
	if err != nil {
		return nil, err
	}
	var ports []PortInfo
	var errs []error
	for _, name := range names {
		d, err := f.open(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all, err := d.candidates(0)
		errs = append(errs, err)
		for _, c := range all {
			if c.entry.Type == verbs.GIDRoCEv2 {
				ports = append(ports, c.info())
			}
		}
	}
	return ports, errors.Join(errs...)
}

func (c candidate) info() PortInfo {
	return PortInfo{
		Device: c.device, Port: c.port, GIDIndex: c.entry.Index, Addr: c.entry.GID.Addr(), NetDev: c.entry.NetDev,
		Active: c.attr.State == verbs.PortActive, MTU: c.attr.ActiveMTU.Bytes(),
	}
}
