package results

import (
	"golang.org/x/sys/unix"
)

// systemName names the kernel, which is half of a software device.
func systemName() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "linux"
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:])
}
