//go:build !linux || !cgo

package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

func TestUnavailable(t *testing.T) {
	var unavailable *verbs.UnavailableError
	_, err := Provider().Devices()
	require.ErrorAs(t, err, &unavailable)
	require.NotEmpty(t, unavailable.Reason)
	_, err = Provider().Open("rxe0")
	require.ErrorAs(t, err, &unavailable)
}
