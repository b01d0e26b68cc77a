package vm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// InGuest reports whether this process is PID 1 of a guest made by Run, which
// then has to call GuestMain.
func InGuest() bool { return os.Getpid() == 1 && os.Args[0] == "/init" }

// GuestMain is PID 1 of the guest: it makes the guest ready, runs the one job
// that comes over the control port, and waits: QEMU is killed once the result
// has arrived. What goes wrong before the port is open can only be said on the
// console.
func GuestMain() {
	port, err := bootGuest()
	if err == nil {
		err = writeJSONFrame(port, frameResult, runJob(port))
	}
	if err != nil {
		fmt.Println("verbena-vm: PID 1:", err)
		unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // QEMU runs with -no-reboot
	}
	for {
		time.Sleep(time.Hour)
	}
}

// bootGuest loads the modules and opens the control port.
func bootGuest() (*controlPort, error) {
	if err := mountAll("", earlyMounts); err != nil {
		return nil, err
	}
	if err := loadModules("/modules"); err != nil {
		return nil, err
	}
	return openControlPort()
}

// runJob does all that the host asked for, and says how it ended.
func runJob(port *controlPort) result {
	j, err := prepareJob(port)
	if err != nil {
		return result{Fault: err.Error()}
	}
	code, err := runProgram(port, j)
	if err != nil {
		return result{NotStarted: err.Error()}
	}
	for i, o := range j.Outputs {
		if err := sendOutput(port, i, o); err != nil {
			return result{Fault: err.Error()}
		}
	}
	return result{ExitCode: code}
}

// prepareJob brings the guest to where the program can start.
func prepareJob(port *controlPort) (job, error) {
	if err := switchRoot(); err != nil {
		return job{}, err
	}
	j, err := readJob(port)
	if err != nil {
		return job{}, err
	}
	if err := setUpNetwork(j.MTU); err != nil {
		return job{}, err
	}
	for _, o := range j.Outputs {
		if o.isDir() {
			if err := os.MkdirAll(o.Guest, 0o777); err != nil {
				return job{}, fmt.Errorf("output directory: %w", err)
			}
		}
	}
	if err := os.Chdir(j.Dir); err != nil {
		return job{}, fmt.Errorf("working directory: %w", err)
	}
	return j, writeJSONFrame(port, frameReady, ready{Kernel: kernelRelease()})
}

type mount struct {
	source, target, fstype string
	flags                  uintptr
	data                   string
}

var (
	earlyMounts = []mount{{"devtmpfs", "/dev", "devtmpfs", 0, ""}, {"proc", "/proc", "proc", 0, ""}}

	rootMounts = []mount{
		{rootTag, "/host", "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=512000,cache=loose"},
		{"tmpfs", "/new", "tmpfs", 0, "size=75%"},
	}

	// Mounted in the new root. /tmp is not: the program itself may lie there.
	systemMounts = []mount{
		{"devtmpfs", "/dev", "devtmpfs", 0, ""},
		{"tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777"},
		{"devpts", "/dev/pts", "devpts", 0, ""},
		{"proc", "/proc", "proc", 0, ""},
		{"sysfs", "/sys", "sysfs", 0, ""},
		{"tmpfs", "/run", "tmpfs", 0, "mode=755"},
	}
)

func mountAll(root string, mounts []mount) error {
	for _, m := range mounts {
		target := root + m.target
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, target, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, target, err)
		}
	}
	return nil
}

// loadModules loads the files of dir in the order of their names. A module whose
// hardware is not there (crc32_pclmul on an old CPU) is no loss: its generic
// sibling is in the list too.
func loadModules(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	if err != nil {
		return err
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}

// switchRoot makes the host's file system the root: read-only, below a tmpfs
// that takes all writes.
func switchRoot() error {
	if err := mountAll("", rootMounts); err != nil {
		return err
	}
	for _, dir := range []string{"/new/upper", "/new/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	overlay := []mount{{"overlay", "/root", "overlay", 0, "lowerdir=/host,upperdir=/new/upper,workdir=/new/work"}}
	if err := mountAll("", overlay); err != nil {
		return err
	}
	if err := mountAll("/root", systemMounts); err != nil {
		return err
	}
	if err := os.Chdir("/root"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	for i, name := range []string{"stdin", "stdout", "stderr", "fd"} { // not devtmpfs's business
		target := fmt.Sprintf("/proc/self/fd/%d", i)
		if name == "fd" {
			target = "/proc/self/fd"
		}
		if err := os.Symlink(target, "/dev/"+name); err != nil && !os.IsExist(err) {
			return err
		}
	}
	return unix.Sethostname([]byte("verbena-vm"))
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// controlPort is the guest's side of the control port. Reads and writes block in
// the kernel. Write may be called by several goroutines.
type controlPort struct {
	fd int
	mu sync.Mutex // one frame at a time
}

// openControlPort waits for the driver, which finds its ports in the background.
// The first number of the name depends on the order of the virtio devices.
func openControlPort() (*controlPort, error) {
	for range 1000 {
		if names, _ := filepath.Glob("/dev/vport*p1"); len(names) > 0 {
			fd, err := unix.Open(names[0], unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, fmt.Errorf("open %s: %w", names[0], err)
			}
			return &controlPort{fd: fd}, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, errors.New("no control port appeared")
}

// Read waits where the kernel returns 0: the host's end is not connected yet.
func (p *controlPort) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(p.fd, b)
		if n > 0 {
			return n, nil
		}
		if err != nil && err != unix.EINTR {
			return 0, fmt.Errorf("control port: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (p *controlPort) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := 0
	for done < len(b) {
		n, err := unix.Write(p.fd, b[done:])
		if err != nil && err != unix.EINTR {
			return done, fmt.Errorf("control port: %w", err)
		}
		done += max(n, 0)
	}
	return done, nil
}
