package ring

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The stack against a slice, the queue against a slice: one slot is at most in
// one place.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "slots")
		s, q := NewStack(n), NewQueue(n)
		var stack, queue, held []uint32
		for i := range n {
			held = append(held, uint32(i))
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				s.Push(held[0])
				stack, held = append(stack, held[0]), held[1:]
			},
			"pop": func(t *rapid.T) {
				slot, ok := s.Pop()
				require.Equal(t, len(stack) > 0, ok)
				if ok {
					require.Equal(t, stack[len(stack)-1], slot)
					stack, held = stack[:len(stack)-1], append(held, slot)
				}
			},
			"publish": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip()
				}
				q.Push(held[0])
				queue, held = append(queue, held[0]), held[1:]
			},
			"take": func(t *rapid.T) {
				slot, ok := q.Pop()
				require.Equal(t, len(queue) > 0, ok)
				if ok {
					require.Equal(t, queue[0], slot)
					queue, held = queue[1:], append(held, slot)
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(stack) == 0, s.Empty())
				require.Equal(t, len(queue) > 0, q.Ready())
			},
		})
	})
}

// Many goroutines take slots, publish them, and one puts them back: a slot is
// never in two hands.
func TestConcurrent(t *testing.T) {
	const slots, workers, rounds = 8, 8, 2000
	s, q := NewStack(slots), NewQueue(slots)
	var owned [slots]atomic.Int32
	for i := range slots {
		s.Push(uint32(i))
	}
	var wg sync.WaitGroup
	var published, consumed atomic.Int64
	for range workers {
		wg.Go(func() {
			for range rounds {
				slot, ok := s.Pop()
				if !ok {
					continue
				}
				if owned[slot].Add(1) != 1 {
					t.Errorf("slot %d is in two hands", slot)
				}
				owned[slot].Add(-1)
				published.Add(1)
				q.Push(slot)
			}
		})
	}
	stop := make(chan struct{})
	var consumer sync.WaitGroup
	consumer.Go(func() {
		for {
			if slot, ok := q.Pop(); ok {
				if owned[slot].Add(1) != 1 {
					t.Errorf("slot %d is in two hands", slot)
				}
				owned[slot].Add(-1)
				consumed.Add(1)
				s.Push(slot)
				continue
			}
			select {
			case <-stop:
				if !q.Ready() {
					return
				}
			default:
			}
		}
	})
	wg.Wait()
	close(stop)
	consumer.Wait()
	require.Equal(t, published.Load(), consumed.Load())
	left := 0
	for _, ok := s.Pop(); ok; _, ok = s.Pop() {
		left++
	}
	require.Equal(t, slots, left)
}
