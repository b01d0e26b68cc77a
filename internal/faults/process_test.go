//go:build linux

package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// process is another process of this test binary. It belongs to the goroutine
// that injects faults.
type process struct {
	*exec.Cmd
	in      io.WriteCloser
	out     *os.File
	answers *json.Decoder
}

// launch says how a process is started.
type launch struct {
	role    string
	args    []string
	records *os.File // where it writes down what it did; may be nil
	cgroup  *os.File // may be nil
	memlock int      // KiB, and no privilege; 0: all that root may lock
}

// answerTime bounds how long a process that is not stopped takes to answer.
const answerTime = 10 * time.Second

func start(self string, l launch) (*process, error) {
	cmd := exec.Command(self, l.args...)
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if l.memlock > 0 {
		// Only somebody else than root is held to the limit.
		limit := fmt.Sprintf(`ulimit -l %d; exec "$0" "$@"`, l.memlock)
		cmd = exec.Command("/bin/sh", append([]string{"-c", limit, self}, l.args...)...)
		attr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	if l.cgroup != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(l.cgroup.Fd())
	}
	cmd.Env = append(os.Environ(), roleVar+"="+l.role)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	if l.records != nil {
		cmd.ExtraFiles = []*os.File{l.records}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &process{Cmd: cmd, in: in, out: out.(*os.File), answers: json.NewDecoder(out)}, nil
}

// ask gives an order and waits for the answer.
func (p *process) ask(o order) (status, error) {
	var s status
	if _, err := io.WriteString(p.in, string(o)+"\n"); err != nil {
		return s, fmt.Errorf("order %q to process %d: %w", o, p.Process.Pid, err)
	}
	if err := p.out.SetReadDeadline(time.Now().Add(answerTime)); err != nil {
		return s, err
	}
	if err := p.answers.Decode(&s); err != nil {
		return s, fmt.Errorf("answer of process %d to %q: %w", p.Process.Pid, o, err)
	}
	return s, nil
}

// kill ends the process as kill -9 does. The error says that it had ended by
// itself before.
func (p *process) kill() error {
	_ = p.Process.Kill()
	_ = p.Wait()
	if s := p.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGKILL {
		return fmt.Errorf("process %d ended by itself: %v", p.Process.Pid, p.ProcessState)
	}
	return nil
}

// finish ends the process in order.
func (p *process) finish() error {
	p.in.Close()
	done := make(chan error, 1)
	go func() { done <- p.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(answerTime):
		_ = p.Process.Signal(syscall.SIGQUIT)
		time.Sleep(time.Second) // while it prints its goroutines
		_ = p.Process.Kill()
		<-done
		return errors.New("the process did not end")
	}
}

// isStopped says that a signal has stopped the process: state T, see proc(5).
func (p *process) isStopped() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(state, "T")
}
