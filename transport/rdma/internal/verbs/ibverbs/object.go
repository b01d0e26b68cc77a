//go:build linux && cgo

package ibverbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// object is what all verbs objects share: the name in errors, the place in
// the order of destruction, the entry in the registry of live objects.
//
// Order is kept here and not left to the device, because some destructions
// succeed that must not (ibv_close_device with a live PD frees the kernel's
// side below everybody's feet).
type object struct {
	name     string
	parents  []*object // which this object keeps from being destroyed
	children atomic.Int32
	release  func() // from the registry

	mu   sync.Mutex // held while destroying
	gone atomic.Bool
}

func (o *object) born(kind, name string, parents ...*object) {
	o.name, o.parents = name, parents
	for _, p := range parents {
		p.children.Add(1)
	}
	o.release = verbs.Track(kind, name)
}

// alive fails once the object was destroyed: a caller's mistake that would
// otherwise end in the C library.
func (o *object) alive(op string) error {
	if o.gone.Load() {
		return &verbs.Error{Op: op, Object: o.name, Errno: syscall.EBADF, Hint: "it was destroyed before"}
	}
	return nil
}

// destroy calls f, unless the object was destroyed or others still hang on it.
func (o *object) destroy(op string, f func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.alive(op); err != nil {
		return err
	}
	if n := o.children.Load(); n > 0 {
		return &verbs.Error{
			Op: op, Object: o.name, Errno: syscall.EBUSY,
			Hint: fmt.Sprintf("objects made of it that still exist: %d", n),
		}
	}
	if err := f(); err != nil {
		return failure(op, o.name, err)
	}
	o.gone.Store(true)
	for _, p := range o.parents {
		p.children.Add(-1)
	}
	o.release()
	return nil
}

// errnoOf is the error behind a number that is 0 or an errno.
func errnoOf[T ~int32](errno T) error {
	if errno == 0 {
		return nil
	}
	return syscall.Errno(errno)
}

// failure is a *verbs.Error for a call that failed with err, an errno. A NULL
// without an errno counts as EIO.
func failure(op, object string, err error, hint ...string) *verbs.Error {
	errno := syscall.EIO
	errors.As(err, &errno)
	e := &verbs.Error{Op: op, Object: object, Errno: errno}
	if len(hint) > 0 {
		e.Hint = hint[0]
	}
	return e
}
