package blockfile

import (
	"errors"
	"fmt"
)

// batch is a number of changes that become durable together.
type batch struct {
	bytes   []byte // as they go into the file
	changes []change
	done    chan struct{} // closed once err is set
	err     error
}

type change struct {
	record
	offset int64 // from the start of the batch
}

func (b *batch) add(r record, data []byte) {
	b.changes = append(b.changes, change{r, int64(len(b.bytes))})
	b.bytes = append(r.append(b.bytes), data...)
}

// add has a change committed and waits for that.
func (f *File) add(r record, data []byte) error {
	f.mu.Lock()
	if err := f.admit(r); err != nil {
		f.mu.Unlock()
		return err
	}
	if f.next == nil {
		f.next = &batch{done: make(chan struct{})}
	}
	b := f.next
	b.add(r, data)
	if !f.committing {
		f.committing = true
		go f.commit()
	}
	f.mu.Unlock()
	<-b.done
	return b.err
}

// admit holds a change against the limits.
func (f *File) admit(r record) error {
	switch {
	case f.closed:
		return ErrClosed
	case f.failed != nil:
		return f.failed
	}
	size, pending := f.end+r.size(), 0
	for _, b := range []*batch{f.writing, f.next} {
		if b != nil {
			size += int64(len(b.bytes))
			pending += len(b.changes)
		}
	}
	if size > f.limits.FileBytes {
		return &LimitError{"FileBytes", size, f.limits.FileBytes}
	}
	if _, old := f.index[r.id]; r.kind == putRecord && !old {
		// Changes under way count as new blocks, which some of them are not.
		if n := int64(len(f.index) + pending + 1); n > f.limits.Blocks {
			return &LimitError{"Blocks", n, f.limits.Blocks}
		}
	}
	return nil
}

// commit writes batches until there is none.
func (f *File) commit() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.next != nil {
		b, end := f.next, f.end
		f.writing, f.next = b, nil
		f.mu.Unlock()
		fatal, err := f.write(b.bytes, end)
		f.mu.Lock()
		f.writing = nil
		if err == nil {
			f.end += int64(len(b.bytes))
			for _, c := range b.changes {
				f.index.apply(c.record, end+c.offset)
			}
		} else if fatal {
			f.failed = err
			if f.next != nil {
				f.next.err = err
				close(f.next.done)
				f.next = nil
			}
		}
		b.err = err
		close(b.done)
	}
	f.committing = false
	f.idle.Broadcast()
}

// write makes b durable at the end, behind a superblock that says that
// everything before the end is: it goes over the older of the two. After an
// error the file is as before, unless it is fatal: then what is in it is not
// known.
func (f *File) write(b []byte, end int64) (fatal bool, err error) {
	super := superblock{seq: f.super.seq + 1, durable: end}
	if _, err = f.file.WriteAt(super.encode(), super.offset()); err == nil && len(b) > 0 {
		_, err = f.file.WriteAt(b, end)
	}
	if err != nil {
		// A whole record left behind by this commit must not come to stand
		// behind the next, shorter one, nor come to light after a crash, when
		// what it replaces was read again.
		cut := f.file.Truncate(end)
		if cut == nil {
			cut = f.file.Sync()
		}
		return cut != nil, fmt.Errorf("blockfile: write: %w", errors.Join(err, cut))
	}
	if err := f.file.Sync(); err != nil {
		// The kernel may have dropped the pages and will not say so again.
		return true, fmt.Errorf("blockfile: sync, no more is written: %w", err)
	}
	f.super = super // one that was not synced is written over, the other kept
	return false, nil
}
