package tcp

import (
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/internal/quota"
)

// Room for frames between Reserve and the socket, per link, each class its
// own, so that none waits for another. What is queued here is what a small
// message may have to wait behind, so Bulk gets little: enough to keep a writer
// busy while the next chunks are copied.
const (
	smallFrames   = 256
	smallBytes    = 4 << 20
	bulkFrames    = 128
	bulkBytes     = 512 << 10
	controlFrames = 32 // of their own; their payloads are bounded by their kinds
)

// amount counts frames and their payload bytes.
type amount struct{ frames, bytes int }

// room is that of each class. Any goroutine may call its methods.
type room [3]quota.Quota

func (r *room) init() {
	r[transport.Control] = quota.Quota{MaxCount: controlFrames, MaxBytes: controlFrames * MaxPayload}
	r[transport.Small] = quota.Quota{MaxCount: smallFrames, MaxBytes: smallBytes}
	r[transport.Bulk] = quota.Quota{MaxCount: bulkFrames, MaxBytes: bulkBytes}
}

// give returns room, by class.
func (r *room) give(back *[3]amount) {
	for class, a := range back {
		if a.frames > 0 {
			r[class].Give(a.frames, a.bytes)
		}
	}
}

// close makes all who wait, and all who come, fail with err. Only the first
// call counts.
func (r *room) close(err error) {
	for class := range r {
		r[class].End(err)
	}
}
