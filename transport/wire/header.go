// Package wire holds the encodings of docs/PROTOCOL.md: the frame header, the
// HELLO exchange, the QP exchange and the error payload. It is a pure core: it
// reads and writes byte slices and knows no connection.
package wire

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Sizes in bytes.
const (
	HeaderSize = 64 // a cache line, so that the payload behind it starts on one
	SumSize    = 8  // payload sum behind the payload, where flag Sum is set
)

const (
	magic   = 0x5256 // "VR"
	Version = 1      // of the protocol
)

// Kind is what a frame is.
type Kind uint8

// Kinds of frames. Those below Call belong to a link or session, the others
// to a lane.
const (
	Hello     Kind = 1
	Refuse    Kind = 2
	QPOffer   Kind = 3
	QPAnswer  Kind = 4
	QPAbandon Kind = 5
	Ready     Kind = 6
	Ping      Kind = 7
	Pong      Kind = 8
	Credit    Kind = 9
	GoAway    Kind = 10
	Close     Kind = 11
	Ack       Kind = 12
	Call      Kind = 32
	Reply     Kind = 33
	Cancel    Kind = 34
	Move      Kind = 40
)

// InLane says whether frames of this kind belong to a lane. All of them but MOVE
// take a sequence number.
func (k Kind) InLane() bool { return k >= Call }

// Flags modify a frame.
type Flags uint16

// Flags of frames.
const (
	More       Flags = 1 << iota // more chunks of this message follow
	Cont                         // continues a message
	Sum                          // a payload sum follows the payload
	Error                        // REPLY: the call failed
	End                          // last message of the call in this direction
	Idempotent                   // CALL: may be executed more than once
	Unseen                       // REPLY with Error: no handler has seen the call
)

// Header is the fixed part of a frame. The checksum is computed by Put or Seal
// and checked by Parse.
type Header struct {
	Kind   Kind
	Flags  Flags
	Lane   uint16
	Length uint32 // payload bytes
	Credit uint32 // receive slots granted, cumulative
	Epoch  uint64
	Seq    uint32
	Ack    uint32 // next number expected from the peer
	Call   uint64
	Method uint64 // CALL: MethodID of the full method name
	Total  uint32 // first frame: bytes of the message; continuation: offset
	Arg    uint32 // CALL: microseconds left, 0 = no deadline; REPLY: code; MOVE: number of the move
}

// FrameSize is the number of bytes of the frame: header, payload, sum.
func (h *Header) FrameSize() int {
	n := HeaderSize + int(h.Length)
	if h.Flags&Sum != 0 {
		n += SumSize
	}
	return n
}

// MethodID is the method field for a full method name, "/pkg.Service/Method".
func MethodID(name string) uint64 { return xxhash.Sum64String(name) }

// PayloadSum is the checksum that follows a payload.
func PayloadSum(payload []byte) uint64 { return xxhash.Sum64(payload) }

// Put writes the header into the first HeaderSize bytes of b.
func (h *Header) Put(b []byte) {
	h.Draft(b)
	Seal(b, h.Credit)
}

// Draft writes all of the header that is known before its frame's turn to be
// sent. Seal writes the rest.
func (h *Header) Draft(b []byte) {
	b = b[:HeaderSize:HeaderSize]
	le := binary.LittleEndian
	le.PutUint16(b[0:], magic)
	b[2] = Version
	b[3] = byte(h.Kind)
	le.PutUint16(b[4:], uint16(h.Flags))
	le.PutUint16(b[6:], h.Lane)
	le.PutUint32(b[8:], h.Length)
	le.PutUint64(b[16:], h.Epoch)
	le.PutUint32(b[24:], h.Seq)
	le.PutUint32(b[28:], h.Ack)
	le.PutUint64(b[32:], h.Call)
	le.PutUint64(b[40:], h.Method)
	le.PutUint32(b[48:], h.Total)
	le.PutUint32(b[52:], h.Arg)
}

// Seal completes the header that Draft wrote into the first HeaderSize bytes of
// b: the credit, and the sum over all.
func Seal(b []byte, credit uint32) {
	b = b[:HeaderSize:HeaderSize]
	le := binary.LittleEndian
	le.PutUint32(b[12:], credit)
	le.PutUint64(b[56:], xxhash.Sum64(b[:56]))
}

// Parse reads the header from the first HeaderSize bytes of b and checks all
// that can be known without the link: magic, version, sum, kind, flags. The
// caller checks Length against the limit of its link before it believes it.
func (h *Header) Parse(b []byte) error {
	if len(b) < HeaderSize {
		return &ParseError{Field: "frame", Got: uint64(len(b)), Want: "at least 64 bytes"}
	}
	b = b[:HeaderSize:HeaderSize]
	le := binary.LittleEndian
	if m := le.Uint16(b[0:]); m != magic {
		return &ParseError{Field: "magic", Got: uint64(m), Want: "0x5256"}
	}
	if b[2] != Version {
		return &ParseError{Field: "version", Got: uint64(b[2]), Want: "1"}
	}
	if sum := le.Uint64(b[56:]); sum != xxhash.Sum64(b[:56]) {
		return &ParseError{Field: "sum", Got: sum, Want: "XXH64 of the header"}
	}
	// Field by field: a composite literal is made on the stack and copied.
	h.Kind = Kind(b[3])
	h.Flags = Flags(le.Uint16(b[4:]))
	h.Lane = le.Uint16(b[6:])
	h.Length = le.Uint32(b[8:])
	h.Credit = le.Uint32(b[12:])
	h.Epoch = le.Uint64(b[16:])
	h.Seq = le.Uint32(b[24:])
	h.Ack = le.Uint32(b[28:])
	h.Call = le.Uint64(b[32:])
	h.Method = le.Uint64(b[40:])
	h.Total = le.Uint32(b[48:])
	h.Arg = le.Uint32(b[52:])
	return h.check()
}
