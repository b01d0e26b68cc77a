// Package fastpb is what the encoders and decoders in generated stubs are made
// of, see codec.Fast. It is not meant for other code.
//
// For each kind of field there are a function that puts a value, one that takes
// it, which is named as the kind, and one for its size where that varies. Kinds
// are those of the specification (protobuf.dev/programming-guides/encoding).
//
// A message is encoded from its last byte to its first, so that the length of
// a submessage is known when it is put: nothing is sized twice, or moved.
// Each Put writes to the end of b, which is the room that is left, and returns
// what is left then; nil if there was too little, or v is not valid. Nil has no
// room for anything else, so that whoever puts one thing after another need
// only look at the end.
//
// Decoders take a value from the start of b, put it in v, and return what follows
// it in b; nil if that is not valid. They keep no part of b.
//
// All agree with google.golang.org/protobuf on what is valid, and leave it to
// that to say what is wrong.
package fastpb

import "google.golang.org/protobuf/encoding/protowire"

// SupportV1 is referred to by generated code. A runtime that is older than the
// generator lacks the constant, and the code does not compile.
const SupportV1 = true

// Wire types, the lower three bits of a tag; the others are the field's number.
const (
	VARINT = uint64(protowire.VarintType)
	I64    = uint64(protowire.Fixed64Type)
	LEN    = uint64(protowire.BytesType)
	I32    = uint64(protowire.Fixed32Type)
)

// Int32 are the types of fields of 32-bit integers, enums among them.
type Int32 interface{ ~int32 | ~uint32 }

// Int64 are the types of fields of 64-bit integers.
type Int64 interface{ ~int64 | ~uint64 }
