//go:build !linux || !cgo

package ibverbs

import (
	"runtime"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

type provider struct{}

// Provider returns a provider that says why it cannot be used in this build.
func Provider() verbs.Provider { return provider{} }

func (provider) Name() string { return "ibverbs" }

func (provider) Devices() ([]string, error) { return nil, unavailable() }

func (provider) Open(string) (verbs.Device, error) { return nil, unavailable() }

func unavailable() error {
	if runtime.GOOS != "linux" {
		return &verbs.UnavailableError{Reason: "libibverbs exists on Linux only, this is " + runtime.GOOS}
	}
	return &verbs.UnavailableError{Reason: "built without cgo"}
}
