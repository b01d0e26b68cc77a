package fastpb

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/verbena-rpc/verbena/pool"
)

// PutVarint puts an integer.
func PutVarint[T Int32 | Int64](b []byte, v T) []byte { return putVarint(b, uint64(v)) }

// PutLen puts the length of n bytes that were put before.
func PutLen(b []byte, n int) []byte { return putVarint(b, uint64(n)) }

// PutTag puts the tag of a field, whose value was put before.
func PutTag(b []byte, tag uint64) []byte { return putVarint(b, tag) }

func putVarint(b []byte, v uint64) []byte {
	if v < 0x80 && len(b) > 0 {
		b[len(b)-1] = byte(v)
		return b[:len(b)-1]
	}
	at := len(b) - protowire.SizeVarint(v)
	if at < 0 {
		return nil
	}
	binary.PutUvarint(b[at:], v)
	return b[:at]
}

// PutBool puts a bool.
func PutBool(b []byte, v bool) []byte { return putVarint(b, protowire.EncodeBool(v)) }

// PutSint32 puts a zigzag-encoded integer.
func PutSint32(b []byte, v int32) []byte { return PutSint64(b, int64(v)) }

// PutSint64 puts a zigzag-encoded integer.
func PutSint64(b []byte, v int64) []byte { return putVarint(b, protowire.EncodeZigZag(v)) }

// PutFixed32 puts four bytes.
func PutFixed32[T Int32](b []byte, v T) []byte {
	at := len(b) - 4
	if at < 0 {
		return nil
	}
	binary.LittleEndian.PutUint32(b[at:], uint32(v))
	return b[:at]
}

// PutFixed64 puts eight bytes.
func PutFixed64[T Int64](b []byte, v T) []byte {
	at := len(b) - 8
	if at < 0 {
		return nil
	}
	binary.LittleEndian.PutUint64(b[at:], uint64(v))
	return b[:at]
}

// PutFloat puts four bytes.
func PutFloat(b []byte, v float32) []byte { return PutFixed32(b, math.Float32bits(v)) }

// PutDouble puts eight bytes.
func PutDouble(b []byte, v float64) []byte { return PutFixed64(b, math.Float64bits(v)) }

// PutBytes puts bytes with their length before them.
func PutBytes(b, v []byte) []byte { return PutLen(put(b, v), len(v)) }

// PutString puts a string of valid UTF-8 with its length before it.
func PutString(b []byte, v string) []byte {
	if !utf8.ValidString(v) {
		return nil
	}
	return PutAnyString(b, v)
}

// PutAnyString puts a string in any encoding with its length before it.
func PutAnyString(b []byte, v string) []byte { return PutLen(put(b, v), len(v)) }

// PutMessage puts a message with its length before it; a nil one is empty.
func PutMessage(b []byte, m interface{ MarshalVerbena([]byte) []byte }) []byte {
	end := len(b)
	b = m.MarshalVerbena(b)
	return PutLen(b, end-len(b))
}

// PutUnknown puts fields that Unknown has kept.
func PutUnknown(b, kept []byte) []byte { return put(b, kept) }

func put[T []byte | string](b []byte, v T) []byte {
	at := len(b) - len(v)
	if at < 0 {
		return nil
	}
	pool.Copy(b[at:], v)
	return b[:at]
}
