//go:build unix && !linux

package pool

import (
	"os"

	"golang.org/x/sys/unix"
)

func mapPages(size int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	for i := 0; i < size; i += os.Getpagesize() {
		mem[i] = 0 // a write makes the page present
	}
	return mem, nil
}

func unmapPages(mem []byte) error { return unix.Munmap(mem) }
