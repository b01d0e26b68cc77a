//go:build !unix

package main

// allowFiles has nothing to do: there is no such limit here.
func allowFiles(int) error { return nil }
