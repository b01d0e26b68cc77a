package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCodes(t *testing.T) {
	seen := map[string]bool{}
	for c := Code(1); c <= 16; c++ {
		require.True(t, c.valid())
		require.NotEmpty(t, c.String())
		require.False(t, seen[c.String()])
		seen[c.String()] = true
		err := error(fmt.Errorf("wrapped: %w", Errorf(c, "text")))
		require.ErrorIs(t, err, c)
		require.NotErrorIs(t, err, c%16+1)
		require.Equal(t, c, CodeOf(err))
		require.Equal(t, c, CodeOf(fmt.Errorf("wrapped: %w", c)))
		require.Equal(t, c == DeadlineExceeded, errors.Is(err, context.DeadlineExceeded))
		require.Equal(t, c == Canceled, errors.Is(err, context.Canceled))
	}
	for _, c := range []Code{0, 17, 1 << 31} {
		require.False(t, c.valid())
		require.Contains(t, c.String(), "code ")
	}
	require.Zero(t, CodeOf(nil))
	require.Equal(t, Unknown, CodeOf(io.EOF))
	require.Equal(t, DeadlineExceeded, CodeOf(fmt.Errorf("x: %w", context.DeadlineExceeded)))
}

func TestErrorText(t *testing.T) {
	require.Equal(t, "rpc: not found: block 7 (maybe executed)", Errorf(NotFound, "block %d", 7).Error())
	e := &Error{Code: Aborted, Message: "m", Delivery: Executed, fromPeer: true}
	require.Equal(t, "rpc: peer: aborted: m (executed)", e.Error())
	e = failed(Unavailable, NotExecuted, &Method{Name: "/a.B/C"}, io.EOF)
	require.Equal(t, "rpc: unavailable: /a.B/C: EOF (not executed)", e.Error())
	require.ErrorIs(t, e, io.EOF)
	require.ErrorIs(t, Errorf(Internal, "read: %w", io.EOF), io.EOF)
}
