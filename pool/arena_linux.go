package pool

import "golang.org/x/sys/unix"

// Private pages are safe here although the process may start children: Go
// starts them without copying the address space (CLONE_VM), so that no write
// of ours moves to a page the device does not know.
func mapPages(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
}

func unmapPages(mem []byte) error { return unix.Munmap(mem) }
