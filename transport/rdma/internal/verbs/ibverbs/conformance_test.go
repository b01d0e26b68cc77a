//go:build linux && cgo

package ibverbs

import (
	"testing"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/verbstest"
)

func TestConformance(t *testing.T) {
	a, b := openEnd(t, "rxe0"), openEnd(t, "rxe1")
	verbstest.Run(t, verbstest.Rig{
		A:      verbstest.End{Provider: Provider(), Device: "rxe0", GID: a.gid.GID},
		B:      verbstest.End{Provider: Provider(), Device: "rxe1", GID: b.gid.GID},
		Quirks: verbstest.RXE,
	})
}
