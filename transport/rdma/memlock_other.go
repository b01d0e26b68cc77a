//go:build !linux

package rdma

// memlock has nothing to name: there is no RDMA here.
func memlock(error) string { return "" }
