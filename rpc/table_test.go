package rpc

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// In any order of takes and gives, no two calls under way share a slot and no
// id comes twice.
func TestTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := table{limit: maxSlots}
		ids := map[uint64]bool{}
		var taken []*pending
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				for range rapid.IntRange(1, 200).Draw(t, "n") {
					p, id := tab.take()
					if ids[id] || slices.Contains(taken, p) || tab.find(id) != p {
						t.Fatalf("slot %d with id %#x is in use or not found", p.index, id)
					}
					ids[id] = true
					taken = append(taken, p)
				}
			},
			"give": func(t *rapid.T) {
				if len(taken) == 0 {
					t.Skip("none taken")
				}
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "i")
				p := taken[i]
				id := p.id.Load()
				require.True(t, p.end(id))
				require.False(t, p.end(id), "ended twice")
				tab.give(p)
				taken = append(taken[:i], taken[i+1:]...)
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(taken), tab.active())
			},
		})
	})
}

func TestTableGrowsToItsLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 200 MB")
	}
	tab := table{limit: maxSlots}
	for i := range maxSlots {
		p := tab.pop()
		if p == nil {
			require.True(t, tab.extend())
			p = tab.pop()
		}
		if p.index != uint32(i) || tab.chunks.at(p.index) != p {
			t.Fatalf("slot %d has index %d", i, p.index)
		}
	}
	p, _ := tab.take()
	require.Nil(t, p)
	for _, index := range []uint32{maxSlots, indexMask} {
		require.Nil(t, tab.chunks.at(index))
	}
	p = tab.chunks.at(maxSlots - 1)
	tab.push(p)
	q, _ := tab.take()
	require.Same(t, p, q)
}

func TestTableRetiresUsedUpSlots(t *testing.T) {
	tab := table{limit: maxSlots}
	p, _ := tab.take()
	p.end(p.id.Load())
	p.uses = maxUses - 1
	tab.give(p)
	q, id := tab.take()
	require.Same(t, p, q)
	require.EqualValues(t, uint64(maxUses)<<indexBits|uint64(p.index), id)
	tab.give(q)
	q, _ = tab.take()
	require.NotSame(t, p, q)
}

func TestTableFromManyGoroutines(t *testing.T) {
	tab := table{limit: maxSlots}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5000 {
				p, id := tab.take()
				q, other := tab.take()
				if p == q || !p.end(id) || !q.end(other) {
					t.Error("a slot was given to two")
				}
				tab.give(p)
				tab.give(q)
			}
		})
	}
	wg.Wait()
	n := 0
	for tab.pop() != nil {
		n++
	}
	require.Equal(t, firstChunk*(1<<tab.grown-1), n, "slots were lost")
}
