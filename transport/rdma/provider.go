package rdma

import (
	"errors"
	"fmt"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/ibverbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uverbs"
)

// Provider says what drives the devices. docs/adr/0007-mapped-rings.md has the
// reasons and the difference.
type Provider uint8

// Providers.
const (
	AutoProvider Provider = iota // Uverbs for devices of rdma_rxe, Libibverbs for all others
	Libibverbs                   // libibverbs, loaded at run time: any device; needs cgo
	Uverbs                       // the kernel itself, with queues that are mapped: rdma_rxe alone
)

func (p Provider) String() string {
	switch p {
	case AutoProvider:
		return "auto"
	case Libibverbs:
		return "libibverbs"
	case Uverbs:
		return "uverbs"
	}
	return fmt.Sprintf("Provider(%d)", uint8(p))
}

// provider is the implementation; of no Provider that there is, any.
func (p Provider) provider() verbs.Provider {
	switch p {
	case Libibverbs:
		return ibverbs.Provider()
	case Uverbs:
		return uverbs.Provider()
	}
	return autoProvider{}
}

// autoProvider opens each device with the provider that suits its driver.
type autoProvider struct{}

func (autoProvider) Name() string { return AutoProvider.String() }

// Devices lists what the kernel has. A device that neither provider drives is
// there as well: Open says why it cannot be used.
func (autoProvider) Devices() ([]string, error) { return uverbs.Provider().Devices() }

func (autoProvider) Open(name string) (verbs.Device, error) {
	d, err := uverbs.Provider().Open(name)
	if errors.Is(err, errors.ErrUnsupported) { // of another driver
		return ibverbs.Provider().Open(name)
	}
	return d, err
}
