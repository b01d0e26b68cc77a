// Package wrid packs what must be known of a work request when it completes
// into its wr_id. On an error completion nothing else can be trusted, and a
// completion may come after its QP is gone and its number is another's.
package wrid

// Kind says which queue a work request was posted to.
type Kind uint8

// Kinds of work requests. 0 is none, so that a wr_id of zeros names nothing.
const (
	Send   Kind = iota + 1
	Recv        // of an endpoint's own queue
	Shared      // of the queue of a poller: generation and endpoint say nothing
)

// Limits of the fields.
const (
	MaxEndpoints = 1 << 16
	Generations  = 1 << 14
)

// ID is a wr_id: kind (2 bits), generation (14), endpoint (16), position (32).
type ID uint64

// Make packs an ID. Generations count modulo Generations.
func Make(k Kind, generation uint16, endpoint uint16, position uint32) ID {
	return ID(k)<<62 | ID(generation%Generations)<<48 | ID(endpoint)<<32 | ID(position)
}

// At returns the ID of another work request of the same queue and life.
func (id ID) At(position uint32) ID { return id&^(1<<32-1) | ID(position) }

// Kind returns the queue.
func (id ID) Kind() Kind { return Kind(id >> 62) }

// Generation returns the life of the endpoint, below Generations.
func (id ID) Generation() uint16 { return uint16(id>>48) % Generations }

// Endpoint returns the index in the poller's table.
func (id ID) Endpoint() uint16 { return uint16(id >> 32) }

// Position returns what tells a work request from all others of its queue that
// may still complete: for a send, how many were posted before it (modulo
// 2^32); for a receive, the slot and how often that was posted before.
func (id ID) Position() uint32 { return uint32(id) }
