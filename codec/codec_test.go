package codec_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/codec"
)

// encode marshals into the middle of a larger buffer, as into a slot of a
// ring, and fails if a neighbour was touched.
func encode(t require.TestingT, c codec.Codec, msg any) []byte {
	n, err := c.Size(msg)
	require.NoError(t, err)
	ring := bytes.Repeat([]byte{0xEE}, n+128)
	got, err := c.MarshalTo(ring[64:64+n], msg)
	require.NoError(t, err)
	require.Equal(t, n, got, "Size is exact")
	guard := bytes.Repeat([]byte{0xEE}, 64)
	require.Equal(t, guard, ring[:64])
	require.Equal(t, guard, ring[64+n:])
	return ring[64 : 64+n]
}

// decode unmarshals and then overwrites the source, as a receive ring does.
func decode(t require.TestingT, c codec.Codec, src []byte, msg any) {
	require.NoError(t, c.Unmarshal(src, msg))
	for i := range src {
		src[i] = 0xEE
	}
}

func value(t *rapid.T, depth int) *structpb.Value {
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		return structpb.NewNullValue()
	case 1:
		return structpb.NewNumberValue(rapid.Float64().Draw(t, "number"))
	case 2:
		return structpb.NewStringValue(rapid.String().Draw(t, "text"))
	}
	if depth == 0 {
		return structpb.NewBoolValue(true)
	}
	list := &structpb.ListValue{}
	for range rapid.IntRange(0, 3).Draw(t, "elements") {
		list.Values = append(list.Values, value(t, depth-1))
	}
	return structpb.NewListValue(list)
}

func TestProtoRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := value(t, 4)
		src := encode(t, codec.Proto, want)
		plain, err := proto.Marshal(want)
		require.NoError(t, err)
		require.True(t, bytes.Equal(plain, src), "the encoding is protobuf's own")
		got := structpb.NewStringValue("old contents")
		decode(t, codec.Proto, src, got)
		require.True(t, proto.Equal(want, got))
	})
}

// case 12: nothing decoded refers to the receive slot.
func TestNothingOfTheSourceIsKept(t *testing.T) {
	var b wrapperspb.BytesValue
	decode(t, codec.Proto, encode(t, codec.Proto, wrapperspb.Bytes([]byte("payload"))), &b)
	require.Equal(t, "payload", string(b.Value))
	var s wrapperspb.StringValue
	decode(t, codec.Proto, encode(t, codec.Proto, wrapperspb.String("payload")), &s)
	require.Equal(t, "payload", s.Value)
	var raw []byte
	decode(t, codec.Raw, encode(t, codec.Raw, []byte("payload")), &raw)
	require.Equal(t, "payload", string(raw))
}

func TestRawRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		old := rapid.SliceOf(rapid.Byte()).Draw(t, "old contents")
		decode(t, codec.Raw, encode(t, codec.Raw, want), &old)
		require.True(t, bytes.Equal(want, old))
		decode(t, codec.Raw, encode(t, codec.Raw, &want), &old)
		require.True(t, bytes.Equal(want, old))
	})
}

// A buffer that is too short, or a message that grew since Size, is an error
// and writes nothing beyond the buffer.
func TestShortBuffers(t *testing.T) {
	for c, msg := range map[codec.Codec]any{
		codec.Proto: structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStringValue("text")}}),
		codec.Raw:   []byte("some bytes"),
	} {
		n, err := c.Size(msg)
		require.NoError(t, err)
		for short := range n {
			ring := make([]byte, n)
			_, err := c.MarshalTo(ring[:short], msg)
			require.ErrorIs(t, err, codec.ErrShort)
			require.Equal(t, make([]byte, n-short), ring[short:])
		}
	}

	grows := wrapperspb.Bytes([]byte("short"))
	n, err := codec.Proto.Size(grows)
	require.NoError(t, err)
	grows.Value = make([]byte, 100)
	ring := make([]byte, 200)
	_, err = codec.Proto.MarshalTo(ring[:n], grows)
	require.ErrorIs(t, err, codec.ErrShort)
	require.Equal(t, make([]byte, 200-n), ring[n:])

	part := structpb.NewStringValue("short")
	list := structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{part}})
	n, err = codec.Proto.Size(list)
	require.NoError(t, err)
	part.Kind = &structpb.Value_StringValue{StringValue: "much longer than before"}
	_, err = codec.Proto.MarshalTo(ring[:n], list)
	var ce *codec.Error
	require.ErrorAs(t, err, &ce)
	require.Equal(t, make([]byte, 200-n), ring[n:])
}

func TestErrorsAreTyped(t *testing.T) {
	var (
		noMessage *wrapperspb.StringValue
		noBytes   *[]byte
	)
	for _, tc := range []struct {
		codec codec.Codec
		msg   any
		cause error
		typ   string
	}{
		{codec.Proto, nil, codec.ErrType, "<nil>"},
		{codec.Proto, 7, codec.ErrType, "int"},
		{codec.Proto, noMessage, codec.ErrNil, "*wrapperspb.StringValue"},
		{codec.Raw, nil, codec.ErrType, "<nil>"},
		{codec.Raw, "text", codec.ErrType, "string"},
		{codec.Raw, noBytes, codec.ErrNil, "*[]uint8"},
	} {
		_, sizeErr := tc.codec.Size(tc.msg)
		_, marshalErr := tc.codec.MarshalTo(make([]byte, 10), tc.msg)
		for op, err := range map[string]error{
			"size": sizeErr, "marshal": marshalErr, "unmarshal": tc.codec.Unmarshal(nil, tc.msg),
		} {
			require.ErrorIs(t, err, tc.cause)
			var ce *codec.Error
			require.ErrorAs(t, err, &ce)
			require.Equal(t, codec.Error{Codec: tc.codec.Name(), Op: op, Type: tc.typ, Err: tc.cause}, *ce)
		}
	}
	require.ErrorIs(t, codec.Raw.Unmarshal(nil, []byte{}), codec.ErrType, "only a pointer can be decoded into")

	err := codec.Proto.Unmarshal([]byte{0x0A, 0x7F}, &wrapperspb.StringValue{})
	require.ErrorContains(t, err, "codec: proto unmarshal of *wrapperspb.StringValue: ")
	_, err = codec.Proto.Size(wrapperspb.String("\xff"))
	require.NoError(t, err)
	_, err = codec.Proto.MarshalTo(make([]byte, 10), wrapperspb.String("\xff"))
	require.ErrorContains(t, err, "codec: proto marshal of *wrapperspb.StringValue: ")
}

func TestProtoErrorUnwraps(t *testing.T) {
	err := codec.Proto.Unmarshal([]byte{0xFF}, &wrapperspb.StringValue{})
	require.ErrorIs(t, err, proto.Error)
}

func TestAllocations(t *testing.T) {
	for name, tc := range map[string]struct {
		codec   codec.Codec
		in, out any
		want    float64
	}{
		"raw":               {codec.Raw, &[]byte{1, 2, 3}, &[]byte{0, 0, 0}, 0},
		"proto, fixed size": {codec.Proto, timestamppb.Now(), &timestamppb.Timestamp{}, 0},
		"proto, bytes":      {codec.Proto, wrapperspb.Bytes(make([]byte, 4096)), &wrapperspb.BytesValue{}, 1},
	} {
		n, err := tc.codec.Size(tc.in)
		require.NoError(t, err)
		buf := make([]byte, n)
		encoding := testing.AllocsPerRun(100, func() {
			tc.codec.Size(tc.in)
			tc.codec.MarshalTo(buf, tc.in)
		})
		decoding := testing.AllocsPerRun(100, func() { tc.codec.Unmarshal(buf, tc.out) })
		require.Zero(t, encoding, name)
		require.Equal(t, tc.want, decoding, name)
	}
}

func FuzzProtoUnmarshal(f *testing.F) {
	seed, err := proto.Marshal(structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{
		structpb.NewStringValue("text"), structpb.NewNumberValue(1), structpb.NewBoolValue(true),
	}}))
	require.NoError(f, err)
	f.Add(seed)
	f.Add([]byte{})
	f.Add([]byte{0x1A, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F}) // a string of 4 GiB
	f.Fuzz(func(t *testing.T, src []byte) {
		kept := bytes.Clone(src)
		var msg structpb.Value
		if err := codec.Proto.Unmarshal(src, &msg); err != nil {
			var ce *codec.Error
			require.ErrorAs(t, err, &ce)
			return
		}
		require.Equal(t, kept, src, "the source is only read")
		var again structpb.Value
		decode(t, codec.Proto, encode(t, codec.Proto, &msg), &again)
		require.True(t, proto.Equal(&msg, &again))
	})
}

func FuzzRawUnmarshal(f *testing.F) {
	f.Add([]byte(nil), []byte("old"))
	f.Add([]byte("longer"), []byte("old"))
	f.Fuzz(func(t *testing.T, src, old []byte) {
		kept := bytes.Clone(src)
		require.NoError(t, codec.Raw.Unmarshal(src, &old))
		require.True(t, bytes.Equal(kept, old))
	})
}

func BenchmarkProto(b *testing.B) {
	benchmark(b, codec.Proto, func(n int) (in, out any) {
		return wrapperspb.Bytes(make([]byte, n)), &wrapperspb.BytesValue{}
	})
}

func BenchmarkRaw(b *testing.B) {
	benchmark(b, codec.Raw, func(n int) (in, out any) {
		payload := make([]byte, n)
		return &payload, new([]byte)
	})
}

func benchmark(b *testing.B, c codec.Codec, messages func(int) (in, out any)) {
	for _, size := range []struct {
		name string
		n    int
	}{{"64B", 64}, {"4KiB", 4 << 10}, {"1MiB", 1 << 20}} {
		in, out := messages(size.n)
		n, err := c.Size(in)
		if err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, n)
		if _, err := c.MarshalTo(buf, in); err != nil {
			b.Fatal(err)
		}
		b.Run("marshal/"+size.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(n))
			for b.Loop() {
				n, _ := c.Size(in)
				c.MarshalTo(buf[:n], in)
			}
		})
		b.Run("unmarshal/"+size.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(n))
			for b.Loop() {
				if err := c.Unmarshal(buf, out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
