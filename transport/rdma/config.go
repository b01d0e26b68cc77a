package rdma

import (
	"fmt"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/credit"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/wrid"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// PollMode says what a poller does when nothing completes.
type PollMode uint8

// Poll modes.
const (
	Adaptive   PollMode = iota // spin for Config.Spin since the last completion, then sleep
	EventsOnly                 // sleep at once: least CPU, five times the latency on rxe
	Busy                       // never sleep while a link is connected: a core per poller
)

func (m PollMode) String() string {
	switch m {
	case Adaptive:
		return "adaptive"
	case EventsOnly:
		return "events"
	case Busy:
		return "busy"
	}
	return fmt.Sprintf("PollMode(%d)", uint8(m))
}

// Defaults of Config.
const (
	DefaultSpin    = 50 * time.Microsecond
	DefaultSQDepth = 256
	DefaultRQDepth = 128
	DefaultWarm    = 2

	// Of 16 sessions with another link standing by each: 43 MiB on rxe, 103 MiB
	// elsewhere. More is much to pin for links of which most are idle.
	DefaultDedicated   = 32
	DefaultSharedSlots = 2048

	// Of a QP that shares. Twelve frames under way keep a path of 10 µs busy with
	// slots of 8 KiB; the sends are twice as many, for those that the peer has taken and
	// this side does not know of, and frames of the link.
	sharedSQDepth = 31
	sharedWindow  = 16

	// Slots that a link which shares holds at most, with its own four. Frames of 64
	// callers that wait together for credit leave eight at a time, those of callers
	// that wait for it one by one, each to be woken, less than two.
	sharedHold = 64

	// A block of a common size in one frame, with its header and what codecs add:
	// with slots of 4 KiB, blocks of 4 KiB were two chunks, and 256 callers
	// made a quarter of the calls.
	DefaultSlotSize = 8<<10 + 256

	// On rxe a message costs 45 µs of the processor whatever its size, so
	// that a deep window only delays (measured, Linux 6.1).
	DefaultRQDepthRXE  = 64
	DefaultSlotSizeRXE = 4<<10 + 256

	// A round trip on rxe takes 0.1 to 0.2 ms under emulation; a poller that
	// sleeps within one makes it five times longer (measured likewise).
	DefaultSpinRXE = 500 * time.Microsecond
)

// Config says which device is used and how. The zero value is good: each zero
// field stands for its default.
type Config struct {
	// Device is the RDMA device, "mlx5_0". Empty: the one that has a RoCE v2
	// GID of the local address of the control connection.
	Device string

	// Provider drives the devices. AutoProvider takes the fastest for each.
	Provider Provider

	// Port of the device, from 1. 0: the one that has such a GID. How many there
	// are is the device's to say: Usable returns an error for one beyond.
	Port uint8

	// GIDIndex in the port's table. nil: the RoCE v2 GID of the local
	// address, looked up for each link, since entries move.
	GIDIndex *int

	// MTU caps the path MTU: 256, 512, 1024, 2048 or 4096 bytes. 0: the
	// smaller of both ports' active MTU.
	MTU int

	// SQDepth is the number of send slots of a link, 16 to 4096; 0: 256. Four
	// of them are small, for frames of the link itself. More lets more callers
	// have a frame under way.
	SQDepth int

	// RQDepth is the number of receive slots of a link, 8 to 4096; 0: 128,
	// 64 on rxe. More lets the peer send more before it hears from us.
	RQDepth int

	// SlotSize is the size of a slot of either ring in bytes, 512 to 1 MiB in
	// multiples of 64; 0: 8448, 4352 on rxe: a block of 8 or 4 KiB and what
	// goes with it. A frame's payload is at most 72 bytes less. A link pins
	// (SQDepth+RQDepth-4)*SlotSize bytes, and 544.
	SlotSize int

	// Dedicated is how many QPs of a device have slots of their own, up to
	// 65536, which is all; 0: 32; -1: none. Those made beyond it, and those for whose
	// completions the CQs have too little room, share the slots of their poller: they
	// pin 4 KiB each, and take little room in a CQ. Each has a window of 16 frames, and 64
	// slots at most, or RQDepth and SQDepth if these are less. On rxe they are
	// as fast, with many small messages faster, with large ones slower by a tenth at most. Where so many are busy at once that more than half of the
	// slots are taken, each frame waits for the peer's credit before it has one, and
	// 64 callers of a link make half the calls; and a frame may find no receive, which
	// delays it by a millisecond or more.
	Dedicated int

	// SharedSlots is how many receive slots QPs of a poller share at most, 8 to
	// 16384, and twice as many as the send slots; 0: 2048. For each 512 of them there
	// are 256 and 128, or fewer where slots are larger than on rxe: in 1.6 MiB. More send
	// slots are added while links are busy, up to that half. A higher number lets more links
	// be busy at once, and pins more then.
	SharedSlots int

	// Poll is how completions are awaited, and Spin for how long an Adaptive
	// poller looks for them before it sleeps; 0: 50 µs, 0.5 ms on rxe. Longer answers
	// faster after a pause and takes more CPU.
	Poll PollMode
	Spin time.Duration

	// Pollers is the number of pollers of a device, each a goroutine with a
	// CQ, 1 to 64; 0: 1. Links are spread over them.
	Pollers int

	// Warm is how many QPs of each port in use are kept ready in INIT, up to 1024;
	// 0: 2, -1: none. Each has its memory pinned.
	Warm int

	// RefillRate is how many QPs per second the background makes to fill the
	// warm pool again, 0.1 to 10000; 0: 100. Higher refills sooner after many
	// links were made at once, and takes more from the calls that run
	// meanwhile: a QP with its rings took 3 to 10 ms of rxe under emulation.
	RefillRate float64

	// Adaptive lets the timeout and the retry count of a QP follow how long sends
	// took to be acknowledged on earlier links to the same peer, 16.8 ms to
	// 0.54 s and 3 to 6 retries, instead of 67 ms and 6. Where packets are lost on a
	// short path they are sent again sooner, and a path that is dead is
	// given up sooner; a peer that stalls for longer than 0.12 s may cost the link.
	Adaptive bool

	// PayloadSum adds XXH64 of each payload to its frame. The header's sum is
	// always there.
	PayloadSum bool

	// Strict makes a QP fail at the first RNR instead of retrying, if its peer does
	// not share receives, and checks each transition before the device does. For tests.
	Strict bool
}

// ConfigError is a field of Config that cannot be used.
type ConfigError struct {
	Field string
	Value any
	Want  string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("rdma: Config.%s is %v, expected %s", e.Field, e.Value, e.Want)
}

// Validate returns a *ConfigError for the first field out of its range.
func (c *Config) Validate() error {
	for _, f := range []struct {
		name     string
		value    int
		min, max int
		unit     string
	}{
		{"SQDepth", c.SQDepth, 16, 4096, "slots"},
		{"RQDepth", c.RQDepth, credit.MinDepth, 4096, "slots"},
		{"SlotSize", c.SlotSize, wire.MinSlot, wire.MaxSlot, "bytes"},
		{"Pollers", c.Pollers, 1, 64, "pollers"},
		{"Warm", c.Warm, -1, 1024, "QPs"},
		{"Dedicated", c.Dedicated, -1, wrid.MaxEndpoints, "QPs"},
		{"SharedSlots", c.SharedSlots, credit.MinDepth, 1 << 14, "slots"},
	} {
		if f.value != 0 && (f.value < f.min || f.value > f.max) {
			return &ConfigError{f.name, f.value, fmt.Sprintf("0 or %d to %d %s", f.min, f.max, f.unit)}
		}
	}
	switch {
	case c.SlotSize%wire.HeaderSize != 0:
		return &ConfigError{"SlotSize", c.SlotSize, "a multiple of 64 bytes"}
	case c.MTU != 0 && mtuCode(c.MTU) == 0:
		return &ConfigError{"MTU", c.MTU, "0, 256, 512, 1024, 2048 or 4096 bytes"}
	case c.GIDIndex != nil && (*c.GIDIndex < 0 || *c.GIDIndex > 255):
		return &ConfigError{"GIDIndex", *c.GIDIndex, "0 to 255"}
	case c.Provider > Uverbs:
		return &ConfigError{"Provider", c.Provider, "AutoProvider, Libibverbs or Uverbs"}
	case c.Poll > Busy:
		return &ConfigError{"Poll", c.Poll, "Adaptive, EventsOnly or Busy"}
	case c.RefillRate != 0 && !(c.RefillRate >= 0.1 && c.RefillRate <= 10000):
		return &ConfigError{"RefillRate", c.RefillRate, "0 or 0.1 to 10000 QPs per second"}
	case c.Spin < 0 || c.Spin > time.Second:
		return &ConfigError{"Spin", c.Spin, "0 to 1s"}
	}
	return nil
}

// queues are how many sends and receives a QP has outstanding at most. Rounding
// may make its queues deeper, but no more than what was asked for is ever posted.
func (c *Config) queues(shares bool) (sends, window int) {
	if shares {
		return min(c.SQDepth, sharedSQDepth), min(c.RQDepth, sharedWindow)
	}
	return c.SQDepth, c.RQDepth
}

// slots is how many slots of its own an endpoint has, and so the completions
// that a CQ must have room for: those that are shared count once for all.
func (c *Config) slots(shares bool) int {
	if shares {
		return credit.Reserve
	}
	return c.SQDepth + c.RQDepth
}

// chunk is how many receive slots there are for each chunkSharers endpoints that share.
func (c *Config) chunk() int { return max(2*credit.MinDepth, min(chunkSlots, chunkBytes/c.SlotSize)) }

// split is where an endpoint's rings have receive slots, behind its send slots, and
// where these end, and the slots for frames of the link itself begin.
func (c *Config) split() (sends, end int) {
	return (c.SQDepth - credit.Reserve) * c.SlotSize, (c.SQDepth - credit.Reserve + c.RQDepth) * c.SlotSize
}

// memory is how many bytes an endpoint that does not share has registered.
func (c *Config) memory() int {
	_, end := c.split()
	return end + credit.Reserve*linkFrame
}

// mtuCode is the code of an MTU in bytes, 0 if there is none.
func mtuCode(bytes int) verbs.MTU {
	for m := verbs.MTU256; m <= verbs.MTU4096; m++ {
		if m.Bytes() == bytes {
			return m
		}
	}
	return 0
}

// withDefaults fills the zero fields for a device.
func (c Config) withDefaults(dev *verbs.DeviceAttr) Config {
	rq, slot, spin := DefaultRQDepth, DefaultSlotSize, DefaultSpin
	if isRXE(dev) {
		rq, slot, spin = DefaultRQDepthRXE, DefaultSlotSizeRXE, DefaultSpinRXE
	}
	c.SQDepth = or(c.SQDepth, DefaultSQDepth)
	c.RQDepth = or(c.RQDepth, rq)
	c.SlotSize = or(c.SlotSize, slot)
	c.Spin = or(c.Spin, spin)
	c.Pollers = or(c.Pollers, 1)
	c.Dedicated = or(c.Dedicated, DefaultDedicated)
	c.SharedSlots = or(c.SharedSlots, DefaultSharedSlots)
	c.Warm = max(0, or(c.Warm, DefaultWarm))
	return c
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// isRXE tells the kernel's software device by its vendor id
// (drivers/infiniband/sw/rxe/rxe_param.h, RXE_VENDOR_ID).
func isRXE(dev *verbs.DeviceAttr) bool { return dev.VendorID == 0xffffff }

// Times that a drain may take before the QP is destroyed and its memory kept
// aside. Under emulation rxe needs longer.
const (
	drainTime    = time.Second
	drainTimeRXE = 5 * time.Second
)
