//go:build unix

package blockfile

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock keeps other processes out until file is closed.
func lock(file *os.File) error {
	return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
