package codec_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"

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

// wire is what a decoder is given: numbers are varints, the rest is as it is.
func wire(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = protowire.AppendVarint(b, uint64(p))
		case string:
			b = append(b, p...)
		case []byte:
			b = append(b, p...)
		}
	}
	return b
}

// decodings are what is easily got wrong; the fuzzer starts with them.
var decodings = map[string]struct {
	src   []byte
	valid bool
}{
	"nothing":                        {nil, true},
	"last of two scalars":            {wire(2<<3, 1, 2<<3, 2), true},
	"last of two is zero":            {wire(2<<3, 1, 2<<3, 0), true},
	"message in two pieces":          {wire(17<<3|2, 3, 1<<3|2, 1, "n", 17<<3|2, 4, 3<<3|2, 2, 1<<3, 9), true},
	"optional message, piecewise":    {wire(17<<3|2, 4, 3<<3|2, 2, 1<<3, 9, 17<<3|2, 5, 3<<3|2, 3, 2<<3|2, 1, "d"), true},
	"packed, declared packed":        {wire(42<<3|2, 3, 1, 2, 3), true},
	"loose, declared packed":         {wire(42<<3, 1, 42<<3, 2), true},
	"packed, declared loose":         {wire(62<<3|2, 3, 1, 2, 3), true},
	"loose, declared loose":          {wire(62<<3, 1, 62<<3, 2), true},
	"packed and loose":               {wire(42<<3, 1, 42<<3|2, 2, 2, 3, 42<<3, 4), true},
	"packed without elements":        {wire(42<<3|2, 0), true},
	"packed, last is cut":            {wire(42<<3|2, 2, 1, "\x80"), false},
	"packed fixed, last is cut":      {wire(49<<3|2, 5, "12345"), false},
	"packed, longer than there is":   {wire(42<<3|2, 1<<40, 1), false},
	"bytes, longer than there is":    {wire(15<<3|2, 1<<40, "d"), false},
	"bytes, length above int":        {wire(15<<3|2, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), false},
	"wrong wire type":                {wire(2<<3|2, 1, "n", 14<<3, 7, 42<<3|5, "1234"), true},
	"unknown field":                  {wire(99<<3|2, 1, "n"), true},
	"unknown field, long tag":        {wire("\x98\x86\x80\x00", 1), true},
	"known field, long tag":          {wire("\x90\x80\x80\x00", 1), true},
	"tag above 64 bits":              {wire("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 1), false},
	"tag above 32 bits":              {wire(1<<35|2<<3, 1), false},
	"value above 64 bits":            {wire(2<<3, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), false},
	"value of eleven bytes":          {wire(2<<3, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), false},
	"value above 32 bits":            {wire(2<<3, 1<<32|5, 3<<3, 1<<32|5, 4<<3, 1<<32|5, 16<<3, 1<<32|5), true},
	"bool above one":                 {wire(1<<3, 1<<40), true},
	"field 0":                        {wire(0, 1), false},
	"greatest field":                 {wire((1<<29-1)<<3, 1), true},
	"field above the greatest":       {wire(1<<32, 1), false},
	"wire type 6":                    {wire(2<<3|6, 1), false},
	"wire type 7":                    {wire(99<<3|7, 1), false},
	"group":                          {wire(99<<3|3, 1<<3, 1, 99<<3|4), true},
	"group in place of a message":    {wire(17<<3|3, 1<<3, 1, 17<<3|4), true},
	"group without end":              {wire(99<<3|3, 1<<3, 1), false},
	"group with another's end":       {wire(99<<3|3, 98<<3|4), false},
	"group without start":            {wire(99<<3 | 4), false},
	"end of a known field":           {wire(2<<3 | 4), false},
	"message ends in a group":        {wire(17<<3|2, 2, 99<<3|3, 99<<3|4), false},
	"groups in groups":               {bytes.Repeat(wire(99<<3|3), 1<<20), false},
	"groups in groups, that end":     {append(bytes.Repeat(wire(99<<3|3), 9000), bytes.Repeat(wire(99<<3|4), 9000)...), true},
	"groups in groups, too many":     {append(bytes.Repeat(wire(99<<3|3), 11000), bytes.Repeat(wire(99<<3|4), 11000)...), false},
	"string that is not UTF-8":       {wire(14<<3|2, 1, "\xff"), false},
	"string of half a rune":          {wire(14<<3|2, 2, "\xe2\x82"), false},
	"surrogate":                      {wire(14<<3|2, 3, "\xed\xa0\x80"), false},
	"optional string, not UTF-8":     {wire(34<<3|2, 1, "\xff"), false},
	"repeated string, not UTF-8":     {wire(54<<3|2, 1, "\xff"), false},
	"nested string, not UTF-8":       {wire(17<<3|2, 3, 1<<3|2, 1, "\xff"), false},
	"bytes, not UTF-8":               {wire(15<<3|2, 1, "\xff"), true},
	"absent and empty":               {wire(35<<3|2, 0, 34<<3|2, 0, 22<<3, 0, 55<<3|2, 0), true},
	"tag only":                       {wire(2 << 3), false},
	"half of a tag":                  {wire("\x80"), false},
	"length only":                    {wire(15<<3|2, 5), false},
	"fixed, cut":                     {wire(9<<3|5, "123"), false},
	"fixed 64, cut":                  {wire(12<<3|1, "1234567"), false},
	"message, cut within":            {wire(17<<3|2, 2, 1<<3|2, 5), false},
	"unknown field, cut":             {wire(99<<3|2, 5, "1234"), false},
	"negative zero":                  {wire(10<<3|5, "\x00\x00\x00\x80", 13<<3|1, "\x00\x00\x00\x00\x00\x00\x00\x80"), true},
	"unknown between known":          {wire(2<<3, 1, 99<<3, 1, 2<<3, 2, 98<<3, 2), true},
	"unknown fields of a submessage": {wire(17<<3|2, 3, 99<<3, 1, 17<<3|2, 3, 98<<3, 1), true},
}

func TestFastDecodings(t *testing.T) {
	for name, d := range decodings {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, d.valid, proto.Unmarshal(d.src, new(testpb.All)) == nil, "that is what protobuf does")
			agreeOnDecoding(t, d.src)
		})
	}
}

func FuzzFast(f *testing.F) {
	for _, d := range decodings {
		if len(d.src) < 1<<10 {
			f.Add(d.src)
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) { agreeOnDecoding(t, src) })
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
