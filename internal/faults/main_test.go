//go:build linux

package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/rdma"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

// The test binary is also the other processes: with a role in its environment
// it does that until its standard input ends.
const roleVar = "FAULTS_ROLE"

// dedicatedVar tells them rdma.Config.Dedicated, where it is not the default.
const dedicatedVar = "FAULTS_DEDICATED"

var roles = map[string]func(args []string) error{
	"server": serverRole,
	"client": clientRole,
	"hog":    hogRole,
}

func TestMain(m *testing.M) {
	role, ok := os.LookupEnv(roleVar)
	if !ok {
		os.Exit(m.Run())
	}
	if err := roles[role](os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
}

// order is what a process is told, in a line of its standard input. It answers
// each with its status.
type order string

// Orders. Those but tell are for a client.
const (
	tell   order = "tell"   // how you are
	pause  order = "pause"  // make no new calls
	resume order = "resume" // go on
	leave  order = "leave"  // close the session, and make no other
)

// status is what a process says of itself.
type status struct {
	Kind, Reason string        // what carries its calls; of a client
	Moves        int           // of its present session
	MTU          int           // of the path of its QP
	Kept         int           // frames that the peer has not acknowledged
	Calls        int           // under way
	Overdue      int           // of these, by Margin after their deadline
	Oldest       time.Duration // that a patient call is under way, while the process ran
	Sessions     int
	Held         resources
}

// resources are what faults must not use up.
type resources struct {
	Goroutines, FDs, QPs, Quarantined int
	Pinned                            int64 // bytes
}

// within says that nothing exceeds before.
func (r resources) within(before resources) bool {
	return r.Goroutines <= before.Goroutines && r.FDs <= before.FDs && r.QPs <= before.QPs &&
		r.Quarantined <= before.Quarantined && r.Pinned <= before.Pinned
}

// held counts what this process holds. QPs are those of links; what waits in
// the warm pool is counted by its memory.
func held(f *rdma.Fabric) resources {
	s := f.Stats()
	fds, _ := os.ReadDir("/proc/self/fd")
	return resources{
		Goroutines: runtime.NumGoroutine(), FDs: len(fds),
		QPs: s.QPs - s.Pooled, Quarantined: s.Quarantined, Pinned: s.PinnedBytes,
	}
}

// obey answers orders until there are no more.
func obey(answer func(order) status) error {
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for in.Scan() {
		if err := out.Encode(answer(order(in.Text()))); err != nil {
			return err
		}
	}
	return in.Err()
}

// newNetwork comes back to RDMA soon, so that many faults fit into a run.
func newNetwork(local string) (*transport.Network, *rdma.Fabric) {
	var cfg rdma.Config
	if n, ok := os.LookupEnv(dedicatedVar); ok {
		cfg.Dedicated, _ = strconv.Atoi(n)
		cfg.SharedSlots = 256 // all from the start: none are added while links are busy
	}
	fabric := rdma.New(cfg)
	return &transport.Network{
		Carrier: &tcp.Carrier{Config: tcp.Config{LocalAddr: local}},
		Fabric:  fabric,
		Config:  transport.Config{ReturnAfter: 50 * time.Millisecond, RetryAfter: 50 * time.Millisecond},
	}, fabric
}

// records is the file of a process that was started with it; see spawn.
func records() *os.File { return os.NewFile(3, "records") }
