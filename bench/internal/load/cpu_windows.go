package load

import (
	"time"

	"golang.org/x/sys/windows"
)

// cpuTime is the user and system time this process has used.
func cpuTime() time.Duration {
	var creation, exit, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(windows.CurrentProcess(), &creation, &exit, &kernel, &user); err != nil {
		return 0
	}
	return time.Duration(ticks(kernel)+ticks(user)) * 100
}

// ticks counts the 100 ns units of a Filetime that holds a duration.
func ticks(f windows.Filetime) int64 { return int64(f.HighDateTime)<<32 | int64(f.LowDateTime) }
