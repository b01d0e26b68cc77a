package codec_test

import (
	"bytes"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/codec/internal/testpb"
)

// fresh are empty messages of all types whose methods are put to the test.
var fresh = []func() codec.Fast{
	func() codec.Fast { return new(testpb.All) },
	func() codec.Fast { return new(testpb.Old) },
	func() codec.Fast { return new(testpb.Payload) },
}

// fill sets some of the fields, unknown ones too, to any values.
func fill(t *rapid.T, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !rapid.Bool().Draw(t, "set "+string(fd.Name())) {
			continue
		}
		switch {
		case fd.IsList():
			list := m.Mutable(fd).List()
			for range rapid.IntRange(0, 3).Draw(t, "elements") {
				if fd.Message() != nil {
					fill(t, list.AppendMutable().Message())
				} else {
					list.Append(scalar(t, fd))
				}
			}
		case fd.Message() != nil:
			fill(t, m.Mutable(fd).Message())
		default:
			m.Set(fd, scalar(t, fd))
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "unknown fields") {
		unknown := protowire.AppendTag(m.GetUnknown(), 99, protowire.BytesType)
		m.SetUnknown(protowire.AppendBytes(unknown, rapid.SliceOf(rapid.Byte()).Draw(t, "value")))
	}
}

func scalar(t *rapid.T, fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, "bool"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.Int32().Draw(t, "enum")))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, "int32"))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, "uint32"))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, "int64"))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(rapid.Uint64().Draw(t, "uint64"))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(math.Float32frombits(rapid.Uint32().Draw(t, "float")))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(math.Float64frombits(rapid.Uint64().Draw(t, "double")))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.OneOf(rapid.Just(""), rapid.String()).Draw(t, "string"))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	}
	panic(fd.Kind())
}

// agreeOnDecoding decodes src, which may be anything, in both ways.
func agreeOnDecoding(t require.TestingT, src []byte) {
	for _, empty := range fresh {
		got, want := empty(), empty()
		wantErr := proto.Unmarshal(src, want)
		require.Equal(t, wantErr == nil, got.UnmarshalVerbena(bytes.Clone(src)), "%T of %x: %v", got, src, wantErr)

		got = empty()
		err := codec.Proto.Unmarshal(src, got)
		if wantErr != nil {
			require.ErrorContains(t, err, wantErr.Error())
			require.ErrorIs(t, err, proto.Error)
			continue
		}
		require.NoError(t, err)
		require.True(t, proto.Equal(want, got), "%T of %x", got, src)
		agreeOnEncoding(t, want, got)
	}
}

// agreeOnEncoding encodes what should be equal messages in both ways.
func agreeOnEncoding(t require.TestingT, plain proto.Message, fast codec.Fast) {
	want, err := proto.Marshal(plain)
	require.NoError(t, err)
	require.Equal(t, len(want), fast.SizeVerbena())
	got := encode(t, codec.Proto, fast)
	require.True(t, bytes.Equal(want, got), "%T:\nprotobuf %x\nverbena  %x", fast, want, got)
	direct := make([]byte, len(want))
	require.Equal(t, []byte{}, fast.MarshalVerbena(direct), "all of the room is used")
	require.True(t, bytes.Equal(want, direct))
}

func TestFastEncodesAsProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, empty := range fresh {
			msg := empty()
			fill(t, msg.ProtoReflect())
			agreeOnEncoding(t, msg, msg)
		}
	})
}

func TestFastDecodesAsProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, empty := range fresh {
			msg := empty()
			fill(t, msg.ProtoReflect())
			src, err := proto.Marshal(msg)
			require.NoError(t, err)
			agreeOnDecoding(t, src)
			if len(src) > 0 { // and of what is damaged in one place, or cut short
				at := rapid.IntRange(0, len(src)-1).Draw(t, "at")
				agreeOnDecoding(t, src[:at])
				src[at] = rapid.Byte().Draw(t, "damage")
				agreeOnDecoding(t, src)
			}
		}
	})
}

// Records are any mix of fields, most of them of All, with any wire types, so
// that fields come twice, packed and not, and in types that they do not have.
func records(t *rapid.T, depth int) []byte {
	fields := (*testpb.All)(nil).ProtoReflect().Descriptor().Fields()
	var b []byte
	for range rapid.IntRange(0, 8).Draw(t, "records") {
		num := fields.Get(rapid.IntRange(0, fields.Len()-1).Draw(t, "field")).Number()
		if rapid.Bool().Draw(t, "any number") {
			num = protowire.Number(rapid.Int32Range(0, 1<<29).Draw(t, "number"))
		}
		typ := protowire.Type(rapid.IntRange(0, 7).Draw(t, "type"))
		b = protowire.AppendTag(b, num, typ)
		switch typ {
		case protowire.VarintType:
			b = protowire.AppendVarint(b, rapid.Uint64().Draw(t, "varint"))
		case protowire.Fixed32Type:
			b = protowire.AppendFixed32(b, rapid.Uint32().Draw(t, "fixed32"))
		case protowire.Fixed64Type:
			b = protowire.AppendFixed64(b, rapid.Uint64().Draw(t, "fixed64"))
		case protowire.BytesType:
			part := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
			if depth > 0 && rapid.Bool().Draw(t, "nested") {
				part = records(t, depth-1)
			}
			b = protowire.AppendBytes(b, part)
		case protowire.StartGroupType:
			b = protowire.AppendTag(b, num, protowire.EndGroupType)
		}
	}
	return b
}

func TestFastDecodesAnyFields(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { agreeOnDecoding(t, records(t, 3)) })
}

func TestFastReplacesOldContents(t *testing.T) {
	msg := &testpb.All{Int32: 1, Bytes: []byte("old"), Int32S: []int32{1}, Part: &testpb.All_Part{Name: "old"}}
	msg.ProtoReflect().SetUnknown(wire(99<<3, 1))
	decode(t, codec.Proto, wire(4<<3, 7), msg)
	require.True(t, proto.Equal(&testpb.All{Uint32: 7}, msg))
	decode(t, codec.Proto, nil, msg)
	require.True(t, proto.Equal(&testpb.All{}, msg))
}

// What was taken of the message before shows what was decoded.
func TestFastReflectionOutlivesDecoding(t *testing.T) {
	for _, empty := range fresh {
		msg := empty()
		view := msg.ProtoReflect()
		decode(t, codec.Proto, wire(99<<3, 1), msg)
		require.Equal(t, wire(99<<3, 1), []byte(view.GetUnknown()))
	}
}

// case 12: nothing decoded refers to the receive slot.
func TestFastKeepsNothingOfTheSource(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, empty := range fresh {
			want, got := empty(), empty()
			fill(t, want.ProtoReflect())
			decode(t, codec.Proto, encode(t, codec.Proto, want), got)
			require.True(t, proto.Equal(want, got))
		}
	})
}

// What may not be encoded is refused with the error of protobuf.
func TestFastRefusesToEncode(t *testing.T) {
	for _, msg := range []codec.Fast{
		&testpb.All{String_: "\xff"},
		&testpb.All{MaybeString: proto.String("a\xe2\x82")},
		&testpb.All{Strings: []string{"fine", "\xff"}},
		&testpb.All{Parts: []*testpb.All_Part{{Name: "\xff"}}, Int32: 1},
	} {
		n, err := codec.Proto.Size(msg)
		require.NoError(t, err)
		buf := make([]byte, n)
		require.Nil(t, msg.MarshalVerbena(buf))
		_, err = codec.Proto.MarshalTo(buf, msg)
		_, want := proto.Marshal(msg)
		require.ErrorContains(t, err, want.Error())
	}
	agreeOnEncoding(t, &testpb.Old{Text: proto.String("\xff")}, &testpb.Old{Text: proto.String("\xff")})
}

// Elements that are nil are empty messages to protobuf.
func TestFastNilMessages(t *testing.T) {
	msg := &testpb.All{Parts: []*testpb.All_Part{nil, {Leaves: []*testpb.All_Leaf{nil}}, nil}}
	agreeOnEncoding(t, msg, msg)

	var none *testpb.All
	for op, call := range map[string]func() error{
		"size":      func() error { _, err := codec.Proto.Size(none); return err },
		"marshal":   func() error { _, err := codec.Proto.MarshalTo(make([]byte, 10), none); return err },
		"unmarshal": func() error { return codec.Proto.Unmarshal(wire(2<<3, 1), none) },
	} {
		require.Equal(t, &codec.Error{Codec: "proto", Op: op, Type: "*testpb.All", Err: codec.ErrNil}, call())
	}
}

// A buffer may be longer than the message, and must not be shorter. Sizes that
// protobuf itself has left in the message do not count.
func TestFastBuffers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, empty := range fresh {
			msg := empty()
			fill(t, msg.ProtoReflect())
			want, err := proto.Marshal(msg)
			require.NoError(t, err)

			extra := rapid.IntRange(0, 10).Draw(t, "extra")
			dst := make([]byte, len(want)+extra)
			n, err := codec.Proto.MarshalTo(dst, msg)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, dst[:n]))

			if len(want) > 0 {
				short := rapid.IntRange(0, len(want)-1).Draw(t, "short")
				ring := make([]byte, len(want))
				_, err = codec.Proto.MarshalTo(ring[:short], msg)
				require.ErrorIs(t, err, codec.ErrShort)
				require.Equal(t, make([]byte, len(want)-short), ring[short:])
			}
		}
	})
}

// What is only read may be encoded by several at once; go test -race watches.
func TestFastEncodersAtOnce(t *testing.T) {
	msg := &testpb.All{Part: &testpb.All_Part{Name: "n"}, Parts: []*testpb.All_Part{nil, {Leaves: []*testpb.All_Leaf{{Id: 1}}}}}
	want, err := proto.Marshal(msg)
	require.NoError(t, err)
	var encoders sync.WaitGroup
	for range 4 {
		encoders.Go(func() {
			n, err := codec.Proto.Size(msg)
			assert.NoError(t, err)
			got := make([]byte, n)
			_, err = codec.Proto.MarshalTo(got, msg)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(want, got))
		})
	}
	encoders.Wait()
}

func TestFastMessageThatChanges(t *testing.T) {
	ring := make([]byte, 200)
	for name, change := range map[string]func(*testpb.All){
		"field grows":   func(m *testpb.All) { m.Bytes = make([]byte, 100) },
		"part grows":    func(m *testpb.All) { m.Part.Name = "much longer than before" },
		"list grows":    func(m *testpb.All) { m.Int32S = make([]int32, 10) },
		"unknown grows": func(m *testpb.All) { m.ProtoReflect().SetUnknown(wire(99<<3, 1)) },
	} {
		msg := &testpb.All{Bytes: []byte("b"), Part: &testpb.All_Part{Name: "p"}, Int32S: []int32{1}}
		require.Equal(t, proto.Size(msg), msg.SizeVerbena())
		n, err := codec.Proto.Size(msg)
		require.NoError(t, err)
		change(msg)
		_, err = codec.Proto.MarshalTo(ring[:n], msg)
		require.ErrorIs(t, err, codec.ErrShort, name)
		require.Equal(t, make([]byte, 200-n), ring[n:])
	}
	msg := &testpb.All{Bytes: []byte("bytes"), Int32: 1}
	n, err := codec.Proto.Size(msg)
	require.NoError(t, err)
	msg.Bytes = nil
	less, err := codec.Proto.MarshalTo(ring[:n], msg)
	require.NoError(t, err)
	require.Equal(t, wire(2<<3, 1), ring[:less])
}

// No length that src claims makes a decoder allocate more than src warrants.
func TestFastAllocations(t *testing.T) {
	claims := wire(15<<3|2, 1<<40, 42<<3|2, 1<<40)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { new(testpb.All).UnmarshalVerbena(claims) }), 1.0)

	var list testpb.All
	require.True(t, list.UnmarshalVerbena(wire(42<<3|2, 3, 1, 2, 3)))
	require.LessOrEqual(t, cap(list.Int32S), 8)

	in, out := &testpb.Payload{Data: make([]byte, 4096)}, new(testpb.Payload)
	buf := make([]byte, in.SizeVerbena())
	require.Zero(t, testing.AllocsPerRun(100, func() {
		codec.Proto.Size(in)
		codec.Proto.MarshalTo(buf, in)
	}))
	require.Equal(t, 1.0, testing.AllocsPerRun(100, func() { codec.Proto.Unmarshal(buf, out) }))
}

// Messages that are not plain have no methods, and are encoded all the same.
func TestFastIsForPlainMessages(t *testing.T) {
	table := &testpb.Table{Rows: map[string]int32{"row": 1}}
	for _, msg := range []proto.Message{
		&testpb.Tree{Branches: []*testpb.Branch{{Tree: &testpb.Tree{}}}},
		&testpb.Branch{Tree: &testpb.Tree{}},
		table,
		&testpb.Choice{Which: &testpb.Choice_Other{Other: "o"}},
		&testpb.Holder{Table: table},
		&testpb.Clash{MergeVerbena: 1},
		&testpb.Needs{N: proto.Int32(1)},
		&testpb.Open{},
		&testpb.Grouped{Item: []*testpb.Grouped_Item{{N: proto.Int32(1)}}},
		&testpb.Foreign{Payload: &testpb.Payload{Data: []byte("d")}},
	} {
		_, fast := msg.(codec.Fast)
		require.False(t, fast, "%T", msg)
		want, err := proto.Marshal(msg)
		require.NoError(t, err)
		src := encode(t, codec.Proto, msg)
		require.True(t, bytes.Equal(want, src))
		got := msg.ProtoReflect().New().Interface()
		decode(t, codec.Proto, src, got)
		require.True(t, proto.Equal(msg, got))
	}
	require.Implements(t, (*codec.Fast)(nil), new(testpb.Holder_Leaf))
}

// A message with methods of its own beside one that protobuf encodes by tables.
func BenchmarkFast(b *testing.B) {
	for name, messages := range map[string]func(int) (in, out any){
		"verbena":  func(n int) (in, out any) { return &testpb.Payload{Data: make([]byte, n)}, new(testpb.Payload) },
		"protobuf": func(n int) (in, out any) { return wrapperspb.Bytes(make([]byte, n)), new(wrapperspb.BytesValue) },
	} {
		b.Run(fmt.Sprintf("codec=%s", name), func(b *testing.B) { benchmark(b, codec.Proto, messages) })
	}
}
