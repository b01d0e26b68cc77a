package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/codec"
	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/pool/pooltest"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// What the delivering goroutine sends waits in the outbox while there is no
// room, and the goroutine goes on.
func TestOutbox(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		r := join(t, echo, Inline(echoMethod.Name))
		drain := r.remote.fill()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				text := strings.Repeat(fmt.Sprint(i%10), 1+100*i) // some beyond MaxPayload
				got, err := r.echo(t.Context(), text)
				require.NoError(t, err)
				require.Equal(t, text, got)
			})
		}
		synctest.Wait()
		require.EqualValues(t, 100, r.server.Stats().InFlight)
		drain()
		wg.Wait()
		synctest.Wait()
		require.Zero(t, r.server.Stats().InFlight)
	})
}

// The outbox holds a bounded number of bytes, however large the replies of
// inline handlers are: a client that takes in none gets errors instead.
func TestOutboxIsBounded(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		const size, calls, fit = 1 << 20, 50, 10
		s := NewServer(nil, Inline(echoMethod.Name))
		defer s.Close()
		require.NoError(t, s.Register(echoDesc(echoMethod), func(context.Context, *[]byte) (*[]byte, error) {
			large := make([]byte, size)
			return &large, nil
		}))
		client, remote := fakePair(4096)
		p := s.join(remote, remote, fakeLimits)
		require.GreaterOrEqual(t, p.share.maxBytes, int64(2*fakeLimits.MaxMessage))
		p.share.maxBytes = fit * size
		remote.start(p)
		conn := fakeConn(client)
		defer conn.Close()
		drain := remote.fill()
		var ok, refused atomic.Int32
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() {
				req, resp := []byte("x"), []byte(nil)
				if err := Call(t.Context(), conn, echoMethod, &req, &resp); err == nil {
					ok.Add(1)
				} else {
					requireError(t, err, ResourceExhausted, Executed)
					refused.Add(1)
				}
			})
		}
		synctest.Wait()
		drain()
		wg.Wait()
		require.LessOrEqual(t, ok.Load(), int32(fit+1), "one more is on its way")
		require.EqualValues(t, calls, ok.Load()+refused.Load())
	})
}

// A client that stops keeps a handler for a bounded time, though its call has
// no deadline.
func TestClientThatStops(t *testing.T) {
	for _, f := range []echoFunc{echo, func(context.Context, *[]byte) (*[]byte, error) { return nil, NotFound }} {
		pooltest.Check(t)
		synctest.Test(t, func(t *testing.T) {
			r := join(t, f)
			r.remote.fill()
			start := time.Now()
			_, err := r.echo(t.Context(), "x")
			requireError(t, err, Unavailable, MaybeExecuted)
			require.ErrorIs(t, err, errNotReading)
			require.Equal(t, patience, time.Since(start).Truncate(time.Second))
			synctest.Wait()
			require.Zero(t, r.server.Stats().InFlight)
		})
	}
}

// slowLane sends one message at a time, at four times the rate that is asked of
// clients.
type slowLane struct {
	*fakeEnd
	turn chan struct{}
}

func (l *slowLane) SendBuf(ctx context.Context, h wire.Header, msg *pool.Buf) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	time.Sleep(time.Duration(msg.Len()) * time.Microsecond / 4)
	<-l.turn
	return l.fakeEnd.SendBuf(ctx, h, msg)
}

// Replies that wait behind others have the time that a client who works needs
// for all of them.
func TestRepliesWaitForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := make([]byte, 1_000_000)
		s := NewServer(nil)
		defer s.Close()
		require.NoError(t, s.Register(echoDesc(echoMethod), func(context.Context, *[]byte) (*[]byte, error) { return &large, nil }))
		client, remote := fakePair(4096)
		remote.start(s.join(remote, &slowLane{remote, make(chan struct{}, 1)}, fakeLimits))
		conn := fakeConn(client)
		defer conn.Close()
		var wg sync.WaitGroup
		for range 400 {
			wg.Go(func() {
				req, resp := []byte("x"), []byte(nil)
				require.NoError(t, Call(t.Context(), conn, echoMethod, &req, &resp))
			})
		}
		wg.Wait()

		remote.fill()
		start := time.Now()
		req, resp := []byte("x"), []byte(nil)
		require.ErrorIs(t, Call(t.Context(), conn, echoMethod, &req, &resp), errNotReading)
		require.Less(t, time.Since(start), patience+3*time.Second, "what was sent still counts")
	})
}

// Case 72: a handler may end its server.
func TestCloseInHandler(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		var r *rig
		r = join(t, func(_ context.Context, req *[]byte) (*[]byte, error) {
			require.NoError(t, r.server.Close())
			return req, nil
		})
		_, err := r.echo(t.Context(), "x")
		requireError(t, err, Unavailable, MaybeExecuted)
	})
}

func TestPeerThatDoesNotRead(t *testing.T) {
	pooltest.Check(t)
	synctest.Test(t, func(t *testing.T) {
		r := join(t, echo)
		r.remote.fill()
		for i := range uint64(2 * maxOutbox) {
			if r.client.Send(t.Context(), wire.Header{Kind: wire.Call, Flags: wire.End, Call: i + 1, Method: 1}, nil) != nil {
				break
			}
		}
		<-r.remote.Done()
		require.ErrorIs(t, r.remote.Err(), errNotReading)
		synctest.Wait()
		require.Zero(t, r.server.Stats().InFlight)
	})
}

func TestBadCallers(t *testing.T) {
	call := wire.Header{Kind: wire.Call, Flags: wire.End, Call: 1, Method: wire.MethodID(echoMethod.Name)}
	for name, frames := range map[string][]wire.Header{
		"reply":   {{Kind: wire.Reply, Flags: wire.End, Call: 1}},
		"id used": {call, call},
	} {
		t.Run(name, func(t *testing.T) {
			pooltest.Check(t)
			r := join(t, func(ctx context.Context, req *[]byte) (*[]byte, error) {
				<-ctx.Done()
				return req, nil
			})
			for _, h := range frames {
				require.NoError(t, r.client.Send(t.Context(), h, []byte("x")))
			}
			<-r.remote.Done()
			require.ErrorContains(t, r.remote.Err(), "peer")
		})
	}
	t.Run("id used by an inline call", func(t *testing.T) {
		pooltest.Check(t)
		inline := &Method{Name: "/test.Echo/Inline", Codec: codec.Raw}
		s := NewServer(nil, Inline(inline.Name))
		defer s.Close()
		require.NoError(t, s.Register(echoDesc(echoMethod, inline), func(ctx context.Context, req *[]byte) (*[]byte, error) {
			<-ctx.Done()
			return req, nil
		}))
		client, remote := fakePair(4096)
		remote.start(s.join(remote, remote, fakeLimits))
		client.start(sinkFunc(func(m transport.Message) { release(m.Payload) }))
		again := call
		again.Method = wire.MethodID(inline.Name)
		for _, h := range []wire.Header{call, again} {
			require.NoError(t, client.Send(t.Context(), h, []byte("x")))
		}
		<-remote.Done()
		require.ErrorContains(t, remote.Err(), "twice")
	})
	t.Run("stream", func(t *testing.T) {
		pooltest.Check(t)
		r := join(t, echo)
		h := call
		h.Flags = 0
		require.NoError(t, r.client.Send(t.Context(), h, []byte("x")))
		require.Eventually(t, func() bool { return len(r.remote.frames()) == 1 }, 10*time.Second, time.Millisecond)
		reply := r.remote.frames()[0]
		require.Equal(t, uint32(Unimplemented), reply.Arg)
		require.NotZero(t, reply.Flags&wire.Unseen)
	})
	t.Run("cancel of nothing", func(t *testing.T) {
		pooltest.Check(t)
		r := join(t, echo)
		require.NoError(t, r.client.Send(t.Context(), wire.Header{Kind: wire.Cancel, Call: 9}, nil))
		_, err := r.echo(t.Context(), "x")
		require.NoError(t, err)
	})
}

func TestUndecodableRequest(t *testing.T) {
	pooltest.Check(t)
	s := NewServer(nil)
	m := &Method{Name: "/test.Echo/Odd", Codec: oddCodec{codec.Raw, func(dst []byte) (int, error) { return len(dst), nil }}}
	require.NoError(t, s.Register(echoDesc(m), echoFunc(echo)))
	client, remote := fakePair(4096)
	remote.start(s.join(remote, remote, fakeLimits))
	conn := fakeConn(client)
	defer s.Close()
	defer conn.Close()
	req, resp := []byte("x"), []byte(nil)
	err := Call(t.Context(), conn, m, &req, &resp)
	requireError(t, err, InvalidArgument, Executed)
}

// oddCodec fails to decode, or to encode in the given way.
type oddCodec struct {
	codec.Codec
	marshal func(dst []byte) (int, error)
}

func (oddCodec) Unmarshal([]byte, any) error { return errors.New("odd") }

func (c oddCodec) MarshalTo(dst []byte, _ any) (int, error) { return c.marshal(dst) }

// What cannot be encoded leaves nothing behind, neither on the way there nor back.
func TestUnencodable(t *testing.T) {
	for name, marshal := range map[string]func([]byte) (int, error){
		"error":   func([]byte) (int, error) { return 0, errors.New("odd") },
		"shorter": func(dst []byte) (int, error) { return len(dst) - 1, nil },
		"panic":   func([]byte) (int, error) { panic("odd") },
	} {
		for _, n := range []int{10, 5000} { // below and above MaxPayload
			for _, inline := range []bool{false, true} {
				t.Run(fmt.Sprint(name, n, inline), func(t *testing.T) {
					pooltest.Check(t)
					there := &Method{Name: "/test.Echo/There", Codec: oddCodec{codec.Raw, marshal}}
					hooked := make(chan error, 1)
					opts := []ServerOption{OnError(func(err error) { hooked <- err })}
					if inline {
						opts = append(opts, Inline(echoMethod.Name))
					}
					r := join(t, echo, opts...)
					req, resp := make([]byte, n), []byte(nil)
					err := Call(t.Context(), r.conn, there, &req, &resp)
					requireError(t, err, Internal, NotExecuted)
					require.Empty(t, r.client.frames())

					r.server.methods[wire.MethodID(echoMethod.Name)].codec = oddBack{there.Codec}
					err = Call(t.Context(), r.conn, echoMethod, &req, &resp)
					require.True(t, requireError(t, err, Internal, Executed).FromPeer())
					require.Equal(t, Internal, CodeOf(<-hooked))
				})
			}
		}
	}
}

// A codec that panics over the size of a message, one that changes meanwhile,
// say, leaves nothing behind either.
func TestUnsizable(t *testing.T) {
	pooltest.Check(t)
	hooked := make(chan error, 1)
	r := join(t, echo, OnError(func(err error) { hooked <- err }))
	req, resp := []byte("x"), []byte(nil)
	err := Call(t.Context(), r.conn, &Method{Name: echoMethod.Name, Codec: unsizable{codec.Raw}}, &req, &resp)
	requireError(t, err, Internal, NotExecuted)
	require.Zero(t, r.conn.Stats().Active)

	r.server.methods[wire.MethodID(echoMethod.Name)].codec = unsizable{codec.Raw}
	err = Call(t.Context(), r.conn, echoMethod, &req, &resp)
	require.True(t, requireError(t, err, Internal, Executed).FromPeer())
	require.Equal(t, Internal, CodeOf(<-hooked))
}

// Nor does one that panics while it decodes a reply.
func TestUndecodableReply(t *testing.T) {
	pooltest.Check(t)
	r := join(t, echo)
	r.session().calls.limit = 1
	req, resp := []byte("x"), []byte(nil)
	for range 3 {
		err := Call(t.Context(), r.conn, &Method{Name: echoMethod.Name, Codec: panics{codec.Raw}}, &req, &resp)
		requireError(t, err, Internal, Executed)
	}
}

type panics struct{ codec.Codec }

func (panics) Unmarshal([]byte, any) error { panic("odd") }

type unsizable struct{ codec.Codec }

func (unsizable) Size(any) (int, error) { panic("odd") }

// oddBack decodes what is right and encodes oddly.
type oddBack struct{ codec.Codec }

func (oddBack) Unmarshal(src []byte, msg any) error { return codec.Raw.Unmarshal(src, msg) }
