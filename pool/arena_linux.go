package pool

import (
	"errors"

	"golang.org/x/sys/unix"
)

// No child gets the pages: after a fork that copies the address space, a write
// of ours would move to a page that the device does not know. Go starts most
// children without such a copy; those in a user namespace of their own, and a
// C library's, are copies.
func mapPages(size int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, err
	}
	if err := unix.Madvise(mem, unix.MADV_DONTFORK); err != nil {
		return nil, errors.Join(err, unix.Munmap(mem))
	}
	return mem, nil
}

func unmapPages(mem []byte) error { return unix.Munmap(mem) }
