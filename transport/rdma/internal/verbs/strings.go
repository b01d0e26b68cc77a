package verbs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"unsafe"
)

var qpTypeNames = map[QPType]string{RC: "RC", UC: "UC", UD: "UD", XRCSend: "XRC_SEND", XRCRecv: "XRC_RECV"}

func (t QPType) String() string { return nameOr(qpTypeNames, t, "QPType") }

var qpStateNames = map[QPState]string{
	Reset: "RESET", Init: "INIT", RTR: "RTR", RTS: "RTS", SQD: "SQD", SQE: "SQE", Err: "ERR", Unknown: "UNKNOWN",
}

func (s QPState) String() string { return nameOr(qpStateNames, s, "QPState") }

var attrNames = []struct {
	bit  AttrMask
	name string
}{
	{AttrState, "STATE"}, {AttrCurState, "CUR_STATE"}, {AttrEnSQDNotify, "EN_SQD_ASYNC_NOTIFY"},
	{AttrAccess, "ACCESS_FLAGS"}, {AttrPKeyIndex, "PKEY_INDEX"}, {AttrPort, "PORT"}, {AttrQKey, "QKEY"},
	{AttrAV, "AV"}, {AttrPathMTU, "PATH_MTU"}, {AttrTimeout, "TIMEOUT"}, {AttrRetryCnt, "RETRY_CNT"},
	{AttrRNRRetry, "RNR_RETRY"}, {AttrRQPSN, "RQ_PSN"}, {AttrMaxRdAtomic, "MAX_QP_RD_ATOMIC"},
	{AttrAltPath, "ALT_PATH"}, {AttrMinRNRTimer, "MIN_RNR_TIMER"}, {AttrSQPSN, "SQ_PSN"},
	{AttrMaxDestRdAtom, "MAX_DEST_RD_ATOMIC"}, {AttrPathMigState, "PATH_MIG_STATE"}, {AttrCap, "CAP"},
	{AttrDestQPN, "DEST_QPN"}, {AttrRateLimit, "RATE_LIMIT"},
}

// String lists the attributes as ibv_modify_qp(3) names them, joined by "|".
func (m AttrMask) String() string {
	var names []string
	for _, a := range attrNames {
		if m&a.bit != 0 {
			names = append(names, a.name)
			m &^= a.bit
		}
	}
	if m != 0 || len(names) == 0 {
		names = append(names, fmt.Sprintf("%#x", uint32(m)))
	}
	return strings.Join(names, "|")
}

var wcStatusNames = [...]string{
	"success", "local length error", "local QP operation error", "local EE context operation error",
	"local protection error", "work request flushed", "memory window bind error", "bad response",
	"local access error", "remote invalid request", "remote access error", "remote operation error",
	"transport retry count exceeded", "RNR retry count exceeded", "local RDD violation",
	"remote invalid RD request", "remote aborted", "invalid EE context number", "invalid EE context state",
	"fatal error", "response timeout", "general error",
}

func (s WCStatus) String() string {
	if int(s) < len(wcStatusNames) {
		return wcStatusNames[s]
	}
	return fmt.Sprintf("WCStatus(%d)", uint32(s))
}

var eventNames = [...]string{
	"CQ error", "QP fatal", "QP request error", "QP access error", "communication established",
	"SQ drained", "path migrated", "path migration error", "device fatal", "port active", "port error",
	"LID change", "P_Key change", "SM change", "SRQ error", "SRQ limit reached", "last WQE reached",
	"client reregister", "GID change",
}

func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("EventType(%d)", uint32(t))
}

var portStateNames = map[PortState]string{
	PortNop: "NOP", PortDown: "DOWN", PortInit: "INIT", PortArmed: "ARMED", PortActive: "ACTIVE", PortActiveDefer: "ACTIVE_DEFER",
}

func (s PortState) String() string { return nameOr(portStateNames, s, "PortState") }

var gidTypeNames = map[GIDType]string{GIDInfiniBand: "IB", GIDRoCEv1: "RoCE v1", GIDRoCEv2: "RoCE v2"}

func (t GIDType) String() string { return nameOr(gidTypeNames, t, "GIDType") }

// Addr is the GID as an IP address, IPv4 where it is mapped.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

func (g GID) String() string { return netip.AddrFrom16(g).String() }

func (m MTU) String() string { return fmt.Sprint(m.Bytes()) }

// Imm is the immediate value in host order.
func (w *WC) Imm() uint32 {
	return binary.BigEndian.Uint32((*[4]byte)(unsafe.Pointer(&w.ImmBE))[:])
}

func nameOr[K interface{ ~uint8 }](names map[K]string, k K, kind string) string {
	if s, ok := names[k]; ok {
		return s
	}
	return fmt.Sprintf("%s(%d)", kind, uint8(k))
}
