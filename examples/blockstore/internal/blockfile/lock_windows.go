package blockfile

import (
	"os"

	"golang.org/x/sys/windows"
)

// lock keeps other processes out until file is closed.
func lock(file *os.File) error {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	// A byte that is never read or written: Windows locks what it locks.
	beyond := &windows.Overlapped{OffsetHigh: 1 << 30}
	return windows.LockFileEx(windows.Handle(file.Fd()), flags, 0, 1, 0, beyond)
}

// syncDir does nothing: NTFS journals names by itself.
func syncDir(string) error { return nil }
