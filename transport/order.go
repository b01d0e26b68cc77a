package transport

import "github.com/verbena-rpc/verbena/transport/internal/quota"

// minOpen is the least that a lane takes in of messages in chunks together, in
// bytes: many of common block sizes, so that none waits for long.
const minOpen = 128 << 20

// openLimit bounds the totals of the messages in chunks that are open at once
// in one direction: begun, and neither complete nor taken back. Both sides
// know it, the sender keeps to it, and the receiver need not hold more.
func openLimit(maxMessage int) int64 { return max(2*int64(maxMessage), minOpen) }

// blockSize is the largest message of common block sizes, 1 MiB and what codecs
// add to it, in bytes. blocksAtOnce of them, or as many bytes of smaller ones,
// are sent at once, and beside them largerAtOnce messages that are larger, so
// that neither wait for long behind the others. More at once would all take
// longer, and each hold memory on both sides until it is complete.
const (
	blockSize    = 1<<20 + 1<<16
	blocksAtOnce = 2
	largerAtOnce = 2
)

// order is the order of messages in chunks: blocks and those that are larger, of
// which few are sent at once, and all that are open at the peer.
type order struct{ blocks, larger, open quota.Quota }

// The larger ones leave room among those that are open for the blocks that are sent.
func (o *order) init(calls int, maxMessage int) {
	o.blocks.MaxCount, o.blocks.MaxBytes = calls, blocksAtOnce*blockSize
	o.larger.MaxCount, o.larger.MaxBytes = largerAtOnce, openLimit(maxMessage)-blocksAtOnce*blockSize
	o.open.MaxCount, o.open.MaxBytes = calls, openLimit(maxMessage)
}

// of is where a message waits until it may be sent.
func (o *order) of(bytes int) *quota.Quota {
	if bytes <= blockSize {
		return &o.blocks
	}
	return &o.larger
}

func (o *order) end(err error) {
	o.blocks.End(err)
	o.larger.End(err)
	o.open.End(err)
}
