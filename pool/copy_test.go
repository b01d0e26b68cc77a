package pool

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCopy(t *testing.T) {
	for _, n := range []int{0, 1, 4095, copyStep - 1, copyStep, copyStep + 1, 1 << 20, 3*copyStep + 77} {
		src := make([]byte, n)
		for i := range src {
			src[i] = byte(i ^ i>>8 ^ i>>16)
		}
		room := make([]byte, n+2)
		require.Equal(t, n, Copy(room[1:], src))
		require.True(t, bytes.Equal(src, room[1:n+1]))
		require.Zero(t, room[0]|room[n+1], "beside it")
		require.Equal(t, n/2, Copy(room[:n/2], string(src)), "no more than there is room for")
		require.True(t, bytes.Equal(src[:n/2], room[:n/2]))
	}
}
