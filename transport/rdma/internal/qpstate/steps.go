package qpstate

import (
	"fmt"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// Defaults of Path and Timing.
const (
	// DefaultTimeout is 4.096 µs * 2^14 = 67 ms until a packet is sent again.
	DefaultTimeout = 14

	// DefaultRetryCnt gives up after 7 sends: 0.47 s with DefaultTimeout. 7
	// means for ever on rxe (measured, Linux 6.1).
	DefaultRetryCnt = 6

	// DefaultRNRRetry likewise: 7 means for ever on every device
	// (InfiniBand Architecture Specification, volume 1, section 9.7.5.2.8).
	DefaultRNRRetry = 6

	// DefaultMinRNRTimer is 0.64 ms by the same section's table, in which 0
	// is the longest: 655.36 ms.
	DefaultMinRNRTimer = 12

	// DefaultHopLimit is the initial TTL of many systems (IANA, RFC 1700).
	DefaultHopLimit = 64

	// NoRetry as a retry count stands for 0, which stands for the default.
	NoRetry = 0xff

	// ForeverRNR is for a peer that may have no receive for a while and is well.
	ForeverRNR = 7
)

// Local is what INIT takes: how this side of the QP is bound.
type Local struct {
	Port      uint8        // from 1
	PKeyIndex uint16       // 0: the default partition, all there is on RoCE
	Access    verbs.Access // what the peer may do one-sided; not for UD
	QKey      uint32       // UD only
}

// Path is what RTR takes: the peer, the way there, and what this side
// receives. UD takes none of it.
type Path struct {
	DestQPN       uint32    // 24 bits
	RQPSN         uint32    // first PSN the peer sends, 24 bits
	MTU           verbs.MTU // at most the active MTU of both ports
	MaxDestRdAtom uint8     // READs and atomics of the peer served at once
	MinRNRTimer   uint8     // code; 0: DefaultMinRNRTimer
	SGIDIndex     uint8     // read from the GID table just now: entries move (see verbs.Device.QueryGIDs)
	DGID          verbs.GID // empty: no GRH, InfiniBand only
	HopLimit      uint8     // 0: DefaultHopLimit
	TrafficClass  uint8     // DSCP << 2 | ECN on RoCE v2
	FlowLabel     uint32    // 20 bits
	DLID          uint16    // InfiniBand
	SL            uint8     // InfiniBand
}

// Timing is what RTS takes: how this side sends. UC and UD take SQPSN alone.
type Timing struct {
	SQPSN       uint32 // first PSN, 24 bits
	MaxRdAtomic uint8  // own READs and atomics outstanding; at most the peer's MaxDestRdAtom; 0: none may be posted
	Timeout     uint8  // 4.096 µs * 2^Timeout; 0: DefaultTimeout
	RetryCnt    uint8  // 1 to 6 or NoRetry; 0: DefaultRetryCnt
	RNRRetry    uint8  // 1 to 6, NoRetry or ForeverRNR; 0: DefaultRNRRetry
}

// ToInit takes the QP from RESET to INIT, where it takes receives.
func (m *Machine) ToInit(l Local) error {
	return m.steps(m.initStep(l))
}

// ToRTR takes the QP from INIT to RTR: the peer's packets are received. On
// rxe it blocks for a second when the destination GID does not resolve.
func (m *Machine) ToRTR(p Path) error {
	return m.steps(m.rtrStep(p))
}

// ToRTS takes the QP from RTR to RTS, where it sends.
func (m *Machine) ToRTS(t Timing) error {
	return m.steps(m.rtsStep(t))
}

// Connect is ToRTR and ToRTS with no transition in between. When the second
// fails, the QP stays in RTR.
func (m *Machine) Connect(p Path, t Timing) error {
	return m.steps(m.rtrStep(p), m.rtsStep(t))
}

// ToErr makes every outstanding work request complete, most of them flushed.
func (m *Machine) ToErr(why string) error {
	return m.steps(step{verbs.QPAttr{State: verbs.Err}, verbs.AttrState, why})
}

// ToReset forgets everything but the QPN. Outstanding work requests vanish,
// from RTS without a completion: go by ToErr, and poll them all, first.
func (m *Machine) ToReset(why string) error {
	return m.steps(step{verbs.QPAttr{State: verbs.Reset}, verbs.AttrState, why})
}

// step is one transition to make.
type step struct {
	attr verbs.QPAttr
	mask verbs.AttrMask
	why  string
}

// steps makes transitions in one turn, up to the first that fails. Values that
// are right on no device are refused at once: rxe takes a path MTU of 0.
func (m *Machine) steps(steps ...step) error {
	return m.inTurn(func() error {
		for i := range steps {
			s := &steps[i]
			s.attr.AV.Port = m.port
			if e := Check(m.qp.Type(), m.State(), &s.attr, s.mask, Facts{}); e != nil && len(e.Problems) > 0 {
				return m.refuse(e, s.why)
			}
			if err := m.modify(&s.attr, s.mask, s.why); err != nil {
				return err
			}
		}
		return nil
	})
}

// required is the mask of a step: the table knows which of the attributes
// this type of QP takes.
func (m *Machine) required(from, to verbs.QPState) verbs.AttrMask {
	row, _ := Lookup(m.qp.Type(), from, to)
	return row.Required | verbs.AttrState
}

func (m *Machine) initStep(l Local) step {
	return step{
		attr: verbs.QPAttr{State: verbs.Init, Port: l.Port, PKeyIndex: l.PKeyIndex, Access: l.Access, QKey: l.QKey},
		mask: m.required(verbs.Reset, verbs.Init),
		why:  fmt.Sprintf("bound to port %d", l.Port),
	}
}

func (m *Machine) rtrStep(p Path) step {
	s := step{mask: m.required(verbs.Init, verbs.RTR), why: "receives"}
	s.attr = verbs.QPAttr{
		State:         verbs.RTR,
		PathMTU:       p.MTU,
		DestQPN:       p.DestQPN,
		RQPSN:         p.RQPSN,
		MaxDestRdAtom: p.MaxDestRdAtom,
		MinRNRTimer:   or(p.MinRNRTimer, DefaultMinRNRTimer),
		AV: verbs.AHAttr{
			Global:       p.DGID != verbs.GID{},
			DGID:         p.DGID,
			SGIDIndex:    p.SGIDIndex,
			FlowLabel:    p.FlowLabel,
			HopLimit:     or(p.HopLimit, DefaultHopLimit),
			TrafficClass: p.TrafficClass,
			DLID:         p.DLID,
			SL:           p.SL,
		},
	}
	if s.mask&verbs.AttrDestQPN != 0 {
		s.why = fmt.Sprintf("receives from QP %#x at %v by GID index %d, MTU %v, PSN %#x",
			p.DestQPN, p.DGID.Addr(), p.SGIDIndex, p.MTU, p.RQPSN)
	}
	return s
}

func (m *Machine) rtsStep(t Timing) step {
	attr := verbs.QPAttr{
		State:       verbs.RTS,
		SQPSN:       t.SQPSN,
		MaxRdAtomic: t.MaxRdAtomic,
		Timeout:     or(t.Timeout, DefaultTimeout),
		RetryCnt:    retries(t.RetryCnt, DefaultRetryCnt),
		RNRRetry:    retries(t.RNRRetry, DefaultRNRRetry),
	}
	return step{attr, m.required(verbs.RTR, verbs.RTS), fmt.Sprintf("sends from PSN %#x", t.SQPSN)}
}

func or(v, def uint8) uint8 {
	if v == 0 {
		return def
	}
	return v
}

func retries(v, def uint8) uint8 {
	if v == NoRetry {
		return 0
	}
	return or(v, def)
}
