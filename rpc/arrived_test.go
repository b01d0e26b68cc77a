package rpc

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever ids a caller chooses, those under way are found, and no other.
func TestArrivedAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := arrived{limit: rapid.SampledFrom([]int{1, 3, 100, 4096, maxSlots}).Draw(t, "limit")}
		id := rapid.Custom(func(t *rapid.T) uint64 {
			index := rapid.SampledFrom([]uint64{0, 1, 2, 63, 64, 99, 100, 4095, 4096, maxSlots, indexMask}).Draw(t, "index")
			return rapid.Uint64Range(0, 3).Draw(t, "uses")<<indexBits | index
		})
		model := map[uint64]*callContext{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				c := &callContext{id: id.Draw(t, "id")}
				if a.add(c) != (model[c.id] == nil) {
					t.Fatalf("id %#x was taken in twice, or refused", c.id)
				}
				if model[c.id] == nil {
					model[c.id] = c
				}
			},
			"remove": func(t *rapid.T) {
				if c := model[id.Draw(t, "id")]; c != nil {
					a.remove(c)
					delete(model, c.id)
				}
			},
			"find": func(t *rapid.T) {
				id := id.Draw(t, "id")
				if a.find(id) != model[id] {
					t.Fatalf("id %#x leads elsewhere", id)
				}
			},
			"": func(t *rapid.T) {
				n := 0
				a.each(func(c *callContext) {
					n++
					if model[c.id] != c {
						t.Fatalf("id %#x is not under way", c.id)
					}
				})
				require.Equal(t, len(model), n)
			},
		})
	})
}
