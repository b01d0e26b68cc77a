package rpc

// fifo is a queue that grows to what it held at most and keeps that.
type fifo[T any] struct {
	ring        []T  // its length is a power of two
	first, last uint // counts of pops and pushes
}

func (q *fifo[T]) len() int { return int(q.last - q.first) }

func (q *fifo[T]) push(v T) {
	if q.len() == len(q.ring) {
		q.grow()
	}
	q.ring[q.last&uint(len(q.ring)-1)] = v
	q.last++
}

func (q *fifo[T]) pop() T {
	var zero T
	at := &q.ring[q.first&uint(len(q.ring)-1)]
	v := *at
	*at = zero
	q.first++
	return v
}

func (q *fifo[T]) grow() {
	bigger := make([]T, max(16, 2*len(q.ring)))
	for i := range uint(q.len()) {
		at := q.first + i
		bigger[at&uint(len(bigger)-1)] = q.ring[at&uint(len(q.ring)-1)]
	}
	q.ring = bigger
}
