package simverbs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// nic is a device as hardware: it is there whether opened or not, and shared
// by all who open it. Guarded by Fabric.mu.
type nic struct {
	f         *Fabric
	host      *host
	name      string
	attr      verbs.DeviceAttr
	maxInline int
	ports     []*port
	dead      bool // device fatal
	removed   bool

	open    []*device // contexts, in the order they were opened
	cqs     []*compQueue
	srqs    []*sharedQueue
	qps     map[uint32]*queuePair
	lastQPN uint32
	ahs     map[uint64]*ah
	lastAH  uint64
	mrs     []mrSlot
}

type port struct {
	nic    *nic
	num    uint8
	attr   verbs.PortAttr
	gids   []verbs.GIDEntry
	netdev string
}

func (d Device) ports() []Port {
	if len(d.Ports) == 0 {
		return make([]Port, 1)
	}
	return d.Ports
}

// firstQPN is the number rxe gives its first QP.
const firstQPN = 0x11

func newNIC(f *Fabric, h *host, i int, dc Device) *nic {
	n := &nic{
		f: f, host: h, name: dc.Name, attr: dc.Attr, maxInline: dc.MaxInline,
		qps: map[uint32]*queuePair{}, lastQPN: firstQPN - 1, ahs: map[uint64]*ah{},
	}
	if n.name == "" {
		n.name = fmt.Sprintf("sim%d", i)
	}
	if n.maxInline == 0 {
		n.maxInline = 512
	}
	a := &n.attr
	a.Ports = uint8(len(dc.ports()))
	if a.FirmwareVersion == "" {
		a.FirmwareVersion = "sim"
	}
	// The limits of rxe in Linux 6.1 (drivers/infiniband/sw/rxe/rxe_param.h).
	for _, limit := range []struct {
		field *int
		value int
	}{
		{&a.MaxQP, 65536}, {&a.MaxQPWR, 16384}, {&a.MaxSGE, 32}, {&a.MaxCQ, 16384}, {&a.MaxCQE, 32767},
		{&a.MaxMR, 4096}, {&a.MaxPD, 32764}, {&a.MaxQPRdAtomic, 128}, {&a.MaxQPInitRdAtomic, 128},
		{&a.MaxSRQ, 32768}, {&a.MaxSRQWR, 1 << 20}, {&a.MaxSRQSGE, 27},
	} {
		if *limit.field == 0 {
			*limit.field = limit.value
		}
	}
	return n
}

func newPort(n *nic, num int, pc Port, addr netip.Addr) *port {
	p := &port{nic: n, num: uint8(num), netdev: pc.NetDev, gids: pc.GIDs}
	if p.netdev == "" {
		p.netdev = strings.Replace(n.name, "sim", "eth", 1)
	}
	if pc.MTU == 0 {
		pc.MTU = verbs.MTU4096
	}
	if len(pc.Addrs) == 0 {
		pc.Addrs = []netip.Addr{addr}
	}
	if p.gids == nil {
		last := pc.Addrs[0].As16()
		local := verbs.GID{0xfe, 0x80, 8: 2, 11: 0xff, 12: 0xfe, 13: last[13], 14: last[14], 15: last[15]}
		p.addGID(local)
		for _, a := range pc.Addrs {
			p.addGID(a.As16())
		}
	}
	p.attr = verbs.PortAttr{
		State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: pc.MTU,
		GIDTable: max(16, len(p.gids)), PKeyTable: 1, LinkLayer: verbs.LinkEthernet,
	}
	return p
}

func (p *port) addGID(g verbs.GID) {
	for _, t := range []verbs.GIDType{verbs.GIDRoCEv1, verbs.GIDRoCEv2} {
		p.gids = append(p.gids, verbs.GIDEntry{Index: len(p.gids), GID: g, Type: t, NetDev: p.netdev})
	}
}

// gid is the entry at an index of the table, nil if it is empty.
func (p *port) gid(index int) *verbs.GIDEntry {
	for i := range p.gids {
		if p.gids[i].Index == index {
			return &p.gids[i]
		}
	}
	return nil
}

// findPort is the port that has the GID, nil if none has.
func (f *Fabric) findPort(gid verbs.GID) *port {
	for _, h := range f.order {
		for _, n := range h.nics {
			for _, p := range n.ports {
				for i := range p.gids {
					if p.gids[i].GID == gid {
						return p
					}
				}
			}
		}
	}
	return nil
}

// object is what all verbs objects have in common: a name, those it was made
// from, and the number of those made from it. Guarded by Fabric.mu.
type object struct {
	name    string // as in verbs.Error.Object
	made    []*object
	uses    int
	gone    bool
	untrack func()
}

func (o *object) born(kind, name string, from ...*object) {
	o.name, o.made = name, from
	o.untrack = verbs.Track(kind, name)
	for _, p := range from {
		p.uses++
	}
}

// die ends an object that is there, unless others need it: EBUSY.
func (o *object) die(op string) error {
	if o.uses > 0 {
		return &verbs.Error{Op: op, Object: o.name, Errno: syscall.EBUSY, Hint: fmt.Sprintf("%d objects depend on it", o.uses)}
	}
	o.gone = true
	for _, p := range o.made {
		p.uses--
	}
	o.untrack()
	return nil
}

// device is an open context. Its objects die with it only in order: Close
// refuses while any is there.
type device struct {
	object
	f      *Fabric
	nic    *nic
	events eventQueue
}

func (p provider) Open(name string) (verbs.Device, error) {
	if err := p.f.enter(p.host, "ibv_open_device", name); err != nil {
		return nil, err
	}
	defer p.f.mu.Unlock()
	for _, n := range p.host.nics {
		if n.name != name {
			continue
		}
		if n.dead || n.removed {
			return nil, &verbs.Error{Op: "ibv_open_device", Object: name, Errno: syscall.ENODEV}
		}
		d := &device{f: p.f, nic: n}
		d.events.ring = make(chan struct{}, 1)
		d.born("device", name)
		n.open = append(n.open, d)
		return d, nil
	}
	return nil, &verbs.Error{Op: "ibv_open_device", Object: name, Errno: syscall.ENODEV,
		Hint: "host " + p.host.name + " has no such device"}
}

// enter begins a verbs call on the control path: it takes the fabric's lock,
// or fails as planned, without the lock.
func (d *device) enter(op string, o *object) error {
	if err := d.f.enter(d.nic.host, op, o.name); err != nil {
		return err
	}
	if o.gone {
		d.f.mu.Unlock()
		return &verbs.Error{Op: op, Object: o.name, Errno: syscall.EBADF, Hint: "it was destroyed before"}
	}
	return nil
}

// enterAlive is enter for calls that a dead device refuses.
func (d *device) enterAlive(op string, o *object) error {
	if err := d.enter(op, o); err != nil {
		return err
	}
	if d.nic.dead {
		d.f.mu.Unlock()
		return &verbs.Error{Op: op, Object: o.name, Errno: syscall.EIO, Hint: "the device is dead"}
	}
	return nil
}

func (d *device) Name() string { return d.nic.name }

func (d *device) Query() (verbs.DeviceAttr, error) {
	if err := d.enterAlive("ibv_query_device", &d.object); err != nil {
		return verbs.DeviceAttr{}, err
	}
	defer d.f.mu.Unlock()
	return d.nic.attr, nil
}

func (d *device) port(op string, num uint8) (*port, error) {
	if num < 1 || int(num) > len(d.nic.ports) {
		return nil, &verbs.Error{Op: op, Object: d.name, Errno: syscall.EINVAL, Hint: fmt.Sprintf("no port %d", num)}
	}
	return d.nic.ports[num-1], nil
}

func (d *device) QueryPort(num uint8) (verbs.PortAttr, error) {
	if err := d.enterAlive("ibv_query_port", &d.object); err != nil {
		return verbs.PortAttr{}, err
	}
	defer d.f.mu.Unlock()
	p, err := d.port("ibv_query_port", num)
	if err != nil {
		return verbs.PortAttr{}, err
	}
	return p.attr, nil
}

func (d *device) QueryGIDs(num uint8) ([]verbs.GIDEntry, error) {
	if err := d.enterAlive("ibv_query_gid_table", &d.object); err != nil {
		return nil, err
	}
	defer d.f.mu.Unlock()
	p, err := d.port("ibv_query_gid_table", num)
	if err != nil {
		return nil, err
	}
	return append([]verbs.GIDEntry(nil), p.gids...), nil
}

func (d *device) Close() error {
	if err := d.enter("ibv_close_device", &d.object); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	if err := d.die("ibv_close_device"); err != nil {
		return err
	}
	d.nic.open = slices.DeleteFunc(d.nic.open, func(other *device) bool { return other == d })
	return nil
}
