package verbs

import "fmt"

// Numbers below are those of infiniband/verbs.h (rdma-core 44); the test of
// package ibverbs compiles against that header and compares each of them.

// QPType is the transport service of a QP.
type QPType uint8

// QP types (enum ibv_qp_type).
const (
	RC      QPType = 2
	UC      QPType = 3
	UD      QPType = 4
	XRCSend QPType = 9
	XRCRecv QPType = 10
)

// QPState is a state of the QP state machine (InfiniBand Architecture
// Specification, volume 1, section 10.3.1).
type QPState uint8

// QP states (enum ibv_qp_state).
const (
	Reset QPState = iota
	Init
	RTR
	RTS
	SQD
	SQE
	Err
	Unknown
)

// AttrMask selects fields of QPAttr.
type AttrMask uint32

// Attribute masks (enum ibv_qp_attr_mask).
const (
	AttrState         AttrMask = 1 << 0
	AttrCurState      AttrMask = 1 << 1
	AttrEnSQDNotify   AttrMask = 1 << 2
	AttrAccess        AttrMask = 1 << 3
	AttrPKeyIndex     AttrMask = 1 << 4
	AttrPort          AttrMask = 1 << 5
	AttrQKey          AttrMask = 1 << 6
	AttrAV            AttrMask = 1 << 7
	AttrPathMTU       AttrMask = 1 << 8
	AttrTimeout       AttrMask = 1 << 9
	AttrRetryCnt      AttrMask = 1 << 10
	AttrRNRRetry      AttrMask = 1 << 11
	AttrRQPSN         AttrMask = 1 << 12
	AttrMaxRdAtomic   AttrMask = 1 << 13
	AttrAltPath       AttrMask = 1 << 14
	AttrMinRNRTimer   AttrMask = 1 << 15
	AttrSQPSN         AttrMask = 1 << 16
	AttrMaxDestRdAtom AttrMask = 1 << 17
	AttrPathMigState  AttrMask = 1 << 18
	AttrCap           AttrMask = 1 << 19
	AttrDestQPN       AttrMask = 1 << 20
	AttrRateLimit     AttrMask = 1 << 25
)

// Access are the rights of an MR or of a QP's peer (enum ibv_access_flags).
type Access uint32

// Access rights. A region without any is readable by its own device only.
const (
	AccessLocalWrite   Access = 1 << 0
	AccessRemoteWrite  Access = 1 << 1
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3
	AccessMWBind       Access = 1 << 4
)

// MTU is a path MTU code (enum ibv_mtu).
type MTU uint8

// Path MTUs.
const (
	MTU256 MTU = iota + 1
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes is the payload size the code stands for, 0 if it is none.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// DeviceAttr are the limits of a device. Counts are of objects or entries.
type DeviceAttr struct {
	FirmwareVersion string
	VendorID        uint32
	VendorPartID    uint32
	Ports           uint8
	MaxQP           int
	MaxQPWR         int
	MaxSGE          int
	MaxCQ           int
	MaxCQE          int
	MaxMR           int
	MaxPD           int
	MaxQPRdAtomic   int // READs and atomics a QP serves at once

	// MaxQPInitRdAtomic is how many a QP has outstanding; 0 if unknown.
	MaxQPInitRdAtomic int
	MaxSRQ            int
	MaxSRQWR          int
	MaxSRQSGE         int
}

// PortState is the state of a port (enum ibv_port_state).
type PortState uint8

// Port states.
const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

// LinkLayer is the protocol below the transport.
type LinkLayer uint8

// Link layers.
const (
	LinkUnspecified LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

// PortAttr describes a port.
type PortAttr struct {
	State     PortState
	MaxMTU    MTU
	ActiveMTU MTU
	GIDTable  int // entries
	PKeyTable int // entries; 0 if unknown
	LID       uint16
	LinkLayer LinkLayer
}

// GID is a 128-bit global identifier: for RoCE v2 an IPv6 address, or an IPv4
// address mapped into one.
type GID [16]byte

// GIDType is the protocol a GID entry stands for (enum ibv_gid_type).
type GIDType uint8

// GID types.
const (
	GIDInfiniBand GIDType = iota
	GIDRoCEv1
	GIDRoCEv2
)

// GIDEntry is one entry of a port's GID table.
type GIDEntry struct {
	Index  int
	GID    GID
	Type   GIDType
	NetDev string // name of the network interface, "" if unknown
}

// QPCaps are the sizes of a QP's queues.
type QPCaps struct {
	MaxSendWR     int
	MaxRecvWR     int
	MaxSendSGE    int
	MaxRecvSGE    int
	MaxInlineData int // bytes
}

// SRQCaps are the sizes of a shared receive queue.
type SRQCaps struct {
	MaxWR  int
	MaxSGE int
}

// QPInit are the arguments of CreateQP.
type QPInit struct {
	Type      QPType
	SendCQ    CQ
	RecvCQ    CQ
	SRQ       SRQ    // of the same PD; nil: the QP has a receive queue of its own
	Caps      QPCaps // with an SRQ, MaxRecvWR and MaxRecvSGE are ignored, and 0 in QP.Caps
	SignalAll bool   // every send WR makes a completion
}

// AHAttr is an address vector: the path to a peer's port.
type AHAttr struct {
	Global       bool // a GRH is sent; always so on RoCE
	DGID         GID
	SGIDIndex    uint8
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8
	TrafficClass uint8
	DLID         uint16
	SL           uint8
	Port         uint8
}

// QPAttr are the attributes of a QP. Times are codes of the specification:
// Timeout is 4.096 µs * 2^Timeout (0: infinite), MinRNRTimer indexes the table
// of section 9.7.5.2.8 (0: 655.36 ms, the longest).
type QPAttr struct {
	State         QPState
	CurState      QPState
	PathMTU       MTU
	QKey          uint32
	RQPSN         uint32 // 24 bits
	SQPSN         uint32 // 24 bits
	DestQPN       uint32 // 24 bits
	Access        Access // rights of the peer
	AV            AHAttr
	PKeyIndex     uint16
	EnSQDNotify   bool
	SQDraining    bool // read only
	MaxRdAtomic   uint8
	MaxDestRdAtom uint8
	MinRNRTimer   uint8
	Port          uint8
	Timeout       uint8
	RetryCnt      uint8
	RNRRetry      uint8
	Caps          QPCaps // read only
}

// Opcode is the operation of a send WR (enum ibv_wr_opcode).
type Opcode uint32

// Send opcodes.
const (
	OpWrite Opcode = iota
	OpWriteImm
	OpSend
	OpSendImm
	OpRead
	OpCompareSwap
	OpFetchAdd
)

// SendFlags modify a send WR (enum ibv_send_flags).
type SendFlags uint32

// Send flags.
const (
	SendFence     SendFlags = 1 << 0
	SendSignaled  SendFlags = 1 << 1
	SendSolicited SendFlags = 1 << 2
	SendInline    SendFlags = 1 << 3
)

// SendWR is one send work request with at most one gather element. It holds
// no Go pointer, so that a batch crosses into C as it is.
type SendWR struct {
	ID         uint64
	Addr       uint64 // local memory; ignored when Length is 0
	RemoteAddr uint64 // WRITE, READ, atomics
	CompareAdd uint64 // atomics
	Swap       uint64 // compare and swap
	AH         uint64 // UD: AH.Handle
	Length     uint32 // bytes
	LKey       uint32
	RKey       uint32
	Imm        uint32 // host order
	RemoteQPN  uint32 // UD
	RemoteQKey uint32 // UD
	Opcode     Opcode
	Flags      SendFlags
}

// RecvWR is one receive work request with at most one scatter element. A UD
// receive needs 40 more bytes, where the GRH lands.
type RecvWR struct {
	ID     uint64
	Addr   uint64
	Length uint32
	LKey   uint32
}

// WCStatus is the outcome of a work request (enum ibv_wc_status).
type WCStatus uint32

// Completion statuses.
const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCWRFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
)

// WCOpcode is the operation that completed (enum ibv_wc_opcode). On an error
// it is meaningless.
type WCOpcode uint32

// Completion opcodes.
const (
	WCSend WCOpcode = iota
	WCRDMAWrite
	WCRDMARead
	WCCompSwap
	WCFetchAdd
	WCRecv        WCOpcode = 128
	WCRecvRDMAImm WCOpcode = 129
)

// WCFlags say which fields of a WC hold something (enum ibv_wc_flags).
type WCFlags uint32

// Completion flags.
const (
	WCWithGRH WCFlags = 1 << 0
	WCWithImm WCFlags = 1 << 1
)

// WC is a work completion, laid out as struct ibv_wc (48 bytes) so that a
// batch is polled into it without conversion. On an error only ID, Status,
// QPNum and VendorErr are to be trusted.
type WC struct {
	ID        uint64
	Status    WCStatus
	Opcode    WCOpcode
	VendorErr uint32
	ByteLen   uint32
	ImmBE     uint32 // big endian; read it with Imm
	QPNum     uint32
	SrcQP     uint32
	Flags     WCFlags
	PKeyIndex uint16
	SLID      uint16
	SL        uint8
	DLIDBits  uint8
	_         [2]byte
}

// EventType is the kind of an asynchronous event (enum ibv_event_type).
type EventType uint32

// Asynchronous events.
const (
	EventCQErr EventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
)

// AsyncEvent is an asynchronous event of a device. QPNum is set for QP
// events, CQ for CQ events, SRQ for SRQ events, Port for port events. The
// events of an object that was destroyed meanwhile come without it.
type AsyncEvent struct {
	Type  EventType
	QPNum uint32
	CQ    CQ
	SRQ   SRQ
	Port  uint8
}

func (e AsyncEvent) String() string {
	switch {
	case e.QPNum != 0:
		return fmt.Sprintf("%v (QP %#x)", e.Type, e.QPNum)
	case e.Port != 0:
		return fmt.Sprintf("%v (port %d)", e.Type, e.Port)
	}
	return e.Type.String()
}
