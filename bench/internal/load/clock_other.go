//go:build !linux

package load

import (
	"context"
	"time"
)

// clock wakes a goroutine at a given time, as precisely as Go does.
type clock struct{}

func newClock() (*clock, error) { return &clock{}, nil }

// sleepUntil returns at t, at once if it has passed, or with ctx's error once
// it has ended and t has come.
func (*clock) sleepUntil(ctx context.Context, t time.Time) error {
	time.Sleep(time.Until(t))
	return ctx.Err()
}

func (*clock) close() {}
