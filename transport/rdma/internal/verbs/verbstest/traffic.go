package verbstest

import (
	"encoding/binary"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

func testSendSizes(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, patient)
	mtu := a.port.ActiveMTU.Bytes()
	for i, n := range []int{0, 1, 16, 64, mtu - 1, mtu, mtu + 1, 3*mtu + 17, 64 << 10} {
		id := uint64(i)
		sent := a.fill(byte(i), n)
		y.recv(b.recvWR(100+id, 0, 64<<10))
		x.send(a.sendWR(id, n))
		wc := a.waitOK(1)[0]
		require.Equal(t, id, wc.ID)
		require.Equal(t, verbs.WCSend, wc.Opcode)
		require.Equal(t, x.Num(), wc.QPNum)

		wc = b.waitOK(1)[0]
		require.Equal(t, 100+id, wc.ID)
		require.Equal(t, verbs.WCRecv, wc.Opcode)
		require.Equal(t, uint32(n), wc.ByteLen)
		require.Equal(t, y.Num(), wc.QPNum)
		require.Zero(t, wc.Flags&verbs.WCWithImm)
		require.Equal(t, sent, b.landed(0, n))
	}
}

// testInline reuses the memory of each send as soon as it is posted.
func testInline(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, patient)
	for i := range uint64(8) {
		y.recv(b.recvWR(i, int(i)*maxInline, maxInline))
	}
	for i := range uint64(8) {
		a.fill(byte(i), maxInline)
		wr := a.sendWR(i, maxInline)
		wr.Flags |= verbs.SendInline
		x.send(wr)
		clear(a.mem[:maxInline])
	}
	a.waitOK(8)
	b.waitOK(8)
	for i := range 8 {
		require.Equal(t, a.fill(byte(i), maxInline), b.landed(i*maxInline, maxInline))
	}
}

func testInlineTooLong(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, patient)
	y.recv(b.recvWR(1, 0, 64), b.recvWR(2, 0, 64))
	long := a.sendWR(3, x.Caps().MaxInlineData+1)
	long.Flags |= verbs.SendInline
	n, err := x.PostSend([]verbs.SendWR{a.sendWR(1, 8), a.sendWR(2, 8), long, a.sendWR(4, 8)})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.Equal(t, 2, n, "err belongs to wrs[n]")
	require.Equal(t, span(1, 2), ids(a.waitOK(2)))
	require.Equal(t, span(1, 2), ids(b.waitOK(2)))
}

// testBatchesAreOrdered sends full queues in one call each, with more sends
// than receives are posted at a time.
func testBatchesAreOrdered(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, patient)
	next := uint64(0)
	for range 20 {
		var sends []verbs.SendWR
		var recvs []verbs.RecvWR
		for i := range depth {
			binary.LittleEndian.PutUint64(a.mem[8*i:], next+uint64(i))
			wr := a.sendWR(next+uint64(i), 8)
			wr.Addr += uint64(8 * i)
			sends = append(sends, wr)
			recvs = append(recvs, b.recvWR(next+uint64(i), 8*i, 8))
		}
		y.recv(recvs...)
		x.send(sends...)
		require.Equal(t, span(next, depth), ids(a.waitOK(depth)))
		require.Equal(t, span(next, depth), ids(b.waitOK(depth)))
		for i := range depth {
			require.Equal(t, next+uint64(i), binary.LittleEndian.Uint64(b.landed(8*i, 8)))
		}
		next += depth
	}
}

// testUnsignaled: only the send that asks for a completion has one, and it
// stands for those before it.
func testUnsignaled(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, patient)
	for range 10 {
		for i := range uint64(depth) {
			y.recv(b.recvWR(i, 0, 64))
			wr := a.sendWR(i, 8)
			if i < depth-1 {
				wr.Flags = 0
			}
			x.send(wr)
		}
		require.Equal(t, []uint64{depth - 1}, ids(a.waitOK(1)))
		b.waitOK(depth)
	}
}

func testImmediate(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, patient)
	for i, n := range []int{0, 32} {
		for _, op := range []verbs.Opcode{verbs.OpSendImm, verbs.OpWriteImm} {
			y.recv(b.recvWR(7, 1024, 64))
			sent := a.fill(byte(i), n)
			wr := a.oneSided(1, op, n, b)
			wr.Imm = 0x01020304
			x.send(wr)
			a.waitOK(1)
			wc := b.waitOK(1)[0]
			require.NotZero(t, wc.Flags&verbs.WCWithImm)
			require.Equal(t, uint32(0x01020304), wc.Imm())
			require.Equal(t, uint32(n), wc.ByteLen)
			want, at := verbs.WCRecv, 1024
			if op == verbs.OpWriteImm {
				want, at = verbs.WCRecvRDMAImm, 0
			}
			require.Equal(t, want, wc.Opcode)
			require.Equal(t, sent, b.landed(at, n))
		}
	}
}

func testWriteAndRead(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, _ := connected(a, b, verbs.RC, patient)
	mtu := a.port.ActiveMTU.Bytes()
	for i, n := range []int{0, 1, mtu, 2*mtu + 3} {
		sent := append([]byte(nil), a.fill(byte(i+1), n)...)
		write, read := a.oneSided(1, verbs.OpWrite, n, b), a.oneSided(2, verbs.OpRead, n, b)
		x.send(write)
		require.Equal(t, verbs.WCRDMAWrite, a.waitOK(1)[0].Opcode)
		require.Equal(t, sent, append([]byte(nil), b.landed(0, n)...))

		clear(a.mem[:n])
		x.send(read)
		require.Equal(t, verbs.WCRDMARead, a.waitOK(1)[0].Opcode)
		require.Equal(t, sent, append([]byte(nil), a.mem[:n]...))
	}
	require.Empty(t, b.poll(), "the peer is not told")
}

// testAtomics sends them behind a WRITE of their operand, several at once.
func testAtomics(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, _ := connected(a, b, verbs.RC, patient)
	cell := b.landed(0, 8)
	binary.NativeEndian.PutUint64(cell, 100)
	atomic := func(id uint64, op verbs.Opcode, compareAdd, swap uint64) verbs.SendWR {
		wr := a.oneSided(id, op, 8, b)
		wr.Addr, wr.CompareAdd, wr.Swap = a.mr.Addr()+8*id, compareAdd, swap
		return wr
	}
	x.send(atomic(0, verbs.OpFetchAdd, 5, 0), atomic(1, verbs.OpCompareSwap, 105, 7),
		atomic(2, verbs.OpCompareSwap, 105, 9), atomic(3, verbs.OpFetchAdd, 1, 0))
	got := a.waitOK(4)
	require.Equal(t, span(0, 4), ids(got))
	require.Equal(t, verbs.WCFetchAdd, got[0].Opcode)
	require.Equal(t, verbs.WCCompSwap, got[1].Opcode)
	for i, want := range []uint64{100, 105, 7, 7} {
		require.Equal(t, want, binary.NativeEndian.Uint64(a.mem[8*i:]), "found by %d", i)
	}
	require.Equal(t, uint64(8), binary.NativeEndian.Uint64(cell))
}

// testNotReady: a send waits for its receive.
func testNotReady(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.RC, stubborn)
	sent := a.fill(3, 100)
	x.send(a.sendWR(1, 100))
	time.Sleep(10 * time.Millisecond) // the peer says that it is not ready
	require.Empty(t, a.poll())
	y.recv(b.recvWR(2, 0, 100))
	a.waitOK(1)
	b.waitOK(1)
	require.Equal(t, sent, b.landed(0, 100))
}
