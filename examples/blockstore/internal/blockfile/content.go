package blockfile

import (
	"bufio"
	"fmt"
	"io"

	"github.com/cespare/xxhash/v2"
)

// content is what a file holds.
type content struct {
	super superblock
	index index
	end   int64 // of the last good record
}

// index says where the newest version of each block is.
type index map[uint64]location

type location struct {
	offset, length int64
	sum            uint64
}

// apply brings the index up to date with a record at the offset.
func (x index) apply(r record, offset int64) {
	if r.kind == deleteRecord {
		delete(x, r.id)
		return
	}
	x[r.id] = location{offset + recordHeader, r.length, r.sum}
}

// read reads and checks a file of size bytes: all of it, in one pass. What
// follows end is a torn commit. Where that began before the durable offset,
// the error is a *CorruptError.
func read(file io.ReaderAt, size int64) (content, error) {
	c := content{index: index{}, end: firstRecord}
	var err error
	if c.super, err = readSuper(file); err != nil {
		return c, err
	}
	wrong := ""
	in := bufio.NewReaderSize(io.NewSectionReader(file, c.end, max(size-c.end, 0)), 1<<20)
	for wrong == "" && c.end < size {
		r, what, err := readRecord(in, size-c.end)
		switch {
		case err != nil:
			return c, fmt.Errorf("blockfile: read: %w", err)
		case what != "":
			wrong = what
		default:
			c.index.apply(r, c.end)
			c.end += r.size()
		}
	}
	if c.end < c.super.durable {
		if wrong == "" {
			wrong = "the file ends here"
		}
		return c, &CorruptError{Offset: c.end, What: wrong}
	}
	return c, nil
}

// readSuper reads the newest superblock.
func readSuper(file io.ReaderAt) (newest superblock, err error) {
	found := false
	for seq := range uint64(2) {
		b := make([]byte, superSize)
		if _, err := file.ReadAt(b, superblock{seq: seq}.offset()); err != nil && err != io.EOF {
			return newest, fmt.Errorf("blockfile: read: %w", err)
		}
		if s, ok := decodeSuper(b); ok && (!found || s.seq > newest.seq) {
			newest, found = s, true
		}
	}
	if !found {
		return newest, &CorruptError{What: "no valid superblock"}
	}
	return newest, nil
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
