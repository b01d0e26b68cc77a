//go:build !linux

package vm

import (
	"context"
	"io"
)

// InGuest is always false: guests are made on Linux.
func InGuest() bool { return false }

// GuestMain does nothing.
func GuestMain() {}

// Run returns ErrUnsupported.
func Run(context.Context, Config) (Result, error) { return Result{}, ErrUnsupported }

// Check returns ErrUnsupported.
func Check() error { return ErrUnsupported }

// Setup returns ErrUnsupported.
func Setup(context.Context, io.Writer) error { return ErrUnsupported }
