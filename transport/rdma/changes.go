package rdma

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

const (
	// lookInterval is how often a fabric looks which devices there are. Of one
	// that comes there is no event, of one that is removed not always: rxe
	// keeps `rdma link del` waiting until the last process has closed the
	// device, and tells none (Linux 6.1; case 61).
	lookInterval = time.Second

	// settleTime gathers the events of one change: a port that comes up
	// brings one for itself and some for its GIDs.
	settleTime = 50 * time.Millisecond
)

// RemovedError says that a device is there no more.
type RemovedError struct{ Device string }

func (e *RemovedError) Error() string { return "rdma: " + e.Device + ": the device was removed" }

// lookout is the goroutine of a fabric that closes broken and removed devices
// and tells of what has come: from the first use of the fabric to its Close.
type lookout struct {
	started bool          // guarded by Fabric.mu
	wake    chan struct{} // of one: a device broke, or something came
	ctx     context.Context
	stop    context.CancelFunc
	done    chan struct{}

	// Guarded by Fabric.mu.
	listed   []string             // devices at the last look
	lost     map[string]bool      // devices that broke and were not opened since
	watchers map[*func()]struct{} // of Watch
	changed  bool                 // they are to be told
}

func newLookout() lookout {
	ctx, stop := context.WithCancel(context.Background())
	return lookout{
		wake: make(chan struct{}, 1), ctx: ctx, stop: stop, done: make(chan struct{}),
		lost: map[string]bool{}, watchers: map[*func()]struct{}{},
	}
}

// Watch calls changed when a link that could not be made might be made now:
// a device or port has come up, or has other addresses. See transport.Watcher.
func (f *Fabric) Watch(changed func()) (stop func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := &changed
	f.lookout.watchers[key] = struct{}{}
	f.startLookout()
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.lookout.watchers, key)
	}
}

// startLookout starts the goroutine, unless it runs. f.mu is held.
func (f *Fabric) startLookout() {
	if l := &f.lookout; !l.started && !f.closed {
		l.started = true
		go f.lookAround()
	}
}

// stopLookout ends the goroutine. f.mu is not held, and f.closed set.
func (f *Fabric) stopLookout() {
	if l := &f.lookout; l.started {
		l.stop()
		<-l.done
	}
}

// rouse makes the lookout look at once. It never waits.
func (f *Fabric) rouse() {
	select {
	case f.lookout.wake <- struct{}{}:
	default:
	}
}

// came notes that something came up, and has the watchers told.
func (f *Fabric) came() {
	f.mu.Lock()
	f.lookout.changed = true
	f.mu.Unlock()
	f.rouse()
}

func (f *Fabric) lookAround() {
	l := &f.lookout
	defer close(l.done)
	timer := time.NewTimer(untilWhole(lookInterval))
	defer timer.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-l.wake:
			f.dropBroken()
			select {
			case <-time.After(settleTime):
			case <-l.ctx.Done():
				return
			}
			f.tell()
		case <-timer.C:
			f.look()
			timer.Reset(untilWhole(lookInterval))
		}
	}
}

// present lists the devices there are; ok is false where that cannot be told.
func (f *Fabric) present() (names []string, ok bool) {
	names, err := f.provider.Devices()
	var none *verbs.UnavailableError
	if errors.As(err, &none) && none.NoDevice {
		return nil, true
	}
	return names, err == nil
}

// look finds out which devices have gone and come, and rouses the lookout for
// them.
func (f *Fabric) look() {
	names, ok := f.present()
	if !ok {
		return
	}
	l := &f.lookout
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, d := range f.devices {
		if !slices.Contains(names, name) {
			d.fail(&RemovedError{name})
		}
	}
	for _, name := range names {
		came := !slices.Contains(l.listed, name)
		if l.lost[name] {
			_, err := f.open(name)
			came = err == nil
		}
		if came {
			l.changed = true
			f.rouse()
		}
	}
	l.listed = names
}

// dropBroken closes what cannot be used any more, so that it can be removed,
// and opened anew.
func (f *Fabric) dropBroken() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.devices {
		if d.broken() != nil {
			f.drop(d)
		}
	}
}

// drop forgets a device and closes it. f.mu is held.
func (f *Fabric) drop(d *device) {
	delete(f.devices, d.name)
	f.lookout.lost[d.name] = true
	f.closing.Go(func() { f.retire(d) }) //nolint:errcheck // it is broken: what can be released is
}

// retire closes a device and keeps what it has counted. f.mu is not held.
func (f *Fabric) retire(d *device) error {
	err := d.close()
	f.mu.Lock()
	defer f.mu.Unlock()
	d.leave(&f.past)
	return err
}

// tell calls the watchers if something came.
func (f *Fabric) tell() {
	f.mu.Lock()
	var watchers []*func()
	if f.lookout.changed {
		for w := range f.lookout.watchers {
			watchers = append(watchers, w)
		}
	}
	f.lookout.changed = false
	f.mu.Unlock()
	for _, w := range watchers {
		(*w)()
	}
}
