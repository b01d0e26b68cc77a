package simverbs

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// pd is a protection domain: keys are good for QPs of the same one.
type pd struct {
	object
	dev *device
}

func (d *device) AllocPD() (verbs.PD, error) {
	if err := d.enterAlive("ibv_alloc_pd", &d.object); err != nil {
		return nil, err
	}
	defer d.f.mu.Unlock()
	p := &pd{dev: d}
	p.born("PD", "PD of "+d.name, &d.object)
	return p, nil
}

func (p *pd) Dealloc() error {
	if err := p.dev.enter("ibv_dealloc_pd", &p.object); err != nil {
		return err
	}
	defer p.dev.f.mu.Unlock()
	return p.die("ibv_dealloc_pd")
}

// mr is a registered region. Its key is the index of its slot and the slot's
// generation, so that the key of a region that is gone is known as such.
type mr struct {
	object
	pd     *pd
	mem    []byte
	base   uint64
	access verbs.Access
	key    uint32
}

type mrSlot struct {
	mr  *mr
	gen uint8
}

func (p *pd) RegisterMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	const op = "ibv_reg_mr"
	d := p.dev
	if err := d.enterAlive(op, &p.object); err != nil {
		return nil, err
	}
	defer d.f.mu.Unlock()
	remoteChange := access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0
	switch {
	case len(mem) == 0:
		return nil, &verbs.Error{Op: op, Object: p.name, Errno: syscall.EINVAL, Hint: "no memory"}
	case remoteChange && access&verbs.AccessLocalWrite == 0:
		return nil, &verbs.Error{Op: op, Object: p.name, Errno: syscall.EINVAL, Hint: "remote write and atomics need local write"}
	}
	m := &mr{pd: p, mem: mem, base: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), access: access}
	if !d.nic.addMR(m) {
		return nil, &verbs.Error{Op: op, Object: p.name, Errno: syscall.ENOMEM, Hint: "too many regions"}
	}
	m.born("MR", fmt.Sprintf("MR %#x", m.key), &p.object)
	return m, nil
}

func (n *nic) addMR(m *mr) bool {
	for i := range n.mrs {
		if n.mrs[i].mr == nil {
			n.mrs[i].mr = m
			n.mrs[i].gen++
			m.key = uint32(i+1)<<8 | uint32(n.mrs[i].gen)
			return true
		}
	}
	if len(n.mrs) == n.attr.MaxMR {
		return false
	}
	n.mrs = append(n.mrs, mrSlot{mr: m})
	m.key = uint32(len(n.mrs)) << 8
	return true
}

func (m *mr) Addr() uint64 { return m.base }
func (m *mr) Len() int     { return len(m.mem) }
func (m *mr) LKey() uint32 { return m.key }

// RKey is 0 for a region without remote rights, as on rxe.
func (m *mr) RKey() uint32 {
	if m.access&(verbs.AccessRemoteRead|verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) == 0 {
		return 0
	}
	return m.key
}

func (m *mr) Deregister() error {
	const op = "ibv_dereg_mr"
	d := m.pd.dev
	if err := d.enter(op, &m.object); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	if err := m.die(op); err != nil {
		return err
	}
	for _, qp := range d.nic.qps {
		if n := qp.outstanding(m); n > 0 {
			d.f.violation("%s deregistered under %d outstanding work requests of %s", m.name, n, qp.name)
		}
	}
	for _, s := range d.nic.srqs {
		if n := s.recvs.naming(m); n > 0 {
			d.f.violation("%s deregistered under %d receives of %s", m.name, n, s.name)
		}
	}
	d.nic.mrs[m.key>>8-1].mr = nil
	m.mem = nil
	return nil
}

func (m *mr) holds(addr uint64, n uint32) bool {
	return addr >= m.base && addr-m.base+uint64(n) <= uint64(len(m.mem))
}

// memory is what the device may touch under a key: n bytes at addr, if the key
// names a region of that PD which holds them and has the rights; else nil.
func (n *nic) memory(p *pd, key uint32, addr uint64, length uint32, need verbs.Access) []byte {
	i := int(key>>8) - 1
	if i < 0 || i >= len(n.mrs) {
		return nil
	}
	s := &n.mrs[i]
	if s.mr == nil || s.mr.key != key {
		if s.mr == nil && s.gen >= uint8(key) || s.mr != nil && s.gen > uint8(key) {
			n.f.violation("device %s/%s asked for %d bytes under key %#x, deregistered", n.host.name, n.name, length, key)
		}
		return nil
	}
	m := s.mr
	if m.pd != p || m.access&need != need || !m.holds(addr, length) {
		return nil
	}
	off := addr - m.base
	return m.mem[off : off+uint64(length) : off+uint64(length)]
}

// inlineBytes is the memory of an inline send, which the processor reads: it
// needs no registration.
func inlineBytes(addr uint64, n uint32) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n)
}

// ah is an address handle.
type ah struct {
	object
	pd   *pd
	id   uint64
	attr verbs.AHAttr
	dst  *port
}

func (p *pd) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	const op = "ibv_create_ah"
	d := p.dev
	if err := d.enterAlive(op, &p.object); err != nil {
		return nil, err
	}
	defer d.f.mu.Unlock()
	dst, errno, hint := d.nic.route(&attr)
	if errno != 0 {
		return nil, &verbs.Error{Op: op, Object: p.name, Errno: errno, Hint: hint}
	}
	d.nic.lastAH++
	a := &ah{pd: p, id: d.nic.lastAH, attr: attr, dst: dst}
	d.nic.ahs[a.id] = a
	a.born("AH", fmt.Sprintf("AH %d", a.id), &p.object)
	return a, nil
}

func (a *ah) Handle() uint64 { return a.id }

func (a *ah) Destroy() error {
	d := a.pd.dev
	if err := d.enter("ibv_destroy_ah", &a.object); err != nil {
		return err
	}
	defer d.f.mu.Unlock()
	if err := a.die("ibv_destroy_ah"); err != nil {
		return err
	}
	delete(d.nic.ahs, a.id)
	return nil
}

// route checks an address vector and finds the port it leads to. A GID that
// nobody has is ETIMEDOUT, which the real thing takes a second to find out.
func (n *nic) route(av *verbs.AHAttr) (dst *port, errno syscall.Errno, hint string) {
	if av.Port < 1 || int(av.Port) > len(n.ports) {
		return nil, syscall.EINVAL, fmt.Sprintf("no port %d", av.Port)
	}
	if !av.Global {
		return nil, syscall.EINVAL, "RoCE needs a GRH"
	}
	src := n.ports[av.Port-1].gid(int(av.SGIDIndex))
	if src == nil {
		return nil, syscall.ENODATA, fmt.Sprintf("GID index %d is empty", av.SGIDIndex)
	}
	dst = n.f.findPort(av.DGID)
	if dst == nil {
		return nil, syscall.ETIMEDOUT, fmt.Sprintf("nobody has GID %v", av.DGID)
	}
	if src.Type != verbs.GIDRoCEv2 || src.GID.Addr().IsLinkLocalUnicast() || av.DGID.Addr().IsLinkLocalUnicast() {
		return blackHole, 0, ""
	}
	return dst, 0, ""
}

// blackHole is the port at the end of a path that the network does not route:
// set-up works, no packet arrives.
var blackHole = &port{}
