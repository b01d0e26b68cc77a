package verbstest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// testUnreliableConnection: what has no receive is lost, most likely, and the
// sender does not know; what comes after the receives arrives.
func testUnreliableConnection(t *testing.T, rig Rig) {
	a, b := openBoth(t, rig)
	x, y := connected(a, b, verbs.UC, path{})
	mtu := a.port.ActiveMTU.Bytes()
	for i, n := range []int{0, 8, 2*mtu + 1} {
		send, write := a.oneSided(1, verbs.OpSendImm, n, b), a.oneSided(2, verbs.OpWriteImm, n, b)
		lost := []verbs.SendWR{send}
		if n <= mtu || rig.Quirks.UCWriteImmSticks == "" {
			lost = append(lost, write)
		}
		x.send(lost...)
		a.waitOK(len(lost))

		const off = 64 << 10
		y.recv(b.recvWR(1, off, n), b.recvWR(1, off, n), b.recvWR(1, off, n), b.recvWR(1, off, n))
		sent := a.fill(byte(20+i), n)
		send.Imm, write.Imm = 8, 9
		x.send(send, write)
		a.waitOK(2)
		wc := b.marked(8)
		require.Equal(t, verbs.WCRecv, wc.Opcode)
		require.Equal(t, uint32(n), wc.ByteLen)
		require.Equal(t, sent, b.landed(off, n))
		wc = b.marked(9)
		require.Equal(t, verbs.WCRecvRDMAImm, wc.Opcode)
		require.Equal(t, uint32(n), wc.ByteLen)
		require.Equal(t, sent, b.landed(0, n))

		x.move(verbs.Err)
		y.move(verbs.Err)
		x.move(verbs.Reset)
		y.move(verbs.Reset)
		b.poll()
		connect(x, y, path{})
	}
	// UC has no READ: refused when it is posted, or when it is its turn.
	if n, err := x.PostSend([]verbs.SendWR{a.oneSided(6, verbs.OpRead, 8, b)}); err == nil {
		require.Equal(t, verbs.WCLocQPOpErr, a.wait(1)[0].Status)
	} else {
		require.Zero(t, n)
	}
}

// marked waits for the completion with an immediate value; others may come
// before it.
func (s *side) marked(imm uint32) verbs.WC {
	s.t.Helper()
	wc := make([]verbs.WC, 1)
	s.until(func() bool {
		n, err := s.cq.Poll(wc)
		require.NoError(s.t, err)
		if n == 0 {
			return false
		}
		require.Equal(s.t, verbs.WCSuccess, wc[0].Status)
		return wc[0].Imm() == imm
	}, "message")
	return wc[0]
}

// grh is the room for the network header before a datagram.
const grh = 40

// datagramWR sends n bytes to a UD QP.
func datagramWR(a *side, ah verbs.AH, id uint64, n int, to *qp) verbs.SendWR {
	wr := a.sendWR(id, n)
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah.Handle(), to.Num(), qkey
	return wr
}

func datagramPair(t *testing.T, rig Rig) (a, b *side, x, y *qp, ah verbs.AH) {
	t.Helper()
	a, b = openBoth(t, rig)
	x, y = connected(a, b, verbs.UD, path{})
	ah = hold(t, verbs.AH.Destroy)(a.pd.CreateAH(a.to(b)))
	return a, b, x, y, ah
}

func testDatagram(t *testing.T, rig Rig) {
	a, b, x, y, ah := datagramPair(t, rig)
	for i, n := range []int{0, 1, 100, a.port.ActiveMTU.Bytes()} {
		y.recv(b.recvWR(uint64(i), 0, grh+n))
		sent := a.fill(byte(i), n)
		wr := datagramWR(a, ah, 7, n, y)
		wr.Opcode, wr.Imm = verbs.OpSendImm, 0xabcd
		x.send(wr)
		a.waitOK(1)
		wc := b.waitOK(1)[0]
		require.Equal(t, uint64(i), wc.ID)
		require.Equal(t, uint32(grh+n), wc.ByteLen)
		require.Equal(t, verbs.WCWithGRH|verbs.WCWithImm, wc.Flags)
		require.Equal(t, uint32(0xabcd), wc.Imm())
		require.Equal(t, x.Num(), wc.SrcQP)
		require.Equal(t, sent, b.landed(grh, n))
		if a.gid.GID.Addr().Is4() {
			require.Equal(t, a.gid.GID.Addr().AsSlice(), b.landed(20+12, 4), "source of the IPv4 header")
		}
	}
	// To nobody, and to one without a receive: sent all the same.
	lost := datagramWR(a, ah, 8, 8, y)
	lost.RemoteQPN ^= 0x800000
	x.send(lost, datagramWR(a, ah, 9, 8, y))
	require.Equal(t, span(8, 2), ids(a.waitOK(2)))
	require.Equal(t, verbs.RTS, x.state())
}

// testDatagramQKey: without the right Q_Key a datagram is not taken in.
func testDatagramQKey(t *testing.T, rig Rig) {
	a, b, x, y, ah := datagramPair(t, rig)
	y.recv(b.recvWR(1, 0, 1024), b.recvWR(2, 0, 1024))
	a.fill(1, 16)
	wrong := datagramWR(a, ah, 3, 8, y)
	wrong.RemoteQKey++
	x.send(wrong, datagramWR(a, ah, 4, 16, y))
	a.waitOK(2)
	wc := b.waitOK(1)[0]
	require.Equal(t, uint64(1), wc.ID)
	require.Equal(t, uint32(grh+16), wc.ByteLen)
}

func testDatagramTooLong(t *testing.T, rig Rig) {
	a, b, x, y, ah := datagramPair(t, rig)
	y.recv(b.recvWR(1, 0, 16<<10))
	x.send(datagramWR(a, ah, 2, a.port.ActiveMTU.Bytes()+1, y))
	status(t, a.wait(1)[0].Status, verbs.WCLocLenErr, verbs.WCSuccess, rig.Quirks.OversizeUDVanishes)
	require.Empty(t, b.poll())
}
