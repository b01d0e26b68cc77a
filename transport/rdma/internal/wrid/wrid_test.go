package wrid

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestFields(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := Kind(rapid.IntRange(1, 2).Draw(t, "kind"))
		generation := rapid.Uint16().Draw(t, "generation")
		endpoint := rapid.Uint16().Draw(t, "endpoint")
		position := rapid.Uint32().Draw(t, "position")
		id := Make(kind, generation, endpoint, position)
		require.Equal(t, kind, id.Kind())
		require.Equal(t, generation%Generations, id.Generation())
		require.Equal(t, endpoint, id.Endpoint())
		require.Equal(t, position, id.Position())
		other := rapid.Uint32().Draw(t, "other")
		require.Equal(t, Make(kind, generation, endpoint, other), id.At(other))
	})
}
