package blockfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// Open opens the file at path, or makes it. It reads all of it. A commit that
// a crash has torn is cut off. The error is a *CorruptError if the file does
// not hold what it should; one of another kind if another process has it open.
func Open(path string, limits Limits) (*File, error) {
	file, err := openLocked(path)
	if err != nil {
		return nil, fmt.Errorf("blockfile: open: %w", err)
	}
	f := &File{path: path, limits: limits.withDefaults(), file: file, index: map[uint64]location{}}
	f.idle = sync.NewCond(&f.mu)
	if err := f.recover(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return f, nil
}

func openLocked(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		if err := create(path); err != nil {
			return nil, err
		}
		file, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, err
	}
	if err := lock(file); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return file, nil
}

// create makes an empty file, all at once, so that there is never half of one.
func create(path string) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".blocks-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	first := make([]byte, firstRecord)
	for seq := range uint64(2) {
		s := superblock{seq: seq, durable: firstRecord}
		copy(first[s.offset():], s.encode())
	}
	_, err = file.Write(first)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	// Unlike a rename, a link leaves a file that somebody made meanwhile.
	if err := os.Link(file.Name(), path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// recover checks the whole file, fills the index and cuts a torn commit off.
// What was read is made durable before anybody sees it: it may have been in
// memory alone when the last process died.
func (f *File) recover() error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if err := f.readSuper(); err != nil {
		return err
	}
	f.end = firstRecord
	in := bufio.NewReaderSize(io.NewSectionReader(f.file, f.end, max(size-f.end, 0)), 1<<20)
	wrong := "the file ends here"
	for f.end < size {
		r, what, err := readRecord(in, size-f.end)
		if err != nil {
			return err
		}
		if wrong = what; wrong != "" {
			break
		}
		f.apply(r, f.end)
		f.end += r.size()
		wrong = "the file ends here"
	}
	if f.end < f.super.durable {
		return &CorruptError{f.path, f.end, wrong}
	}
	f.torn = size - f.end
	if f.torn > 0 {
		err = f.file.Truncate(f.end)
	}
	return errors.Join(err, f.file.Sync(), f.mark(f.end), f.file.Sync())
}

// readSuper reads the newest superblock.
func (f *File) readSuper() error {
	found := false
	for seq := range uint64(2) {
		b := make([]byte, superSize)
		if _, err := f.file.ReadAt(b, superblock{seq: seq}.offset()); err != nil && err != io.EOF {
			return err
		}
		s, ok := decodeSuper(b)
		if ok && (!found || s.seq > f.super.seq) {
			f.super, found = s, true
		}
	}
	if !found {
		return &CorruptError{f.path, 0, "no valid superblock"}
	}
	return nil
}

// readRecord reads and checks a record of which left bytes are in the file.
// what says what is wrong with it, err that reading failed.
func readRecord(in io.Reader, left int64) (r record, what string, err error) {
	if left < recordHeader {
		return r, "the file ends within a record", nil
	}
	b := make([]byte, recordHeader)
	if _, err := io.ReadFull(in, b); err != nil {
		return r, "", err
	}
	r, ok := decodeRecord(b, left-recordHeader)
	if !ok {
		return r, "no valid record header", nil
	}
	sum := xxhash.New()
	if _, err := io.CopyN(sum, in, r.length); err != nil {
		return r, "", err
	}
	if sum.Sum64() != r.sum {
		return r, fmt.Sprintf("checksum of block %d", r.id), nil
	}
	return r, "", nil
}
