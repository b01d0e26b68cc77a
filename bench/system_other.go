//go:build !linux

package main

import "runtime"

func systemName() string { return runtime.GOOS }
