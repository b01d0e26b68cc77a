//go:build !linux

package results

import "runtime"

func systemName() string { return runtime.GOOS }
