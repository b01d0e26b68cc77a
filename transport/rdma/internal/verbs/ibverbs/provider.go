//go:build linux && cgo

package ibverbs

/*
#cgo LDFLAGS: -ldl
#include "shim.h"
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// soname has stood for one interface since 2006; new functions come as new
// symbol versions.
const soname = "libibverbs.so.1"

// provider is stateless: the library it stands for is loaded once per process
// and never unloaded.
type provider struct{}

// Provider returns the provider over libibverbs.
func Provider() verbs.Provider { return provider{} }

func (provider) Name() string { return "ibverbs" }

func (provider) Devices() ([]string, error) {
	var names []string
	err := withDevices(func(list []*C.struct_vb_device) error {
		names = deviceNames(list)
		return nil
	})
	if err == nil && len(names) == 0 {
		err = &verbs.UnavailableError{Reason: "no RDMA device", NoDevice: true}
	}
	return names, err
}

func (provider) Open(name string) (verbs.Device, error) {
	var dev *device
	err := withDevices(func(list []*C.struct_vb_device) error {
		names := deviceNames(list)
		for i, d := range list {
			if names[i] == name {
				var err error
				dev, err = openDevice(name, d)
				return err
			}
		}
		return &verbs.Error{
			Op: "ibv_open_device", Object: name, Errno: syscall.ENODEV,
			Hint: fmt.Sprintf("the devices are %q", names),
		}
	})
	if err != nil {
		return nil, err
	}
	return dev, nil
}

// withDevices calls f with the device list, which is freed afterwards.
func withDevices(f func([]*C.struct_vb_device) error) error {
	if err := loadOnce(); err != nil {
		return err
	}
	var n C.int
	list, err := C.vb_get_device_list(&n)
	switch {
	case list != nil:
		defer C.vb_free_device_list(list)
		return f(unsafe.Slice(list, n))
	case errors.Is(err, syscall.ENOSYS):
		return &verbs.UnavailableError{Reason: "the kernel has no RDMA verbs (module ib_uverbs is not loaded)"}
	}
	return &verbs.UnavailableError{Reason: fmt.Sprintf("ibv_get_device_list: %v", err)}
}

func deviceNames(list []*C.struct_vb_device) []string {
	names := make([]string, len(list))
	for i, d := range list {
		names[i] = C.GoString(C.vb_get_device_name(d))
	}
	return names
}

var loadOnce = sync.OnceValue(func() error { return load(soname) })

// load binds the functions of libibverbs, all required ones or none.
func load(soname string) error {
	const size = 512
	buf := (*C.char)(C.malloc(size))
	defer C.free(unsafe.Pointer(buf))
	cname := C.CString(soname)
	defer C.free(unsafe.Pointer(cname))
	if msg := C.vb_load(cname, buf, size); msg != nil {
		reason, _, _ := strings.Cut(C.GoString(msg), "\n")
		return &verbs.UnavailableError{Reason: reason}
	}
	return nil
}

// errnoOf is the error behind a number that is 0 or an errno.
func errnoOf[T ~int32](errno T) error {
	if errno == 0 {
		return nil
	}
	return syscall.Errno(errno)
}
