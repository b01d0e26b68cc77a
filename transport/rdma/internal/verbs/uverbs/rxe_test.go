//go:build linux

package uverbs

import (
	"testing"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/ibverbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/rxetest"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/verbstest"
)

// The library that the cross tests load keeps what it opened.
func TestMain(m *testing.M) {
	verbstest.Main(m, func() { _, _ = ibverbs.Provider().Devices() })
}

func TestConformance(t *testing.T) { verbstest.Run(t, rxetest.Rig(t, Provider(), Provider())) }

func TestRXE(t *testing.T) { rxetest.Run(t, Provider()) }

func TestUnprivileged(t *testing.T) { rxetest.Unprivileged(t, Provider()) }

func TestOtherCredentials(t *testing.T) { rxetest.OtherCredentials(t, Provider()) }

func BenchmarkEmptyPoll(b *testing.B) { rxetest.EmptyPoll(b, Provider()) }
func BenchmarkMessages(b *testing.B)  { rxetest.Messages(b, Provider()) }
