package vm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeQEMU puts a shell script in QEMU's place and returns a Config that
// reaches it: with a kernel in the cache, and a static PID 1.
func fakeQEMU(t *testing.T, script string) Config {
	t.Helper()
	dir := t.TempDir()
	qemu := filepath.Join(dir, "qemu-system-x86_64")
	require.NoError(t, os.WriteFile(qemu, []byte("#!/bin/sh\n"+script), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	putKernel(t, dir, "linux-image-1", "1", nil)
	init := filepath.Join(dir, "init")
	require.NoError(t, os.WriteFile(init, elfProgram(false), 0o600))
	return Config{Args: []string{"true"}, Init: init, CacheDir: dir}
}

func TestRunNamesWhatIsMissing(t *testing.T) {
	cfg := fakeQEMU(t, "")
	cfg.CacheDir = t.TempDir()
	_, err := Run(context.Background(), cfg)
	require.ErrorIs(t, err, ErrNoKernel)

	t.Setenv("PATH", "")
	_, err = Run(context.Background(), cfg)
	require.ErrorIs(t, err, ErrNoQEMU)
	require.ErrorIs(t, Check(), ErrNoQEMU)
}

func TestRunShowsWhyTheGuestDidNotComeUp(t *testing.T) {
	cfg := fakeQEMU(t, "echo 'qemu: no such machine' >&2; exit 1")
	_, err := Run(context.Background(), cfg)
	require.ErrorIs(t, err, ErrBoot)
	require.ErrorContains(t, err, "qemu: no such machine")

	cfg = fakeQEMU(t, "echo '[ 1.0] WARNING: at boot' >&4; exit 1")
	_, err = Run(context.Background(), cfg)
	require.ErrorIs(t, err, ErrBoot)
	require.ErrorContains(t, err, "WARNING: at boot")
	var fault *KernelFault
	require.False(t, errors.As(err, &fault), "nothing was run: no fault of a run")
}

func TestRunRefusesAGuestThatTalksNonsense(t *testing.T) {
	_, err := Run(context.Background(), fakeQEMU(t, "echo nonsense >&3; exec sleep 1000"))
	require.ErrorIs(t, err, ErrBoot)
	require.ErrorContains(t, err, "unknown frame kind")
}

// The first boot hangs, the second does not; three that hang are an error.
func TestRunBootsAgain(t *testing.T) {
	defer func(d []time.Duration) { bootTimeouts = d }(bootTimeouts)
	bootTimeouts = []time.Duration{50 * time.Millisecond, time.Minute}
	marker := filepath.Join(t.TempDir(), "booted")
	cfg := fakeQEMU(t, `[ -e `+marker+` ] || { touch `+marker+`; exec sleep 1000; }
		printf '\003\002\000\000\000{}' >&3; printf '\007\016\000\000\000{"exitCode":5}' >&3; exec sleep 1000`)
	res, err := Run(context.Background(), cfg)
	require.NoError(t, err)
	require.Equal(t, 5, res.ExitCode)

	bootTimeouts = []time.Duration{50 * time.Millisecond, 50 * time.Millisecond}
	_, err = Run(context.Background(), fakeQEMU(t, "exec sleep 1000"))
	require.ErrorIs(t, err, ErrBoot)
}

func TestRunEndsWithItsContext(t *testing.T) {
	cfg := fakeQEMU(t, "exec sleep 1000")
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	time.AfterFunc(100*time.Millisecond, func() { cancel(why) })
	_, err := Run(ctx, cfg)
	require.ErrorIs(t, err, why)
}

func TestRunEndsAtTheDeadline(t *testing.T) {
	cfg := fakeQEMU(t, "exec sleep 1000")
	cfg.Timeout = 100 * time.Millisecond
	_, err := Run(context.Background(), cfg)
	require.ErrorIs(t, err, ErrDeadline)

	// Boots that hang do not begin the time anew.
	defer func(d []time.Duration) { bootTimeouts = d }(bootTimeouts)
	bootTimeouts = slices.Repeat([]time.Duration{100 * time.Millisecond}, 10)
	cfg.Timeout = 250 * time.Millisecond
	_, err = Run(context.Background(), cfg)
	require.ErrorIs(t, err, ErrDeadline)
}

// A guest whose last word is heard but whose program had met a fault.
func TestRunPutsTheKernelsFaultFirst(t *testing.T) {
	ready := `printf '\003\002\000\000\000{}' >&3; `
	cfg := fakeQEMU(t, ready+`echo '[ 1.0] BUG: x' >&4; printf '\007\016\000\000\000{"exitCode":5}' >&3; exec sleep 1000`)
	res, err := Run(context.Background(), cfg)
	var fault *KernelFault
	require.ErrorAs(t, err, &fault)
	require.Equal(t, 5, fault.ExitCode)
	require.Equal(t, 5, res.ExitCode)

	_, err = Run(context.Background(), fakeQEMU(t, ready+`echo '[ 1.0] BUG: x' >&4`))
	require.ErrorAs(t, err, &fault)
	require.ErrorIs(t, err, ErrLost)
	require.Equal(t, -1, fault.ExitCode)
}
