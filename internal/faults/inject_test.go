//go:build linux

package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rpc/verbena/internal/vm/inside"
)

// fault is something that goes wrong, and what is promised then.
type fault struct {
	name string

	// survives: the session goes on, and no patient call fails. Otherwise
	// calls under way may fail, honestly.
	survives bool

	hold  time.Duration // how long it lasts at most; a quarter of it at least
	limit time.Duration // to be back on RDMA after its end; 0: backLimit

	inject func(w *world) (injection, error)
}

// injection is a fault that is going on.
type injection struct {
	seen func() bool  // it has taken effect
	end  func() error // puts things right
}

// Lengths of faults: many fit into a run, and the long ones outlast the retries
// of a QP, half a second on rxe. An outage outlasts those of TCP which come close
// together: the next are 6 and 12 s after it began.
const (
	short  = 800 * time.Millisecond
	long   = 1500 * time.Millisecond
	outage = 8 * time.Second
)

const (
	backLimit     = 5 * time.Second
	reappearLimit = 10 * time.Second // where a device comes back
)

func allFaults() []fault {
	all := []fault{
		{name: "kill -9 of the server", hold: short, inject: killServer},                           // cases 1, 67, 76
		{name: "kill -9 of the client", hold: short, inject: killClient},                           // cases 4, 18, 67
		{name: "SIGSTOP of the server", survives: true, hold: long, inject: stop(theServer)},       // case 29
		{name: "SIGSTOP of the client", survives: true, hold: long, inject: stop(theClient)},       // case 29
		{name: "TCP reset at the client", survives: true, hold: short, inject: reset("dport")},     // case 65
		{name: "TCP reset at the server", survives: true, hold: short, inject: reset("sport")},     // case 65
		{name: "RLIMIT_MEMLOCK 64 KiB", hold: short, inject: restrictMemory},                       // case 50
		{name: "QPs exhausted at the client", survives: true, hold: short, inject: exhaust(sideA)}, // case 51
		{name: "QPs exhausted at the server", survives: true, hold: short, inject: exhaust(sideB)}, // case 51
		{name: "server restarts without QPs", hold: short, inject: restartExhausted},               // case 51
		{name: "GID added", survives: true, hold: short, inject: addGID},                           // case 44
		{name: "GID moved", survives: true, hold: short, inject: moveGID},                          // case 44
		{name: "MTU 1500", survives: true, hold: short, inject: lowerMTU},                          // case 47
	}
	for _, s := range sides {
		all = append(all,
			fault{name: "link down " + s.netdev, survives: true, hold: long, inject: linkDown(s)},                              // case 58
			fault{name: "device removed " + s.device, survives: true, hold: short, limit: reappearLimit, inject: removeDev(s)}, // case 61
		)
	}
	for _, d := range []struct{ name, match string }{
		{"RoCE", matchRoCE},
		{"RoCE above 900 bytes", matchLargeRoCE},            // case 8
		{"TCP", "protocol ip u32 match ip protocol 6 0xff"}, // case 65
		{"everything", matchAll},
	} {
		all = append(all,
			fault{name: d.name + " dropped", survives: true, hold: long, inject: drop(d.match, sideA, sideB)},
			fault{name: d.name + " dropped, client to server", survives: true, hold: long, inject: drop(d.match, sideA)},
			fault{name: d.name + " dropped, server to client", survives: true, hold: long, inject: drop(d.match, sideB)},
		)
	}
	all = append(all,
		fault{name: "outage", survives: true, hold: outage, inject: drop(matchAll, sideA, sideB)},
		fault{name: "outage, server to client", survives: true, hold: outage, inject: drop(matchAll, sideB)},
		fault{name: "outage of a port", survives: true, hold: outage, inject: linkDown(sideA)},
	)
	for _, n := range []struct{ name, how, counter string }{
		{"loss 0.1 %", "loss 0.1%", "drops"},
		{"loss 1 %", "loss 1%", "drops"},
		{"loss 3 %", "loss 3%", "drops"},
		{"loss 10 %", "loss 10%", "drops"},
		{"delay 20 ms", "delay 20ms 5ms", "packets"}, // case 22
		{"reorder 25 %", "delay 5ms reorder 75%", "packets"},
		{"duplicate 10 %", "duplicate 10%", "packets"},
		{"corrupt 3 %", "corrupt 3%", "packets"},
	} {
		all = append(all, fault{name: n.name, survives: true, hold: long, inject: netem(n.how, n.counter)})
	}
	for i := range all {
		if all[i].limit == 0 {
			all[i].limit = backLimit
		}
	}
	return all
}

// Processes.

func theServer(w *world) *process { return w.server }
func theClient(w *world) *process { return w.client }

func yes() bool { return true }

func killServer(w *world) (injection, error) {
	return injection{yes, func() error { return w.startServer(launch{}) }}, w.server.kill()
}

func killClient(w *world) (injection, error) {
	return injection{yes, func() error { return w.startClient(launch{}) }}, w.client.kill()
}

func stop(who func(*world) *process) func(*world) (injection, error) {
	return func(w *world) (injection, error) {
		p := who(w)
		end := func() error { return p.Process.Signal(syscall.SIGCONT) }
		return injection{p.isStopped, end}, p.Process.Signal(syscall.SIGSTOP)
	}
}

// restrictMemory has a client that may lock little take the place of ours.
func restrictMemory(w *world) (injection, error) {
	if err := errors.Join(w.client.kill(), w.startClient(launch{memlock: 64})); err != nil {
		return injection{}, err
	}
	seen := func() bool {
		return w.clientIs(func(s status) bool { return s.Kind == "tcp" && strings.Contains(s.Reason, "RLIMIT_MEMLOCK") })
	}
	end := func() error { return errors.Join(w.client.kill(), w.startClient(launch{})) }
	return injection{seen, end}, nil
}

// Limits of the device. They are those of a cgroup, which a process that takes
// all it can shares with ours: rxe itself has a million QPs.

const exhaustedObjects = "60" // QPs, CQs, MRs and PDs together

// hog starts a process that takes the device's QPs, and waits until it has them.
func (w *world) hog(s side) (release func() error, err error) {
	if err := w.limitObjects(s.device, exhaustedObjects); err != nil {
		return nil, err
	}
	hog, err := start(w.self, launch{role: "hog", args: []string{s.addr}, cgroup: w.cgroup})
	if err != nil {
		return nil, err
	}
	took, err := hog.ask(tell)
	if err == nil && took.Held.QPs == 0 {
		err = fmt.Errorf("not one QP could be made: %s", took.Reason)
	}
	release = func() error { return errors.Join(hog.kill(), w.limitObjects(s.device, "max")) }
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// exhaust takes the QPs of a device away and then has the one in use fail.
func exhaust(s side) func(*world) (injection, error) {
	return func(w *world) (injection, error) {
		release, err := w.hog(s)
		if err != nil {
			return injection{}, err
		}
		pid := w.server.Process.Pid
		if s == sideA {
			pid = w.client.Process.Pid
		}
		procs := filepath.Join(w.cgroup.Name(), "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0); err != nil {
			return injection{}, errors.Join(err, release())
		}
		cut, err := drop(matchRoCE, sideA, sideB)(w)
		if err != nil {
			return injection{}, errors.Join(err, release())
		}
		return injection{cut.seen, func() error { return errors.Join(cut.end(), release()) }}, nil
	}
}

// restartExhausted starts a server that can make no QP, and so says in its
// HELLO. The session that begins so must come to RDMA all the same.
func restartExhausted(w *world) (injection, error) {
	if err := w.server.kill(); err != nil {
		return injection{}, err
	}
	release, err := w.hog(sideB)
	if err == nil {
		err = w.startServer(launch{cgroup: w.cgroup})
	}
	if err != nil {
		return injection{}, err
	}
	seen := func() bool {
		return w.clientIs(func(s status) bool { return s.Kind == "tcp" && strings.Contains(s.Reason, sideB.device) })
	}
	return injection{seen, release}, nil
}

// Devices and addresses.

func linkDown(s side) func(*world) (injection, error) {
	return func(*world) (injection, error) {
		seen := func() bool { return fileHas("/sys/class/net/"+s.netdev+"/operstate", "down") }
		end := func() error {
			return errors.Join(batch("ip", "link set "+s.netdev+" up"), inside.RestoreRoutes())
		}
		return injection{seen, end}, batch("ip", "link set "+s.netdev+" down")
	}
}

// removeDev removes a device. rxe cannot take it from a process that has it
// open, so that the kernel waits (in rdma link del) until all have let go; no
// event tells them.
func removeDev(s side) func(*world) (injection, error) {
	return func(w *world) (injection, error) {
		node, err := verbsNode(s.device)
		if err != nil {
			return injection{}, err
		}
		removal := exec.Command("rdma", "link", "del", s.device)
		if err := removal.Start(); err != nil {
			return injection{}, err
		}
		removed := make(chan error, 1)
		go func() { removed <- removal.Wait() }()
		seen := func() bool { return !exists(node) }
		end := func() error {
			err := w.awaitRemoval(removed)
			if exists("/sys/class/infiniband/" + s.device) {
				err = errors.Join(err, fmt.Errorf("%s was removed and is there", s.device))
			}
			_, added := inside.Run("", "rdma", "link", "add", s.device, "type", "rxe", "netdev", s.netdev)
			return errors.Join(err, added)
		}
		return injection{seen, end}, nil
	}
}

// awaitRemoval waits until both processes have let go of a device; those that
// do not in time are ended.
func (w *world) awaitRemoval(removed <-chan error) error {
	select {
	case err := <-removed:
		return err
	case <-time.After(reappearLimit):
		return errors.Join(fmt.Errorf("a removed device is still open %v later", reappearLimit), w.renew(), <-removed)
	}
}

// addGID gives the client's interface another address, and so another GID.
func addGID(*world) (injection, error) {
	before := gids(sideA.device)
	seen := func() bool { return gids(sideA.device) != before }
	end := func() error { return batch("ip", "addr del 10.8.0.77/32 dev "+sideA.netdev) }
	return injection{seen, end}, batch("ip", "addr add 10.8.0.77/32 dev "+sideA.netdev)
}

// moveGID takes the client's address away, gives the place of its GID to
// another, and puts it back behind that.
func moveGID(*world) (injection, error) {
	before := gids(sideA.device)
	own, other := "addr %s "+sideA.addr+"/24 dev "+sideA.netdev, "addr %s 10.8.0.78/32 dev "+sideA.netdev
	seen := func() bool { return gids(sideA.device) != before }
	end := func() error {
		return errors.Join(batch("ip", fmt.Sprintf(own, "add")), inside.RestoreRoutes(), batch("ip", fmt.Sprintf(other, "del")))
	}
	return injection{seen, end}, batch("ip", fmt.Sprintf(own, "del"), fmt.Sprintf(other, "add"))
}

// lowerMTU has the path carry less than before, and waits for a QP that fits.
// All earlier ones must have failed before the MTU changes, those in set-up
// before RoCE works again: rxe tries packets that are too large for ever, within
// ibv_post_send, and the kernel remembers them with their route for minutes.
func lowerMTU(w *world) (injection, error) {
	const failing = time.Second // of a QP: twice its retries on rxe
	cut, err := drop(matchRoCE, sideA, sideB)(w)
	if err != nil {
		return injection{}, err
	}
	err = w.await("a move to TCP", func(s status) bool { return s.Kind == "tcp" })
	time.Sleep(failing)
	err = errors.Join(err, batch("ip", each(sides, "link set NETDEV mtu 1500")...))
	time.Sleep(failing)
	if err := errors.Join(err, cut.end()); err != nil {
		return injection{}, err
	}
	seen := func() bool { return w.clientIs(func(s status) bool { return s.Kind == "rdma" && s.MTU == 1024 }) }
	end := func() error {
		lines := append(each(sides, fmt.Sprint("link set NETDEV mtu ", wireMTU)), "route flush table 100", "route flush table 101")
		return errors.Join(batch("ip", lines...), inside.RestoreRoutes())
	}
	return injection{seen, end}, nil
}

// Packets.

// reset cuts the control connection: the kernel aborts the socket at one end
// (ss -K) and tells the other by RST. which is the port that tells the sockets
// of that end.
func reset(which string) func(*world) (injection, error) {
	return func(*world) (injection, error) {
		killed, err := inside.Run("", "ss", "-K", "-H", "-t", "-n", "state", "established", which, "=", ":"+port)
		seen := func() bool { return strings.TrimSpace(killed) != "" }
		return injection{seen, func() error { return nil }}, err
	}
}

// What a filter of tc matches.
const (
	matchRoCE      = "protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff"
	matchAll       = "protocol all matchall"
	matchLargeRoCE = "protocol ip basic match cmp(u8 at 9 layer network eq 17) and cmp(u16 at 2 layer network gt 900)"
)

// drop loses what leaves the given sides and matches, where it arrives at the
// other: of a packet that is dropped where it leaves the sender is told, upon
// which rxe tries again at once, within ibv_post_send, for as long as that lasts.
func drop(match string, from ...side) func(*world) (injection, error) {
	var at []side
	for _, s := range from {
		at = append(at, s.peer())
	}
	return func(*world) (injection, error) {
		seen := func() bool {
			lost := 0 // of both: a side that hears nothing may have nothing to say
			for _, s := range at {
				lost += sum("drops", "tc -j -s filter show dev "+s.netdev+" ingress")
			}
			return lost > 0
		}
		end := func() error { return batch("tc", each(at, "filter del dev NETDEV ingress pref 1")...) }
		return injection{seen, end}, batch("tc", each(at, "filter add dev NETDEV ingress pref 1 "+match+" action drop")...)
	}
}

// netem troubles what leaves both sides. It has taken effect when its counter
// has: packets lost, or for what is not counted, some hundred that went by.
func netem(how, counter string) func(*world) (injection, error) {
	enough := 1
	if counter == "packets" {
		enough = 200
	}
	return func(*world) (injection, error) {
		seen := func() bool { return sum(counter, "tc -j -s qdisc show") >= enough }
		end := func() error { return batch("tc", each(sides, "qdisc del dev NETDEV root")...) }
		return injection{seen, end}, batch("tc", each(sides, "qdisc add dev NETDEV root netem "+how)...)
	}
}
