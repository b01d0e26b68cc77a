//go:build linux

package faults

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// world is a server, a client that calls it, and what they have written down.
// It belongs to the goroutine that injects faults.
type world struct {
	self        string // the program of both
	ledger      *Ledger
	clock       runningClock
	server      *process
	client      *process
	incarnation uint16   // of clients
	cgroup      *os.File // with limits of RDMA objects, at times
	logs        []*log   // of client and server, in this order
}

// log is a file of records. Both ends outlive the processes that write it.
type log struct {
	write *os.File
	read  *bufio.Reader
}

const cgroupRoot = "/run/faults-cgroup"

// newWorld starts server and client, and waits for calls over RDMA.
func newWorld(dir string) (*world, error) {
	w := &world{self: filepath.Join("/run", "faults.test"), ledger: NewLedger()}
	// The binary that go test made lies in a folder of root's alone.
	if err := copyFile(os.Args[0], w.self); err != nil {
		return nil, err
	}
	for _, name := range []string{"client", "server"} {
		path := filepath.Join(dir, name+".records")
		out, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		in, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		w.logs = append(w.logs, &log{out, bufio.NewReaderSize(in, 1<<16)})
	}
	go w.clock.run()
	if err := w.prepareCgroup(); err != nil {
		return nil, err
	}
	if err := batch("tc", each(sides, "qdisc add dev NETDEV clsact")...); err != nil {
		return nil, err
	}
	if err := errors.Join(w.startServer(launch{}), w.startClient(launch{})); err != nil {
		return nil, err
	}
	_, err := w.recovered(w.clock.now(), giveUp)
	return w, err
}

func (w *world) prepareCgroup() error {
	limited := filepath.Join(cgroupRoot, "limited")
	if err := os.MkdirAll(cgroupRoot, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("none", cgroupRoot, "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("mount cgroup2: %w", err)
	}
	if err := os.WriteFile(filepath.Join(cgroupRoot, "cgroup.subtree_control"), []byte("+rdma"), 0); err != nil {
		return err
	}
	if err := os.Mkdir(limited, 0o755); err != nil {
		return err
	}
	var err error
	w.cgroup, err = os.Open(limited)
	return err
}

// limitObjects bounds what processes of the cgroup may make on the device.
func (w *world) limitObjects(device, n string) error {
	limit := fmt.Sprintf("%s hca_handle=max hca_object=%s", device, n)
	return os.WriteFile(filepath.Join(w.cgroup.Name(), "rdma.max"), []byte(limit), 0)
}

func (w *world) startServer(l launch) (err error) {
	l.role, l.records = "server", w.logs[1].write
	l.args = []string{sideB.addr + ":" + port}
	w.server, err = start(w.self, l)
	return err
}

func (w *world) startClient(l launch) (err error) {
	w.incarnation++
	l.role, l.records = "client", w.logs[0].write
	l.args = []string{sideB.addr + ":" + port, sideA.addr, strconv.Itoa(int(w.incarnation))}
	w.client, err = start(w.self, l)
	return err
}

// take takes in what was written down. A caller has its reply after the server
// wrote, so that the client's log is read first.
func (w *world) take() error {
	for _, l := range w.logs {
		for {
			rec, err := readRecord(l.read)
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			w.ledger.Take(rec)
		}
	}
	return nil
}

// clientIs says whether the client's status is such.
func (w *world) clientIs(such func(status) bool) bool {
	s, err := w.client.ask(tell)
	return err == nil && such(s)
}

// await waits until the client's status is such.
func (w *world) await(what string, such func(status) bool) error {
	for deadline := time.Now().Add(seenTime); !w.clientIs(such); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s did not come within %v", what, seenTime)
		}
	}
	return nil
}

// giveUp is how long after a fault a run waits for RDMA at most, to say how
// long it took, before both processes are started anew.
const giveUp = 30 * time.Second

// recovered waits until the client's calls are on RDMA and more have been
// answered than there are callers, so that one of them began on it. It returns
// the time since then.
func (w *world) recovered(since, limit time.Duration) (time.Duration, error) {
	answered := -1
	var last status // before RDMA
	for {
		s, err := w.client.ask(tell)
		if err == nil {
			err = w.take()
		}
		took := w.clock.now() - since
		switch {
		case err != nil:
			return took, errors.Join(err, w.renew())
		case s.Kind != "rdma":
			answered, last = -1, s
		case answered < 0:
			answered = w.ledger.OK
		case w.ledger.OK > answered+patientCallers+hastyCallers:
			if took > limit {
				return took, fmt.Errorf("calls were back on RDMA after %v, %v are allowed; before: %+v", took, limit, last)
			}
			return took, nil
		}
		if took > giveUp {
			return took, errors.Join(fmt.Errorf("%v later calls are not back on RDMA: %+v", giveUp, s), w.renew())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// standTime is how long a call may take while others are answered: a message in
// many chunks behind others, under emulation.
const standTime = 10 * time.Second

// caughtUp waits until no patient call is under way that began before: one that
// stands still while others are answered would show much later, at its deadline.
func (w *world) caughtUp(before time.Duration) error {
	for ; ; time.Sleep(20 * time.Millisecond) {
		s, err := w.client.ask(tell)
		since := w.clock.now() - before
		switch {
		case err != nil:
			return errors.Join(err, w.renew())
		case s.Oldest < since:
			return nil
		case since > standTime:
			return errors.Join(fmt.Errorf("a call stands still for %v while others are answered: %+v", s.Oldest, s), w.renew())
		}
	}
}

// rest pauses the callers and waits until no call is under way. Those that
// never end are hung.
func (w *world) rest() error {
	for o, deadline := pause, time.Now().Add(patience+5*time.Second); ; o = tell {
		s, err := w.client.ask(o)
		switch {
		case err != nil:
			return err
		case s.Calls == 0:
			err := w.take()
			w.ledger.Settle()
			return err
		case time.Now().After(deadline):
			w.ledger.Hang(s.Calls)
			return fmt.Errorf("%d calls never end", s.Calls)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// holding is what all processes hold, by their own count and the kernel's.
type holding struct {
	Client, Server resources
	Kernel         map[string]int
}

func (h holding) within(before holding) bool {
	for name, n := range h.Kernel {
		if n > before.Kernel[name] {
			return false
		}
	}
	return h.Client.within(before.Client) && h.Server.within(before.Server)
}

func (w *world) holding() (holding, error) {
	c, err := w.client.ask(tell)
	if err != nil {
		return holding{}, err
	}
	s, err := w.server.ask(tell)
	return holding{c.Held, s.Held, kernelObjects()}, err
}

// settleTime is how long the processes have to give back what faults made them
// take; goroutines of handlers end when they had nothing to do for a while.
const settleTime = 10 * time.Second

// baseline is what is held while nothing is called, once that is steady.
func (w *world) baseline() (holding, error) {
	if err := w.rest(); err != nil {
		return holding{}, err
	}
	time.Sleep(settleTime / 2)
	h, err := w.holding()
	if err == nil {
		_, err = w.client.ask(resume)
	}
	return h, err
}

// requireBaseline pauses the callers until no more is held than before.
func (w *world) requireBaseline(before holding) error {
	if err := w.rest(); err != nil {
		return err
	}
	for deadline := time.Now().Add(settleTime); ; {
		now, err := w.holding()
		switch {
		case err != nil:
			return err
		case now.within(before):
			_, err := w.client.ask(resume)
			return err
		case time.Now().After(deadline):
			_, err := w.client.ask(resume)
			return errors.Join(fmt.Errorf("%v later more is held than at first: %+v, was %+v", settleTime, now, before), err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// endHung counts calls that should have ended long ago, and ends their client.
func (w *world) endHung() error {
	s, err := w.client.ask(tell)
	if err == nil && s.Overdue == 0 {
		return nil
	}
	w.ledger.Hang(s.Overdue)
	return errors.Join(err, w.renew())
}

// renew starts both processes anew, after they have said what they are doing.
func (w *world) renew() error {
	for _, p := range []*process{w.client, w.server} {
		_ = p.Process.Signal(syscall.SIGQUIT)
		time.Sleep(time.Second)
		_ = p.kill()
	}
	return errors.Join(w.startServer(launch{}), w.startClient(launch{}))
}

// close ends both processes; nothing of them must be left.
func (w *world) close() error {
	if _, err := w.client.ask(leave); err != nil {
		return err
	}
	for deadline := time.Now().Add(settleTime); ; time.Sleep(20 * time.Millisecond) {
		s, err := w.server.ask(tell)
		if err != nil {
			return err
		}
		if s.Sessions == 0 && s.Held.QPs == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the client has left, and the server holds %+v", s)
		}
	}
	return errors.Join(w.client.finish(), w.server.finish())
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
