package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelPackage depends on Debian's current stock kernel. The cloud kernel would
// not do: it has no rdma_rxe.
const kernelPackage = "linux-image-amd64"

// packages is all that tests and benchmarks need beside Go and gcc, and why.
var packages = []struct{ name, why string }{
	{"qemu-system-x86", "boots the guest in which RDMA tests run"},
	{"iproute2", "ip and rdma: make the guest's wire and devices"},
	{"libibverbs1", "the verbs library, loaded at run time"},
	{"ibverbs-providers", "the verbs library's driver for rxe (and for real NICs)"},
	{"libibverbs-dev", "infiniband/verbs.h, to check our C structures against"},
	{"perftest", "ib_send_lat, ib_send_bw…: what the bench compares with"},
	{"libfabric-bin", "fi_pingpong: what it compares with too"},
	{"xz-utils", "unpacks the guest's kernel"},
}

// Setup installs with apt what is missing and puts a guest kernel into the
// cache, telling out what and why before it does. With everything in place it
// changes nothing.
func Setup(ctx context.Context, out io.Writer) error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	unlock, err := lockCache(cache)
	if err != nil {
		return err
	}
	defer unlock()
	s := &setup{ctx: ctx, out: out}
	if err := s.installPackages(); err != nil {
		return err
	}
	if err := s.fetchKernel(cache); err != nil {
		return err
	}
	k, err := findKernel(cache)
	if err != nil {
		return err
	}
	return k.unpackImage()
}

// lockCache lets one setup at a time work; the lock ends with the process.
func lockCache(cache string) (unlock func(), err error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(cache, "setup.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	return func() { f.Close() }, nil
}

// setup is one call of Setup.
type setup struct {
	ctx     context.Context
	out     io.Writer
	updated bool
}

func (s *setup) installPackages() error {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		return fmt.Errorf("%w; install by other means: %s", ErrNoApt, packageNames())
	}
	var missing []string
	for _, p := range packages {
		if installed(p.name) {
			continue
		}
		fmt.Fprintf(s.out, "to install: %-18s %s\n", p.name, p.why)
		missing = append(missing, p.name)
	}
	switch {
	case len(missing) == 0:
		fmt.Fprintln(s.out, "all packages are installed:", packageNames())
		return nil
	case os.Geteuid() != 0:
		return fmt.Errorf("%w; as root: apt-get install --no-install-recommends %s",
			ErrNotRoot, strings.Join(missing, " "))
	}
	s.update()
	return s.apt("", append([]string{"install", "-y", "--no-install-recommends"}, missing...)...)
}

func packageNames() string {
	var names []string
	for _, p := range packages {
		names = append(names, p.name)
	}
	return strings.Join(names, " ")
}

func installed(name string) bool {
	status, err := exec.Command("dpkg-query", "-W", "-f", "${db:Status-Status}", name).Output()
	return err == nil && string(status) == "installed"
}

// update refreshes apt's lists once, before the first download. A failure shows
// in what follows, if it matters.
func (s *setup) update() {
	if !s.updated && os.Geteuid() == 0 {
		s.updated = true
		if err := s.apt("", "update", "-q"); err != nil {
			fmt.Fprintln(s.out, err)
		}
	}
}

// apt runs apt-get in dir. It waits for another apt to finish.
func (s *setup) apt(dir string, args ...string) error {
	args = append([]string{"-o", "DPkg::Lock::Timeout=600", "-o", "APT::Sandbox::User=root"}, args...)
	cmd := exec.CommandContext(s.ctx, "apt-get", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdout, cmd.Stderr = s.out, s.out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// fetchKernel downloads and unpacks the kernel package, which is not installed:
// the host keeps its own kernel.
func (s *setup) fetchKernel(cache string) error {
	k, err := findKernel(cache)
	if err == nil {
		fmt.Fprintln(s.out, "guest kernel is in the cache:", k.image)
		return nil
	}
	if !errors.Is(err, ErrNoKernel) {
		return err
	}
	s.update()
	name, version, err := currentKernel(s.ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "to download: %s %s (70 MB), the guest's kernel; unpacked to %s, not installed\n",
		name, version, cache)
	if err := os.MkdirAll(filepath.Join(cache, kernelDir), 0o755); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	tmp, err := os.MkdirTemp(cache, ".kernel-*")
	if err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := s.apt(tmp, "download", "-q", name+"="+version); err != nil {
		return err
	}
	debs, _ := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if len(debs) != 1 {
		return fmt.Errorf("apt-get download left %d packages, want 1", len(debs))
	}
	unpacked := filepath.Join(tmp, "unpacked")
	if text, err := exec.CommandContext(s.ctx, "dpkg-deb", "-x", debs[0], unpacked).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack %s: %w: %s", debs[0], err, text)
	}
	if err := os.Chmod(unpacked, 0o755); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	return os.Rename(unpacked, filepath.Join(cache, kernelDir, name+"_"+version))
}

// currentKernel asks apt what kernelPackage stands for.
func currentKernel(ctx context.Context) (name, version string, err error) {
	text, err := exec.CommandContext(ctx, "apt-cache", "show", "--no-all-versions", kernelPackage).Output()
	if err != nil {
		return "", "", fmt.Errorf("apt knows no package %s (Debian only; are its lists empty?): %w", kernelPackage, err)
	}
	return parseKernelDepends(string(text))
}

var kernelDepends = regexp.MustCompile(`(?m)^Depends: .*?(linux-image-[0-9][^ ,]*) \(= ([^)]+)\)`)

// parseKernelDepends reads the output of apt-cache show.
func parseKernelDepends(text string) (name, version string, err error) {
	m := kernelDepends.FindStringSubmatch(text)
	if m == nil {
		return "", "", fmt.Errorf("package %s depends on no linux-image of one version:\n%s", kernelPackage, text)
	}
	return m[1], m[2], nil
}
