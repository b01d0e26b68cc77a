package rdma

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// memlock names the limit that a registration may have met (case 50).
func memlock(err error) string {
	var limit unix.Rlimit
	if !errors.Is(err, syscall.ENOMEM) || unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil {
		return ""
	}
	if limit.Cur == unix.RLIM_INFINITY {
		return " (RLIMIT_MEMLOCK is unlimited)"
	}
	return fmt.Sprintf(" (RLIMIT_MEMLOCK is %d KiB for all that this process registers)", limit.Cur>>10)
}
