package pool

import "sync"

const (
	// reserveSize is how much memory for large buffers a process keeps once it has
	// needed one, in bytes, and as much again of what else it needed at once; what was
	// never used of it is not resident, but for the rest of a huge page. The collector of a process that holds little else runs for every
	// 4 MiB of garbage, which are few large messages, and for as much as the process
	// holds where that is more.
	// So calls over TCP became more by 35 to 80 % where they carry 64 KiB, by up to 50 %
	// where 1 MiB, and by 30 % where 4 KiB and there are many. 8 and 32 MiB did as well.
	reserveSize = 16 << 20

	// minReserved is the class of the smallest buffers from the reserve, of 64 KiB.
	minReserved = 16 - minShift
)

// reserve is where large buffers come from first, and go back to, also when garbage is
// collected. A class gets half of it at most, so that a burst of one leaves something
// for the others. Beside its own it takes in as many bytes of others: of a sync.Pool,
// which has a list for each processor, one would get those that were used longest ago.
// The zero value is ready and holds nothing.
type reserve struct {
	mu    sync.Mutex
	rest  []byte // not cut into buffers yet
	extra int    // bytes of free buffers that were not cut from it
	of    [numClasses]struct {
		free []*Buf // the last released is the first to be taken
		cut  int    // bytes
	}
}

var large reserve

// get is a buffer of the class with no reference; nil: there is none.
func (r *reserve) get(class int) *Buf {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.of[class]
	if n := len(c.free); n > 0 {
		b := c.free[n-1]
		c.free = c.free[:n-1]
		if !b.reserved {
			r.extra -= b.Cap()
		}
		return b
	}
	size := classSize(class)
	if c.cut+size > reserveSize/2 {
		return nil
	}
	if r.rest == nil {
		r.rest = make([]byte, reserveSize)
		wantHugePages(r.rest)
	}
	if size > len(r.rest) {
		return nil
	}
	b := &Buf{class: int8(class), reserved: true, buf: r.rest[:0:size]}
	r.rest = r.rest[size:]
	c.cut += size
	return b
}

// put takes in a buffer that nobody holds; false: it has room for no more.
func (r *reserve) put(b *Buf) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !b.reserved {
		if r.extra+b.Cap() > reserveSize {
			return false
		}
		r.extra += b.Cap()
	}
	c := &r.of[b.class]
	c.free = append(c.free, b)
	return true
}
