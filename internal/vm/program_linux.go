package vm

import (
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// runProgram starts the program, carries its output, and returns its exit code.
// Whatever it leaves behind is killed. An error means that it did not start.
func runProgram(port *controlPort, j job) (int, error) {
	env := withGuestEnv(j.Env)
	path, err := lookPath(j.Args[0], env)
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	files := []*os.File{null}
	var copies sync.WaitGroup
	for _, kind := range []frameKind{frameStdout, frameStderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return 0, err
		}
		files = append(files, w)
		copies.Go(func() { copyOutput(port, kind, r) })
	}
	p, err := os.StartProcess(path, j.Args, &os.ProcAttr{
		Env: env, Files: files, Sys: &unix.SysProcAttr{Setsid: true},
	})
	for _, f := range files {
		f.Close()
	}
	if err != nil {
		return 0, err
	}
	logMark("program started")
	go forwardQuits(port, p.Pid)
	code := reapUntil(p.Pid)
	unix.Kill(-1, unix.SIGKILL) // all but PID 1 itself
	copies.Wait()
	logMark("program ended")
	return code, nil
}

// logMark writes to the kernel log. Printing it prints all that came before, so
// with the last mark the host has the log of the whole run. (A line without its
// newline would wait for more.)
func logMark(text string) { os.WriteFile("/dev/kmsg", []byte("<6>verbena-vm: "+text+"\n"), 0) }

// lookPath is exec.LookPath with the program's PATH in place of our own.
func lookPath(name string, env []string) (string, error) {
	for _, kv := range env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			os.Setenv("PATH", path)
		}
	}
	return exec.LookPath(name)
}

const sbinPath = "/usr/local/sbin:/usr/sbin:/sbin"

// withGuestEnv says that this is the guest, and lets the tools of root be found.
func withGuestEnv(env []string) []string {
	path := "/usr/local/bin:/usr/bin:/bin"
	out := []string{"VERBENA_VM=1"}
	for _, kv := range env {
		if p, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = p
			continue
		}
		out = append(out, kv)
	}
	return append(out, "PATH="+path+":"+sbinPath)
}

// copyOutput ends when no process has the pipe open any more.
func copyOutput(port *controlPort, kind frameKind, r io.ReadCloser) {
	defer r.Close()
	buf := make([]byte, maxData)
	for {
		n, err := r.Read(buf)
		if n > 0 && writeFrame(port, kind, buf[:n]) != nil {
			return
		}
		if err != nil {
			return
		}
	}
}

// forwardQuits serves the host's side of the port for the rest of the run.
func forwardQuits(port *controlPort, pid int) {
	for {
		kind, _, err := readFrame(port)
		if err != nil {
			return
		}
		if kind == frameQuit {
			unix.Kill(-pid, unix.SIGQUIT)
		}
	}
}

// reapUntil does PID 1's duty to orphans until the program itself ends.
func reapUntil(pid int) int {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR || got != pid && err == nil:
		case err != nil:
			return -1 // ECHILD: cannot be, the program is our child
		case status.Signaled():
			return 128 + int(status.Signal())
		case status.Exited():
			return status.ExitStatus()
		}
	}
}

// sendOutput sends a file, or all files of a directory.
func sendOutput(port io.Writer, index int, o Output) error {
	if !o.isDir() {
		return sendFile(port, index, "", o.Guest)
	}
	return filepath.WalkDir(o.Guest, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(o.Guest, path)
		if err != nil {
			return err
		}
		return sendFile(port, index, name, path)
	})
}

// sendFile sends at least one piece, so that an empty file arrives too. There
// being no such file is the program's business.
func sendFile(port io.Writer, index int, name, path string) error {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, maxData)
	for first := true; ; first = false {
		n, err := f.Read(buf)
		if n > 0 || first {
			if werr := writeFrame(port, frameFile, filePiece(index, name, buf[:n])); werr != nil {
				return werr
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
