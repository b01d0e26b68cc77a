//go:build linux

package uobject

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// Object is what all verbs objects share: the name in errors, the place in
// the order of destruction, the entry in the registry of live objects. It is
// embedded, and comes to life with Born.
//
// Order is kept here and not left to the device, because some destructions
// succeed that must not (closing a device with a live PD frees the kernel's
// side below everybody's feet).
type Object struct {
	name     string
	parents  []*Object // which this object keeps from being destroyed
	children atomic.Int32
	release  func() // from the registry

	mu   sync.Mutex // held while destroying
	gone atomic.Bool
}

// Born enters an object that was created, as a child of its parents.
func (o *Object) Born(kind, name string, parents ...*Object) {
	o.name, o.parents = name, parents
	for _, p := range parents {
		p.children.Add(1)
	}
	o.release = verbs.Track(kind, name)
}

// Name is what errors call the object.
func (o *Object) Name() string { return o.name }

// Gone says that the object was destroyed.
func (o *Object) Gone() bool { return o.gone.Load() }

// Alive fails once the object was destroyed: a caller's mistake that would
// otherwise end in freed memory, or at another object of the same handle.
func (o *Object) Alive(op string) error {
	if o.gone.Load() {
		return &verbs.Error{Op: op, Object: o.name, Errno: syscall.EBADF, Hint: "it was destroyed before"}
	}
	return nil
}

// End calls f, which destroys the object, unless that was done before or
// others still hang on it. The object is as it was when f fails.
func (o *Object) End(op string, f func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.Alive(op); err != nil {
		return err
	}
	if n := o.children.Load(); n > 0 {
		return &verbs.Error{
			Op: op, Object: o.name, Errno: syscall.EBUSY,
			Hint: fmt.Sprintf("objects made of it that still exist: %d", n),
		}
	}
	if err := f(); err != nil {
		return Failure(op, o.name, err)
	}
	o.gone.Store(true)
	for _, p := range o.parents {
		p.children.Add(-1)
	}
	o.release()
	return nil
}

// Failure is a *verbs.Error for a call that failed with err, an errno; any
// other error counts as EIO.
func Failure(op, object string, err error, hint ...string) *verbs.Error {
	errno := syscall.EIO
	errors.As(err, &errno)
	e := &verbs.Error{Op: op, Object: object, Errno: errno}
	if len(hint) > 0 {
		e.Hint = hint[0]
	}
	return e
}
