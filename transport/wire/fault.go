package wire

import "encoding/binary"

// Limits of an error payload in bytes.
const (
	MaxErrorText  = 4096
	maxErrorFrame = 4 + MaxErrorText
)

// AppendFault adds an error payload to b: the text, cut to MaxErrorText bytes,
// and the details as they are.
func AppendFault(b []byte, text string, details []byte) []byte {
	text = cut(text, MaxErrorText)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	b = append(b, text...)
	return append(b, details...)
}

// ParseFault splits an error payload. details aliases b.
func ParseFault(b []byte) (text string, details []byte, err error) {
	if len(b) < 4 {
		return "", nil, &ParseError{Field: "error payload", Got: uint64(len(b)), Want: "at least 4 bytes"}
	}
	n := binary.LittleEndian.Uint32(b)
	b = b[4:]
	if n > MaxErrorText || int(n) > len(b) {
		return "", nil, &ParseError{Field: "error text length", Got: uint64(n), Want: "at most 4096 and the bytes that follow"}
	}
	return validText(b[:n]), b[n:], nil
}
