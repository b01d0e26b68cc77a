package fastpb

import "google.golang.org/protobuf/encoding/protowire"

// SizeVarint is the size of an integer.
func SizeVarint[T Int32 | Int64](v T) int { return protowire.SizeVarint(uint64(v)) }

// SizeSint32 is the size of a zigzag-encoded integer.
func SizeSint32(v int32) int { return SizeSint64(int64(v)) }

// SizeSint64 is the size of a zigzag-encoded integer.
func SizeSint64(v int64) int { return protowire.SizeVarint(protowire.EncodeZigZag(v)) }

// SizeLen is the size of n bytes with their length before them.
func SizeLen(n int) int { return protowire.SizeBytes(n) }

// SizeAll is the size of all elements of a list.
func SizeAll[T any](list []T, size func(T) int) int {
	n := 0
	for _, v := range list {
		n += size(v)
	}
	return n
}
