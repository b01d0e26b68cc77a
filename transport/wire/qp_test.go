package wire_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/verbena-rpc/verbena/transport/wire"
)

func qp() wire.QP {
	return wire.QP{
		Epoch: epoch,
		GID:   [16]byte{10: 0xff, 11: 0xff, 12: 10, 13: 8, 14: 0, 15: 1},
		QPN:   0x11, PSN: 0xabcdef, Depth: 128, Slot: 8192, FlowLabel: 0xfffff,
		LID: 7, GIDType: 2, MTU: 5, MaxRdAtomic: 16, TrafficClass: 96,
	}
}

func TestQPGolden(t *testing.T) {
	want, q := golden(t, "QP exchange"), qp()
	require.Equal(t, want, q.Append(nil))
	require.Len(t, want, wire.QPSize)
	var got wire.QP
	require.NoError(t, got.Parse(want))
	require.Equal(t, q, got)

	want[50], q.Shared = 1, true
	require.Equal(t, want, q.Append(nil))
	require.NoError(t, got.Parse(want))
	require.Equal(t, q, got)
}

func TestQPRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := wire.QP{
			Epoch:        rapid.Uint64().Draw(t, "epoch"),
			QPN:          rapid.Uint32Range(1, 1<<24-1).Draw(t, "qpn"),
			PSN:          rapid.Uint32Range(0, 1<<24-1).Draw(t, "psn"),
			Depth:        rapid.Uint32Range(wire.MinDepth, wire.MaxDepth).Draw(t, "depth"),
			Slot:         rapid.Uint32Range(wire.MinSlot, wire.MaxSlot).Draw(t, "slot"),
			FlowLabel:    rapid.Uint32Range(0, 1<<20-1).Draw(t, "flow label"),
			LID:          rapid.Uint16().Draw(t, "lid"),
			GIDType:      rapid.Uint8Range(0, 2).Draw(t, "gid type"),
			MTU:          rapid.Uint8Range(1, 5).Draw(t, "mtu"),
			MaxRdAtomic:  rapid.Uint8().Draw(t, "max_rd_atomic"),
			TrafficClass: rapid.Uint8().Draw(t, "traffic class"),
			Shared:       rapid.Bool().Draw(t, "shared"),
		}
		copy(q.GID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gid"))
		b := q.Append([]byte("before"))
		require.Len(t, b, len("before")+wire.QPSize)
		var got wire.QP
		require.NoError(t, got.Parse(b[len("before"):]))
		require.Equal(t, q, got)
	})
}

func TestQPRefusesWhatIsOutOfRange(t *testing.T) {
	for _, tc := range []struct {
		field string
		spoil func(*wire.QP)
	}{
		{"QP number", func(q *wire.QP) { q.QPN = 0 }},
		{"QP number", func(q *wire.QP) { q.QPN = 1 << 24 }},
		{"QP PSN", func(q *wire.QP) { q.PSN = 1 << 24 }},
		{"QP depth", func(q *wire.QP) { q.Depth = wire.MinDepth - 1 }},
		{"QP depth", func(q *wire.QP) { q.Depth = wire.MaxDepth + 1 }},
		{"QP depth", func(q *wire.QP) { q.Depth = 1<<32 - 1 }},
		{"QP slot", func(q *wire.QP) { q.Slot = wire.MinSlot - 1 }},
		{"QP slot", func(q *wire.QP) { q.Slot = wire.MaxSlot + 1 }},
		{"QP flow label", func(q *wire.QP) { q.FlowLabel = 1 << 20 }},
		{"QP GID type", func(q *wire.QP) { q.GIDType = 3 }},
		{"QP MTU", func(q *wire.QP) { q.MTU = 0 }},
		{"QP MTU", func(q *wire.QP) { q.MTU = 6 }},
	} {
		q := qp()
		tc.spoil(&q)
		refused(t, new(wire.QP).Parse(q.Append(nil)), tc.field)
	}
	good := golden(t, "QP exchange")
	for n := range good {
		refused(t, new(wire.QP).Parse(good[:n]), "QP exchange")
	}
	refused(t, new(wire.QP).Parse(append(bytes.Clone(good), 0)), "QP exchange")
	for bit := 1; bit < 8; bit++ {
		bad := bytes.Clone(good)
		bad[50] |= 1 << bit
		refused(t, new(wire.QP).Parse(bad), "QP flags")
	}
	for at := 51; at < wire.QPSize; at++ {
		bad := bytes.Clone(good)
		bad[at] = 1
		refused(t, new(wire.QP).Parse(bad), "QP reserved byte")
	}
}

func FuzzQP(f *testing.F) {
	q := qp()
	f.Add(q.Append(nil))
	q.Shared = true
	f.Add(q.Append(nil))
	f.Add(make([]byte, wire.QPSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		var q wire.QP
		frugal(t, len(b), func() { _ = q.Parse(b) })
		if err := q.Parse(b); err != nil {
			require.ErrorAs(t, err, new(*wire.ParseError))
			return
		}
		require.Equal(t, b, q.Append(nil), "one encoding per message")
	})
}
