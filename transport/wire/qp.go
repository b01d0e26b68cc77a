package wire

import "encoding/binary"

// QPSize is the size of a QP exchange message in bytes.
const QPSize = 64

// QP is what one side tells the other about its queue pair.
type QP struct {
	Epoch        uint64 // of the link to be
	GID          [16]byte
	QPN          uint32 // 24 bits
	PSN          uint32 // 24 bits; of this side's send queue
	Depth        uint32 // receive slots posted
	Slot         uint32 // bytes of a receive slot
	FlowLabel    uint32 // 20 bits
	LID          uint16
	GIDType      uint8
	MTU          uint8 // code 1..5
	MaxRdAtomic  uint8
	TrafficClass uint8
	Shared       bool // the receives are shared with other QPs: a frame may find none
}

// qpShared is the flag of QP.Shared.
const qpShared = 0x01

// Append adds the encoding, QPSize bytes, to b.
func (q *QP) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, q.Epoch)
	b = append(b, q.GID[:]...)
	b = le.AppendUint32(b, q.QPN)
	b = le.AppendUint32(b, q.PSN)
	b = le.AppendUint32(b, q.Depth)
	b = le.AppendUint32(b, q.Slot)
	b = le.AppendUint32(b, q.FlowLabel)
	b = le.AppendUint16(b, q.LID)
	b = append(b, q.GIDType, q.MTU, q.MaxRdAtomic, q.TrafficClass)
	var flags byte
	if q.Shared {
		flags = qpShared
	}
	return append(append(b, flags), make([]byte, 13)...)
}

// Parse reads a QP exchange message and checks every field's range.
func (q *QP) Parse(b []byte) error {
	if len(b) != QPSize {
		return &ParseError{Field: "QP exchange", Got: uint64(len(b)), Want: "64 bytes"}
	}
	le := binary.LittleEndian
	*q = QP{
		Epoch:        le.Uint64(b[0:]),
		GID:          [16]byte(b[8:24]),
		QPN:          le.Uint32(b[24:]),
		PSN:          le.Uint32(b[28:]),
		Depth:        le.Uint32(b[32:]),
		Slot:         le.Uint32(b[36:]),
		FlowLabel:    le.Uint32(b[40:]),
		LID:          le.Uint16(b[44:]),
		GIDType:      b[46],
		MTU:          b[47],
		MaxRdAtomic:  b[48],
		TrafficClass: b[49],
		Shared:       b[50]&qpShared != 0,
	}
	if flags := b[50]; flags&^qpShared != 0 {
		return &ParseError{Field: "QP flags", Got: uint64(flags), Want: "no bit but 0x01"}
	}
	for _, r := range b[51:] {
		if r != 0 {
			return &ParseError{Field: "QP reserved byte", Got: uint64(r), Want: "0"}
		}
	}
	return q.check()
}

// Bounds of a receive ring that a peer may announce: enough for every frame
// of the link itself, and small enough to count in 16 bits.
const (
	MinDepth = 8
	MaxDepth = 1 << 15
	MinSlot  = 512
	MaxSlot  = 1 << 20
)

func (q *QP) check() error {
	for _, f := range []struct {
		name     string
		got      uint32
		min, max uint32
		want     string
	}{
		{"QP number", q.QPN, 1, 1<<24 - 1, "1 to 24 bits"},
		{"QP PSN", q.PSN, 0, 1<<24 - 1, "24 bits"},
		{"QP depth", q.Depth, MinDepth, MaxDepth, "8 to 32768 slots"},
		{"QP slot", q.Slot, MinSlot, MaxSlot, "512 bytes to 1 MiB"},
		{"QP flow label", q.FlowLabel, 0, 1<<20 - 1, "20 bits"},
		{"QP GID type", uint32(q.GIDType), 0, 2, "0 to 2"},
		{"QP MTU", uint32(q.MTU), 1, 5, "a code of 1 to 5"},
	} {
		if f.got < f.min || f.got > f.max {
			return &ParseError{Field: f.name, Got: uint64(f.got), Want: f.want}
		}
	}
	return nil
}
