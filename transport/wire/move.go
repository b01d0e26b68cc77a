package wire

import "encoding/binary"

// MoveSize is the size of a MOVE in bytes.
const MoveSize = 16

// MoveMsg is what one side tells the other about a move of a lane.
type MoveMsg struct {
	Epoch uint64 // of the fast link that the lane leaves, or goes to
	Next  uint32 // from the fast link: number of the next frame expected from the peer
	Up    bool   // to the fast link; else from it to the control link
}

// Append adds the encoding, MoveSize bytes, to b.
func (m *MoveMsg) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, m.Epoch)
	b = le.AppendUint32(b, m.Next)
	up := byte(0)
	if m.Up {
		up = 1
	}
	return append(b, up, 0, 0, 0)
}

// Parse reads a MOVE.
func (m *MoveMsg) Parse(b []byte) error {
	if len(b) != MoveSize {
		return &ParseError{Field: "MOVE", Got: uint64(len(b)), Want: "16 bytes"}
	}
	le := binary.LittleEndian
	*m = MoveMsg{Epoch: le.Uint64(b), Next: le.Uint32(b[8:]), Up: b[12] == 1}
	switch way := le.Uint32(b[12:]); {
	case way > 1:
		return &ParseError{Field: "MOVE way", Got: uint64(way), Want: "0, from the fast link, or 1, to it"}
	case m.Epoch == 0:
		return &ParseError{Field: "MOVE epoch", Got: 0, Want: "that of a fast link"}
	case m.Up && m.Next != 0:
		return &ParseError{Field: "MOVE next", Got: uint64(m.Next), Want: "0 on the way to a fast link"}
	}
	return nil
}
