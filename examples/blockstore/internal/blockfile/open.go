package blockfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// Open opens the file at path, or makes it. It reads all of it. A commit that
// a crash has torn is cut off. The error is a *CorruptError if the file does
// not hold what it should; one of another kind if another process has it open.
func Open(path string, limits Limits) (*File, error) {
	file, err := openLocked(path)
	if err != nil {
		return nil, fmt.Errorf("blockfile: open: %w", err)
	}
	return open(path, file, limits)
}

// open is Open of a file that is locked; it closes it on failure.
func open(path string, file disk, limits Limits) (*File, error) {
	f := &File{path: path, limits: limits.withDefaults(), file: file}
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
	_, err = file.Write(emptyFile())
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	// Unlike a rename, a link leaves a file that somebody made meanwhile.
	if err := os.Link(file.Name(), path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// emptyFile is a file without records.
func emptyFile() []byte {
	b := make([]byte, firstRecord)
	for seq := range uint64(2) {
		s := superblock{seq: seq, durable: firstRecord}
		copy(b[s.offset():], s.encode())
	}
	return b
}

// recover fills f from the file and cuts a torn commit off. What was read is
// made durable before anybody sees it: it may have been in memory alone when
// the last process died.
func (f *File) recover() error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	content, err := read(f.file, info.Size())
	var corrupt *CorruptError
	if errors.As(err, &corrupt) {
		corrupt.Path = f.path
	}
	if err != nil {
		return err
	}
	f.super, f.index, f.end = content.super, content.index, content.end
	f.torn = info.Size() - f.end
	// After a sync that failed the kernel takes pages for clean that never got
	// to the disk, and the file may look cut off where on the disk it is not. To
	// sync again would leave that so; to write and to cut again does not.
	err = f.file.Truncate(f.end)
	_, superErr := f.file.WriteAt(f.super.encode(), f.super.offset())
	last := io.NewSectionReader(f.file, f.super.durable, f.end-f.super.durable)
	_, lastErr := io.Copy(io.NewOffsetWriter(f.file, f.super.durable), last)
	if err = errors.Join(err, superErr, lastErr, f.file.Sync()); err != nil {
		return fmt.Errorf("blockfile: recover: %w", err)
	}
	_, err = f.write(nil, f.end)
	return err
}
