package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLive(t *testing.T) {
	require.Empty(t, Live())
	TraceLive(true)
	defer TraceLive(false)
	first := Track("PD", "rxe0")
	TraceLive(false)
	second := Track("QP", "QP 0x11")

	objects := Live()
	require.Len(t, objects, 2)
	require.Equal(t, "PD", objects[0].Kind)
	require.Contains(t, objects[0].Stack, "verbs.TestLive")
	require.Equal(t, Object{Kind: "QP", Name: "QP 0x11"}, objects[1])

	first()
	first()
	require.Len(t, Live(), 1, "a second release must not release another")
	second()
	require.Empty(t, Live())
}
