//go:build linux

package rxetest

import (
	"fmt"
	"testing"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// EmptyPoll measures a poll that finds nothing.
func EmptyPoll(b *testing.B, p verbs.Provider) {
	e := Open(b, p, "rxe0")
	wc := make([]verbs.WC, 16)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := e.cq.Poll(wc); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}

// Messages measures messages: the receives, the sends and both polls of a
// batch are four calls.
func Messages(b *testing.B, p verbs.Provider) {
	for _, batch := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			c := connect(b, p, p)
			recvs, sends := c.b.recvs(batch, 64), make([]verbs.SendWR, batch)
			for i := range sends {
				sends[i] = c.a.send(uint64(i), 0, 64, 0)
			}
			sends[batch-1].Flags = verbs.SendSignaled
			wc := make([]verbs.WC, batch)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.qb.PostRecv(recvs)
				_, _ = c.qa.PostSend(sends)
				for n := 0; n < batch; {
					k, _ := c.b.cq.Poll(wc)
					n += k
				}
				for n := 0; n == 0; n, _ = c.a.cq.Poll(wc) {
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/message")
		})
	}
}
