//go:build unix

package main

import "golang.org/x/sys/unix"

// allowFiles raises the soft limit of open files as far as is needed and
// allowed, for this process and those that it starts.
func allowFiles(need int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	want := limit
	want.Cur = max(limit.Cur, min(uint64(need), limit.Max))
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &want) // even where it changes nothing: children would begin with less
	if want.Cur < uint64(need) {
		want.Cur, want.Max = uint64(need), uint64(need)
		if err = unix.Setrlimit(unix.RLIMIT_NOFILE, &want); err != nil { // for the privileged alone
			return &FileLimitError{Need: uint64(need), Have: limit.Max, Err: err}
		}
	}
	return err
}
