package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/wire"
)

func TestMoveGolden(t *testing.T) {
	want, m := golden(t, "MOVE"), wire.MoveMsg{Epoch: epoch, Next: 0xfffffffe}
	require.Equal(t, want, m.Append(nil))
	var got wire.MoveMsg
	require.NoError(t, got.Parse(want))
	require.Equal(t, m, got)
	m.Up, m.Next = true, 0
	require.NoError(t, got.Parse(m.Append(nil)))
	require.Equal(t, m, got)
}

func TestMoveRefuses(t *testing.T) {
	good := golden(t, "MOVE")
	for n := range len(good) {
		refused(t, new(wire.MoveMsg).Parse(good[:n]), "MOVE")
	}
	refused(t, new(wire.MoveMsg).Parse(append(good, 0)), "MOVE")
	for i := 12; i < len(good); i++ {
		bad := golden(t, "MOVE")
		bad[i] |= 2
		refused(t, new(wire.MoveMsg).Parse(bad), "MOVE way")
	}
	up := golden(t, "MOVE")
	up[12] = 1
	refused(t, new(wire.MoveMsg).Parse(up), "MOVE next")
	refused(t, new(wire.MoveMsg).Parse(append(make([]byte, 8), good[8:]...)), "MOVE epoch")
}
