package rdma

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/linktest"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/simverbs"
	"github.com/verbena-rpc/verbena/transport/wire"
)

// peer answers each CALL on the poller, or ends a caller's wait with the
// REPLY. Callers are numbered by the call id.
type peer struct {
	link    transport.Link
	land    [8 << 10]byte
	reply   wire.Header
	waiting []chan struct{}
}

func (p *peer) Take(h *wire.Header, payload []byte) error { return linktest.Take(p, h, payload) }

func (p *peer) Land(h *wire.Header) ([]byte, error) { return p.land[:h.Length], nil }
func (p *peer) Closed(error)                        {}

func (p *peer) Frame(h *wire.Header) error {
	if h.Kind == wire.Reply {
		p.waiting[h.Call] <- struct{}{}
		return nil
	}
	s, err := p.link.Reserve(context.Background(), transport.Small, int(h.Length))
	if err != nil {
		return err
	}
	copy(s.Payload, p.land[:h.Length])
	p.reply = wire.Header{Kind: wire.Reply, Lane: transport.LaneID, Flags: wire.End, Call: h.Call, Total: h.Total}
	return linktest.Commit(p.link, s, &p.reply)
}

// BenchmarkEcho is a call and its reply over one link, the reply sent by the
// poller, with so many callers. ns/op is the time between two replies: with one
// caller a round trip, with many the inverse of their rate.
func BenchmarkEcho(b *testing.B) {
	for _, mode := range []PollMode{Busy, Adaptive} {
		for _, callers := range []int{1, 64} {
			name := fmt.Sprintf("64B/%v/callers=%d", mode, callers)
			b.Run("sim/"+name, func(b *testing.B) {
				_, ends := simEnds(b, simverbs.Config{})
				benchEcho(b, ends, mode, callers)
			})
			b.Run("rxe/"+name, func(b *testing.B) { benchEcho(b, realEnds(b), mode, callers) })
		}
	}
}

func benchEcho(b *testing.B, ends [2]end, mode PollMode, callers int) {
	_, links := pair(b, ends, Config{Poll: mode})
	b.ReportAllocs()
	b.ResetTimer()
	times := echo(b, links, callers, b.N)
	b.StopTimer()
	slices.Sort(times)
	b.ReportMetric(float64(times[b.N/2]), "p50-ns")
	sent := links[0].Info().Stats
	b.ReportMetric(float64(sent.SendBatches)/float64(sent.FramesSent), "posts/frame")
	b.ReportMetric(float64(sent.RecvBatches)/float64(sent.FramesReceived), "polls/frame")
}

// echo makes n calls with so many callers, and returns the time of each.
func echo(b *testing.B, links [2]*link, callers, n int) []time.Duration {
	peers := [2]*peer{}
	for i, l := range links {
		peers[i] = &peer{link: l}
		for range callers {
			peers[i].waiting = append(peers[i].waiting, make(chan struct{}, 1))
		}
		l.Start(peers[i])
	}
	done := make(chan error, callers)
	times := make([]time.Duration, n)
	for c := range callers {
		go func() {
			h := &wire.Header{Kind: wire.Call, Lane: transport.LaneID, Flags: wire.End, Call: uint64(c), Total: 64}
			var err error
			for i := c; i < n && err == nil; i += callers {
				var s transport.Slot
				start := time.Now()
				if s, err = links[0].Reserve(context.Background(), transport.Small, 64); err == nil {
					if err = linktest.Commit(links[0], s, h); err == nil {
						select {
						case <-peers[0].waiting[c]:
						case <-links[0].Done():
							err = links[0].dead()
						}
						times[i] = time.Since(start)
					}
				}
			}
			done <- err
		}()
	}
	for range callers {
		require.NoError(b, <-done)
	}
	return times
}

// BenchmarkLossyPath is BenchmarkEcho with one caller over a path of rdma_rxe
// that delays and loses packets, with fixed timing and with what Adaptive
// makes of an earlier link.
func BenchmarkLossyPath(b *testing.B) {
	for _, netem := range []string{"delay 0ms", "loss 1%", "delay 2ms 1ms loss 1%", "loss 5%"} {
		for _, adaptive := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/adaptive=%v", netem, adaptive), func(b *testing.B) {
				ends := realEnds(b)
				for _, dev := range []string{"va", "vb"} {
					run(b, "tc qdisc replace dev "+dev+" root netem "+netem)
					defer run(b, "tc qdisc del dev "+dev+" root")
				}
				cfg := Config{Adaptive: adaptive}
				fabrics, links := pair(b, ends, cfg)
				echo(b, links, 1, 200)
				for _, l := range links {
					l.Close(nil)
					<-l.Done()
				}
				made, err := join(context.Background(), fabrics, ends)
				require.NoError(b, err)
				attr, err := made[0].(*link).ep.qp.Query()
				require.NoError(b, err)
				b.ReportMetric(float64(attr.Timeout), "timeout")
				b.ResetTimer()
				times := echo(b, [2]*link{made[0].(*link), made[1].(*link)}, 1, b.N)
				b.StopTimer()
				slices.Sort(times)
				b.ReportMetric(float64(times[b.N/2]), "p50-ns")
				b.ReportMetric(float64(times[b.N*99/100]), "p99-ns")
			})
		}
	}
}
