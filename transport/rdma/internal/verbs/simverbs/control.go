package simverbs

import (
	"fmt"
	"maps"
	"slices"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// Partition makes the network lose every packet from one host to another, in
// that direction, until Heal.
func (f *Fabric) Partition(from, to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut[[2]*host{f.host(from), f.host(to)}] = true
}

// Heal ends all partitions.
func (f *Fabric) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.cut)
}

// nic finds a device; it panics if there is none of that name.
func (f *Fabric) nic(hostName, device string) *nic {
	for _, n := range f.host(hostName).nics {
		if n.name == device {
			return n
		}
	}
	panic(fmt.Sprintf("simverbs: host %q has no device %q", hostName, device))
}

// SetPort takes a port down or brings it up, and raises the event.
func (f *Fabric) SetPort(hostName, device string, num uint8, up bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nic(hostName, device)
	state, event := verbs.PortDown, verbs.EventPortErr
	if up {
		state, event = verbs.PortActive, verbs.EventPortActive
	}
	n.ports[num-1].attr.State = state
	n.raise(verbs.AsyncEvent{Type: event, Port: num})
}

// SetGIDs replaces the GID table of a port, and raises the event. Connected
// QPs keep the way they have.
func (f *Fabric) SetGIDs(hostName, device string, num uint8, gids []verbs.GIDEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nic(hostName, device)
	n.ports[num-1].gids = append([]verbs.GIDEntry(nil), gids...)
	n.raise(verbs.AsyncEvent{Type: verbs.EventGIDChange, Port: num})
}

// KillDevice is a fatal device error: the event is raised, no completion comes
// any more, and every call but those that destroy fails with EIO.
func (f *Fabric) KillDevice(hostName, device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nic(hostName, device)
	n.dead = true
	for _, q := range n.qps {
		q.forget()
		q.attr.State = verbs.Err
	}
	for _, s := range n.srqs {
		s.recvs.clear()
	}
	n.raise(verbs.AsyncEvent{Type: verbs.EventDeviceFatal})
}

// ReviveDevice brings a device back that KillDevice killed. What its QPs and
// SRQs had is lost.
func (f *Fabric) ReviveDevice(hostName, device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nic(hostName, device).dead = false
}

// RemoveDevice takes a device from those that are listed and can be opened. As
// on rxe, there is no event, and it goes on working for who has it open: Opened
// says whether somebody keeps its removal waiting.
func (f *Fabric) RemoveDevice(hostName, device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nic(hostName, device).removed = true
}

// AddDevice brings back a device that was removed.
func (f *Fabric) AddDevice(hostName, device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nic(hostName, device).removed = false
}

// Opened says that somebody has the device open.
func (f *Fabric) Opened(hostName, device string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.nic(hostName, device).open) > 0
}

// FailQPs takes the QPs of a device that are in RTS to ERR and raises
// QP_FATAL for each: those that which wants, in the order of their numbers.
func (f *Fabric) FailQPs(hostName, device string, which func(qpn uint32) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nic(hostName, device)
	for _, num := range slices.Sorted(maps.Keys(n.qps)) {
		if q := n.qps[num]; q.in(verbs.RTS) && which(num) {
			q.enterErr()
			q.dev.events.push(verbs.AsyncEvent{Type: verbs.EventQPFatal, QPNum: num})
		}
	}
}

// FailCQs raises CQ_ERR for each CQ of a device.
func (f *Fabric) FailCQs(hostName, device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, cq := range f.nic(hostName, device).cqs {
		cq.dev.events.push(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: cq})
	}
}

// BreakCQs makes each CQ that a device has now fail when it is polled.
func (f *Fabric) BreakCQs(hostName, device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, cq := range f.nic(hostName, device).cqs {
		cq.broken.Store(true)
	}
}

// FailSRQs puts each SRQ of a device into error and raises SRQ_ERR for it. As
// on rxe, it takes receives from then on but gives none: peers are told RNR.
func (f *Fabric) FailSRQs(hostName, device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.nic(hostName, device).srqs {
		s.failed = true
		s.dev.events.push(verbs.AsyncEvent{Type: verbs.EventSRQErr, SRQ: s})
	}
}

// KillHost is the death of all processes on a host as its peers see it: its
// QPs answer nothing from now on. Its own objects are still to be destroyed.
func (f *Fabric) KillHost(hostName string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.host(hostName).nics {
		for num, q := range n.qps {
			q.forget()
			q.attr.State = verbs.Err
			delete(n.qps, num)
		}
	}
}

// Raise gives an asynchronous event to all who opened the device, true or not.
func (f *Fabric) Raise(hostName, device string, e verbs.AsyncEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nic(hostName, device).raise(e)
}

// Inject enters a completion into a CQ as it is, whatever was posted.
func (f *Fabric) Inject(cq verbs.CQ, wc verbs.WC) {
	f.mu.Lock()
	defer f.mu.Unlock()
	cq.(*compQueue).push(cqEntry{wc: wc})
}
