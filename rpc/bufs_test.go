package rpc_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/rpc"
)

type bufFunc func(context.Context, *pool.Buf) (*pool.Buf, error)

func echoBuf(_ context.Context, req *pool.Buf) (*pool.Buf, error) { return req, nil }

// serveBufs serves methods of both codecs by f.
func serveBufs(t *testing.T, f bufFunc, opts ...rpc.ServerOption) *rpc.Conn {
	t.Helper()
	handler := rpc.Unary(func(f bufFunc, ctx context.Context, req *pool.Buf) (*pool.Buf, error) { return f(ctx, req) })
	s := serve(t, tcpNetwork(), "127.0.0.1:0", &rpc.ServiceDesc{Name: "test.Bufs", Methods: []rpc.MethodDesc{
		{Method: rawBufs, Handler: handler}, {Method: protoBufs, Handler: handler},
	}}, f, opts...)
	return dial(t, s.Addr().String())
}

var (
	rawBufs   = &rpc.Method{Name: "/test.Bufs/Raw", Codec: codec.Raw}
	protoBufs = &rpc.Method{Name: "/test.Bufs/Proto"}
)

func random(n int) *pool.Buf {
	b := pool.Get(n)
	for i := range b.Bytes() {
		b.Bytes()[i] = byte(rand.Uint32())
	}
	return b
}

// Buffers of all sizes come back as they were, many times, from a request that is sent
// again and again, and nothing of them is lost or used after it was released.
func TestBufs(t *testing.T) {
	for _, inline := range []bool{false, true} {
		for _, size := range []int{0, 1, 100, 4095, 4096, 60 << 10, 100 << 10, 3 << 20} {
			t.Run(fmt.Sprint(size, inline), func(t *testing.T) {
				pooltest.Check(t)
				var opts []rpc.ServerOption
				if inline {
					opts = append(opts, rpc.Inline(rawBufs.Name))
				}
				conn := serveBufs(t, echoBuf, opts...)
				req := random(size)
				defer req.Release()
				for range 3 {
					var resp *pool.Buf
					require.NoError(t, rpc.Call(t.Context(), conn, rawBufs, req, &resp))
					require.Equal(t, req.Bytes(), resp.Bytes())
					resp.Release()
				}
			})
		}
	}
}

// What a caller sends belongs to others too until it was taken in: to release it at
// once, as a caller does who has given up, changes nothing of what arrives.
func TestBufReleasedAtOnce(t *testing.T) {
	pooltest.Check(t)
	var whole, wrong atomic.Int32
	conn := serveBufs(t, func(_ context.Context, req *pool.Buf) (*pool.Buf, error) {
		if sum, rest := binary.LittleEndian.Uint64(req.Bytes()), req.Bytes()[8:]; sum == xxhash.Sum64(rest) {
			whole.Add(1)
		} else {
			wrong.Add(1)
		}
		return pool.Get(0), nil
	})
	for i := range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i)*20*time.Microsecond)
		if i%10 == 9 {
			ctx = t.Context()
		}
		req := random(1 << 20)
		binary.LittleEndian.PutUint64(req.Bytes(), xxhash.Sum64(req.Bytes()[8:]))
		var resp *pool.Buf
		err := rpc.Call(ctx, conn, rawBufs, req, &resp)
		req.Release()
		if cancel(); err == nil {
			resp.Release()
		}
	}
	require.Zero(t, wrong.Load())
	require.GreaterOrEqual(t, whole.Load(), int32(5))
}

// A buffer stands for a message of any codec: the other side need not know.
func TestBufIsAnEncoding(t *testing.T) {
	pooltest.Check(t)
	conn := serveBufs(t, echoBuf)
	text := wrapperspb.String("text")
	var got wrapperspb.StringValue
	require.NoError(t, rpc.Call(t.Context(), conn, protoBufs, text, &got))
	require.Equal(t, "text", got.Value)

	size, err := codec.Proto.Size(text)
	require.NoError(t, err)
	req := pool.Get(size)
	defer req.Release()
	_, err = codec.Proto.MarshalTo(req.Bytes(), text)
	require.NoError(t, err)
	got.Reset()
	require.NoError(t, rpc.Call(t.Context(), conn, protoBufs, req, &got))
	require.Equal(t, "text", got.Value)
}

type sizer struct{}

func (sizer) Make(_ context.Context, size *wrapperspb.UInt32Value) (*pool.Buf, error) {
	return pool.Get(int(size.Value)), nil
}

func (sizer) Size(_ context.Context, block *pool.Buf) (*wrapperspb.UInt32Value, error) {
	return wrapperspb.UInt32(uint32(block.Len())), nil
}

// One side of a method may have a buffer and the other a message.
func TestBufOnOneSide(t *testing.T) {
	pooltest.Check(t)
	made := &rpc.Method{Name: "/test.Sizer/Make"}
	sized := &rpc.Method{Name: "/test.Sizer/Size"}
	s := serve(t, tcpNetwork(), "127.0.0.1:0", &rpc.ServiceDesc{Name: "test.Sizer", Methods: []rpc.MethodDesc{
		{Method: made, Handler: rpc.Unary(sizer.Make)}, {Method: sized, Handler: rpc.Unary(sizer.Size)},
	}}, sizer{})
	conn := dial(t, s.Addr().String())
	for range 3 {
		var block *pool.Buf
		require.NoError(t, rpc.Call(t.Context(), conn, made, wrapperspb.UInt32(100_000), &block))
		require.Equal(t, 100_000, block.Len())
		var size wrapperspb.UInt32Value
		require.NoError(t, rpc.Call(t.Context(), conn, sized, block, &size))
		require.EqualValues(t, 100_000, size.Value)
		block.Release()
	}
}

func TestBufFailures(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		serve    bufFunc
		req      any
		resp     any
		code     rpc.Code
		delivery rpc.Delivery
	}{
		"nothing":      {func(context.Context, *pool.Buf) (*pool.Buf, error) { return nil, nil }, []byte{1}, new(*pool.Buf), rpc.Internal, rpc.Executed},
		"both":         {func(context.Context, *pool.Buf) (*pool.Buf, error) { return pool.Get(10), broken }, []byte{1}, new(*pool.Buf), rpc.Unknown, rpc.Executed},
		"panic":        {func(context.Context, *pool.Buf) (*pool.Buf, error) { panic(broken) }, []byte{1}, new(*pool.Buf), rpc.Internal, rpc.Executed},
		"too large":    {func(context.Context, *pool.Buf) (*pool.Buf, error) { return pool.Get(65 << 20), nil }, []byte{1}, new(*pool.Buf), rpc.ResourceExhausted, rpc.Executed},
		"nil request":  {echoBuf, (*pool.Buf)(nil), new(*pool.Buf), rpc.Internal, rpc.NotExecuted},
		"nil response": {echoBuf, []byte{1}, (**pool.Buf)(nil), rpc.Internal, rpc.Executed},
	} {
		t.Run(name, func(t *testing.T) {
			pooltest.Check(t)
			conn := serveBufs(t, c.serve)
			err := rpc.Call(t.Context(), conn, rawBufs, c.req, c.resp)
			var e *rpc.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.code, e.Code, err)
			require.Equal(t, c.delivery, e.Delivery, err)
		})
	}

	t.Run("request too large", func(t *testing.T) {
		pooltest.Check(t)
		conn := serveBufs(t, echoBuf)
		req := pool.Get(65 << 20)
		defer req.Release()
		var resp *pool.Buf
		require.Equal(t, rpc.ResourceExhausted, rpc.CodeOf(rpc.Call(t.Context(), conn, rawBufs, req, &resp)))
		require.Nil(t, resp)
	})
}
