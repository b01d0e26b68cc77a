// Package blockfile keeps blocks of bytes under numbers in one file, of which
// nothing that was acknowledged is lost in a crash.
//
// The file is a log: Put and Delete append, and no block is written over. An
// index in memory says where the newest version of each block is. The room of
// old versions is not used again.
//
// Start reading at format.go.
package blockfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// Errors of Get, Put and Delete.
var (
	ErrNotFound = errors.New("blockfile: no such block")
	ErrClosed   = errors.New("blockfile: file is closed")
)

// CorruptError is a file that does not hold what was once written to it.
type CorruptError struct {
	Path   string
	Offset int64 // bytes from the start of the file
	What   string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("blockfile: %s is corrupt at offset %d: %s", e.Path, e.Offset, e.What)
}

// LimitError is a block that a limit keeps out.
type LimitError struct {
	Limit     string // field of Limits
	Got, Most int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("blockfile: %s would be %d, the limit is %d", e.Limit, e.Got, e.Most)
}

// Limits bound what a file takes in. Zero fields have their defaults. What is
// in the file already is read whatever its size.
type Limits struct {
	BlockBytes int64 // of one block; default 1 MiB
	FileBytes  int64 // default 1 GiB
	Blocks     int64 // number of blocks, each some 100 bytes of memory; default 2^20
}

func (l Limits) withDefaults() Limits {
	set := func(v *int64, def int64) {
		if *v == 0 {
			*v = def
		}
	}
	set(&l.BlockBytes, 1<<20)
	set(&l.FileBytes, 1<<30)
	set(&l.Blocks, 1<<20)
	return l
}

// disk is what a File needs of an *os.File. Tests crash one of their own.
type disk interface {
	io.ReaderAt
	io.WriterAt
	Stat() (os.FileInfo, error)
	Truncate(size int64) error
	Sync() error
	Close() error
}

// File is an open file of blocks. Its methods may be called from any
// goroutine. One goroutine, commit, writes, as long as there is something to
// write; several changes share one fsync.
//
// super belongs to Open, then to commit, and last to Close, one after the
// other. mu guards the rest.
type File struct {
	path   string
	limits Limits
	file   disk
	torn   int64

	super superblock // the newest that is on the disk

	mu         sync.Mutex
	index      index
	end        int64  // of the durable records
	writing    *batch // being written behind end, or nil
	next       *batch // takes in changes; nil: none yet
	committing bool
	idle       *sync.Cond // committing has become false
	failed     error      // not nil: nothing is written any more, and why
	closed     bool       // by Close: nothing new is taken in
}

// Torn is how many bytes of an unacknowledged commit Open cut off.
func (f *File) Torn() int64 { return f.torn }

// Put stores data as block id. When it returns nil, the block is on the disk;
// after an error it may be or not. data is not kept.
func (f *File) Put(id uint64, data []byte) error {
	if n := int64(len(data)); n > f.limits.BlockBytes {
		return &LimitError{"BlockBytes", n, f.limits.BlockBytes}
	}
	return f.add(record{kind: putRecord, id: id, length: int64(len(data)), sum: xxhash.Sum64(data)}, data)
}

// Delete removes block id, if there is one. It is as durable as Put.
func (f *File) Delete(id uint64) error {
	return f.add(record{kind: deleteRecord, id: id, sum: xxhash.Sum64(nil)}, nil)
}

// Get returns block id. The error is ErrNotFound, or a *CorruptError if the
// block is not what was put.
func (f *File) Get(id uint64) ([]byte, error) {
	f.mu.Lock()
	at, ok := f.index[id]
	f.mu.Unlock()
	if !ok {
		return nil, ErrNotFound
	}
	data := make([]byte, at.length)
	switch _, err := f.file.ReadAt(data, at.offset); {
	case errors.Is(err, os.ErrClosed):
		return nil, ErrClosed
	case err != nil:
		return nil, fmt.Errorf("blockfile: read block %d: %w", id, err)
	case xxhash.Sum64(data) != at.sum:
		return nil, &CorruptError{f.path, at.offset, fmt.Sprintf("checksum of block %d", id)}
	}
	return data, nil
}

// Close waits for changes under way and closes the file. Later changes fail
// with ErrClosed. The error says what kept changes from the disk, if anything
// did: now, or earlier, when Put or Delete said so too.
func (f *File) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return ErrClosed
	}
	f.closed = true
	for f.committing {
		f.idle.Wait()
	}
	failed, end := f.failed, f.end
	f.mu.Unlock()
	if failed == nil {
		// From now on every byte counts as durable, so that damage to the last
		// commit is not taken for a crash.
		_, failed = f.write(nil, end)
	}
	return errors.Join(failed, f.file.Close())
}
