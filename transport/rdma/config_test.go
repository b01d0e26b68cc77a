package rdma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// Blocks of common sizes go in one frame, with 64 bytes of a codec's.
func TestDefaultSlotsHoldBlocks(t *testing.T) {
	const around = wire.HeaderSize + wire.SumSize + 64
	require.GreaterOrEqual(t, DefaultSlotSize, 8<<10+around)
	require.GreaterOrEqual(t, DefaultSlotSizeRXE, 4<<10+around)
}
