package qpstate

import (
	"syscall"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// Facts are what is known of the device and of one of its ports. Each may be
// nil: what is not known is not checked.
type Facts struct {
	Device *verbs.DeviceAttr
	Port   *verbs.PortAttr
	Num    uint8            // number of the port that Port and GIDs describe
	GIDs   []verbs.GIDEntry // nil: unknown; empty: the port has none
	Bound  uint8            // port the QP was bound to in INIT; 0: unknown
}

// FactsOf asks the device. What it does not answer stays unknown.
func FactsOf(dev verbs.Device, port uint8) Facts {
	f := Facts{Num: port}
	if dev == nil {
		return f
	}
	if d, err := dev.Query(); err == nil {
		f.Device = &d
	}
	if p, err := dev.QueryPort(port); err == nil {
		f.Port = &p
	}
	if g, err := dev.QueryGIDs(port); err == nil {
		f.GIDs = append([]verbs.GIDEntry{}, g...)
	}
	return f
}

// Check compares a transition with the table, and its attributes with each
// other, with the fields they are sent in, and with the facts. It returns nil
// if it finds nothing wrong.
//
// Without STATE in mask, the attributes are to change within from. A device
// may accept what Check objects to: rxe takes any max_dest_rd_atomic, and the
// kernel cuts PSNs to 24 bits.
func Check(t verbs.QPType, from verbs.QPState, attr *verbs.QPAttr, mask verbs.AttrMask, facts Facts) *TransitionError {
	e := &TransitionError{Type: t, From: from, To: target(from, attr, mask), Err: syscall.EINVAL}
	row, ok := Lookup(t, from, e.To)
	if ok {
		e.Missing = row.Required &^ mask
		e.Extra = mask &^ (row.Required | row.Optional | verbs.AttrState)
	} else {
		e.Illegal = true
	}

	// Attributes that do not belong here get no second complaint.
	c := check{TransitionError: e, attr: attr, mask: mask &^ e.Extra, facts: facts}
	c.widths()
	c.currentState()
	c.port()
	c.pathMTU()
	c.addressVector()
	c.limits()
	if !e.found() {
		return nil
	}
	return e
}

// target is the state that an attempt leads to.
func target(from verbs.QPState, attr *verbs.QPAttr, mask verbs.AttrMask) verbs.QPState {
	if mask&verbs.AttrState != 0 {
		return attr.State
	}
	return from
}

// check collects problems; it lives for one call of Check.
type check struct {
	*TransitionError
	attr  *verbs.QPAttr
	mask  verbs.AttrMask
	facts Facts
}

func (c *check) has(m verbs.AttrMask) bool { return c.mask&m != 0 }

// widths checks values against the bits they have on the wire or in the QP
// context (InfiniBand Architecture Specification, volume 1, sections 9.2, 9.7).
func (c *check) widths() {
	for _, f := range []struct {
		attr  verbs.AttrMask
		value uint32
		bits  int
	}{
		{verbs.AttrRQPSN, c.attr.RQPSN, 24},
		{verbs.AttrSQPSN, c.attr.SQPSN, 24},
		{verbs.AttrDestQPN, c.attr.DestQPN, 24},
		{verbs.AttrTimeout, uint32(c.attr.Timeout), 5},
		{verbs.AttrMinRNRTimer, uint32(c.attr.MinRNRTimer), 5},
		{verbs.AttrRetryCnt, uint32(c.attr.RetryCnt), 3},
		{verbs.AttrRNRRetry, uint32(c.attr.RNRRetry), 3},
	} {
		if limit := uint32(1)<<f.bits - 1; c.has(f.attr) && f.value > limit {
			c.problem(f.attr, "%d (%#x) does not fit in %d bits", f.value, f.value, f.bits)
		}
	}
}

func (c *check) currentState() {
	if c.has(verbs.AttrCurState) && c.attr.CurState != c.From {
		c.problem(verbs.AttrCurState, "says %v, but the QP is in %v", c.attr.CurState, c.From)
	}
}

func (c *check) port() {
	if c.has(verbs.AttrPort) {
		c.portNumber(verbs.AttrPort, c.attr.Port)
	}
	if p := c.facts.Port; p != nil && c.has(verbs.AttrPKeyIndex) && p.PKeyTable > 0 && int(c.attr.PKeyIndex) >= p.PKeyTable {
		c.problem(verbs.AttrPKeyIndex, "%d is outside the P_Key table of port %d (%d entries)",
			c.attr.PKeyIndex, c.facts.Num, p.PKeyTable)
	}
}

func (c *check) portNumber(attr verbs.AttrMask, port uint8) (ok bool) {
	if port == 0 {
		c.problem(attr, "has port 0; ports count from 1")
		return false
	}
	if d := c.facts.Device; d != nil && port > d.Ports {
		c.problem(attr, "has port %d, the device has %d", port, d.Ports)
		return false
	}
	return true
}

func (c *check) pathMTU() {
	if !c.has(verbs.AttrPathMTU) {
		return
	}
	mtu := c.attr.PathMTU
	if mtu.Bytes() == 0 {
		c.problem(verbs.AttrPathMTU, "code %d is none (1 to 5 stand for 256 to 4096)", uint8(mtu))
	} else if p := c.facts.Port; p != nil && mtu > p.ActiveMTU {
		c.problem(verbs.AttrPathMTU, "%v is above the active MTU %v of port %d", mtu, p.ActiveMTU, c.facts.Num)
	}
}

// addressVector checks the path to the peer. On Ethernet the GRH is not
// optional: its GIDs become the IP addresses of the packet.
func (c *check) addressVector() {
	if !c.has(verbs.AttrAV) {
		return
	}
	av := &c.attr.AV
	if c.portNumber(verbs.AttrAV, av.Port) && c.To == verbs.RTR && c.facts.Bound != 0 && av.Port != c.facts.Bound {
		c.problem(verbs.AttrAV, "leaves by port %d, but the QP is bound to port %d", av.Port, c.facts.Bound)
	}
	if p := c.facts.Port; p != nil && av.Port == c.facts.Num {
		if p.State != verbs.PortActive && p.State != verbs.PortActiveDefer {
			c.problem(verbs.AttrAV, "leaves by port %d, which is %v", av.Port, p.State)
		}
		if p.LinkLayer == verbs.LinkEthernet && !av.Global {
			c.problem(verbs.AttrAV, "has no GRH, which Ethernet needs")
		}
	}
	if av.Global {
		c.grh()
	}
}

func (c *check) grh() {
	av := &c.attr.AV
	if av.DGID == (verbs.GID{}) {
		c.problem(verbs.AttrAV, "has an empty destination GID")
	}
	if av.FlowLabel >= 1<<20 {
		c.problem(verbs.AttrAV, "has flow label %#x, which does not fit in 20 bits", av.FlowLabel)
	}
	if av.Port != c.facts.Num {
		return
	}
	if p := c.facts.Port; p != nil && int(av.SGIDIndex) >= p.GIDTable {
		c.problem(verbs.AttrAV, "has GID index %d, outside the table of port %d (%d entries)", av.SGIDIndex, av.Port, p.GIDTable)
		return
	}
	if c.facts.GIDs == nil {
		return
	}
	for _, g := range c.facts.GIDs {
		if g.Index == int(av.SGIDIndex) {
			c.family(g.GID)
			return
		}
	}
	c.problem(verbs.AttrAV, "has GID index %d, which is empty on port %d", av.SGIDIndex, av.Port)
}

// family compares source and destination GID: an IPv4 source reaches no IPv6
// destination, nor the other way round.
func (c *check) family(src verbs.GID) {
	dst := c.attr.AV.DGID
	if c.facts.Port == nil || c.facts.Port.LinkLayer != verbs.LinkEthernet || dst == (verbs.GID{}) {
		return
	}
	if src.Addr().Is4() != dst.Addr().Is4() {
		c.problem(verbs.AttrAV, "has source %v (GID index %d) and destination %v of different IP families",
			src.Addr(), c.attr.AV.SGIDIndex, dst.Addr())
	}
}

// limits checks the READs and atomics in flight against the device.
func (c *check) limits() {
	d := c.facts.Device
	if d == nil {
		return
	}
	initiator := d.MaxQPInitRdAtomic
	if initiator == 0 {
		initiator = d.MaxQPRdAtomic
	}
	c.limit(verbs.AttrMaxRdAtomic, c.attr.MaxRdAtomic, initiator)
	c.limit(verbs.AttrMaxDestRdAtom, c.attr.MaxDestRdAtom, d.MaxQPRdAtomic)
}

func (c *check) limit(attr verbs.AttrMask, value uint8, limit int) {
	if c.has(attr) && int(value) > limit {
		c.problem(attr, "%d is above the device's limit %d", value, limit)
	}
}
