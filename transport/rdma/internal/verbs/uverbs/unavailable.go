//go:build !linux

package uverbs

import (
	"runtime"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

type provider struct{}

// Provider returns a provider that says why it cannot be used on this system.
func Provider() verbs.Provider { return provider{} }

func (provider) Name() string { return "uverbs" }

func (provider) Devices() ([]string, error) { return nil, unavailable() }

func (provider) Open(string) (verbs.Device, error) { return nil, unavailable() }

func unavailable() error {
	return &verbs.UnavailableError{Reason: "the kernel's verbs exist on Linux only, this is " + runtime.GOOS}
}
