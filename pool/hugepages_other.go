//go:build !linux

package pool

// wantHugePages exists on Linux alone.
func wantHugePages([]byte) {}
