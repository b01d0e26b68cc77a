package fastpb

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Tag takes the tag of a field; 0 if it is not valid.
func Tag(b []byte) (tag uint64, rest []byte) { return varint(b) }

// varint has most tags and lengths in its first lines.
func varint(b []byte) (v uint64, rest []byte) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), b[1:]
	}
	if len(b) > 1 && b[1] < 0x80 {
		return uint64(b[0]&0x7F) | uint64(b[1])<<7, b[2:]
	}
	v, n := protowire.ConsumeVarint(b)
	if n < 0 {
		return 0, nil
	}
	return v, b[n:]
}

// Varint takes an integer, and drops the bits that are too many for v.
func Varint[T Int32 | Int64](b []byte, v *T) []byte {
	u, rest := varint(b)
	*v = T(u)
	return rest
}

// Bool takes a bool.
func Bool(b []byte, v *bool) []byte {
	u, rest := varint(b)
	*v = protowire.DecodeBool(u)
	return rest
}

// Sint32 takes a zigzag-encoded integer.
func Sint32(b []byte, v *int32) []byte {
	u, rest := varint(b)
	*v = int32(protowire.DecodeZigZag(u & math.MaxUint32))
	return rest
}

// Sint64 takes a zigzag-encoded integer.
func Sint64(b []byte, v *int64) []byte {
	u, rest := varint(b)
	*v = protowire.DecodeZigZag(u)
	return rest
}

// Fixed32 takes four bytes.
func Fixed32[T Int32](b []byte, v *T) []byte {
	if len(b) < 4 {
		return nil
	}
	*v = T(binary.LittleEndian.Uint32(b))
	return b[4:]
}

// Fixed64 takes eight bytes.
func Fixed64[T Int64](b []byte, v *T) []byte {
	if len(b) < 8 {
		return nil
	}
	*v = T(binary.LittleEndian.Uint64(b))
	return b[8:]
}

// Float takes four bytes.
func Float(b []byte, v *float32) []byte {
	var u uint32
	b = Fixed32(b, &u)
	*v = math.Float32frombits(u)
	return b
}

// Double takes eight bytes.
func Double(b []byte, v *float64) []byte {
	var u uint64
	b = Fixed64(b, &u)
	*v = math.Float64frombits(u)
	return b
}

// Part takes what has its length before it, and leaves it where it is. It is
// nil only if rest is.
func Part(b []byte) (p, rest []byte) {
	n, b := varint(b)
	if n > uint64(len(b)) {
		return nil, nil
	}
	return b[:n], b[n:]
}

// Bytes takes bytes; v is nil if there are none.
func Bytes(b []byte, v *[]byte) []byte {
	p, rest := Part(b)
	if len(p) == 0 {
		*v = nil
		return rest
	}
	own := make([]byte, len(p))
	copy(own, p)
	*v = own
	return rest
}

// PresentBytes takes bytes for a field, or an element, that may be there and
// empty. They are not nil.
func PresentBytes(b []byte, v *[]byte) []byte {
	p, rest := Part(b)
	own := make([]byte, len(p))
	copy(own, p)
	*v = own
	return rest
}

// String takes a string of valid UTF-8.
func String(b []byte, v *string) []byte {
	p, rest := Part(b)
	if !utf8.Valid(p) {
		return nil
	}
	*v = string(p)
	return rest
}

// AnyString takes a string in any encoding.
func AnyString(b []byte, v *string) []byte {
	p, rest := Part(b)
	*v = string(p)
	return rest
}

// Message takes a message and merges it into m.
func Message(b []byte, m interface{ MergeVerbena([]byte) bool }) []byte {
	p, rest := Part(b)
	if !m.MergeVerbena(p) {
		return nil
	}
	return rest
}

// Varints is the number of integers in the value of a packed field.
func Varints(p []byte) int {
	n := 0
	for _, c := range p {
		if c < 0x80 {
			n++
		}
	}
	return n
}

// After returns rest, which follows a part that was taken to its end; nil if
// p, what is left of that part, says that it was not valid.
func After(p, rest []byte) []byte {
	if p == nil {
		return nil
	}
	return rest
}

// Present is where the value of a field is that may be absent. Now it is not.
func Present[T any](field **T) *T {
	if *field == nil {
		*field = new(T)
	}
	return *field
}

// Next is where a new element of a list is.
func Next[T any](list *[]T) *T {
	var zero T
	*list = append(*list, zero)
	return &(*list)[len(*list)-1]
}

// Unknown takes the value of a field with this tag, which the message does not
// have, or not with this wire type, and adds the field to those that it keeps.
func Unknown(b []byte, tag uint64, kept *[]byte) []byte {
	num := tag >> 3
	if num < uint64(protowire.MinValidNumber) || num > uint64(protowire.MaxValidNumber) {
		return nil
	}
	n := protowire.ConsumeFieldValue(protowire.Number(num), protowire.Type(tag&7), b)
	if n < 0 {
		return nil
	}
	*kept = append(protowire.AppendVarint(*kept, tag), b[:n]...)
	return b[n:]
}
