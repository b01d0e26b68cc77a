package vm

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// KernelFault says that the guest's kernel complained while the program ran:
// whatever the program reported, its result is worth nothing.
type KernelFault struct {
	// Kind is the name of the complaint, such as "soft lockup".
	Kind string
	// Line is the first line of it, Excerpt what stands around it.
	Line, Excerpt string
	// ExitCode is the program's own, -1 if it did not get to its end.
	ExitCode int
}

func (f *KernelFault) Error() string {
	own := fmt.Sprintf("the program itself exited with %d", f.ExitCode)
	if f.ExitCode < 0 {
		own = "the program did not end"
	}
	return fmt.Sprintf("kernel fault, not a test failure: %s: %s (%s)", f.Kind, f.Line, own)
}

// kernelFaults are the complaints looked for, most telling first: a line takes
// the first that matches. They are the texts of lib/bug.c, kernel/panic.c,
// kernel/watchdog.c, kernel/hung_task.c, lib/refcount.c, kernel/rcu/tree_stall.h,
// mm/oom_kill.c and arch/x86/kernel/traps.c.
var kernelFaults = []struct {
	kind    string
	pattern *regexp.Regexp
}{
	{"soft lockup", regexp.MustCompile(`soft lockup`)},
	{"hard lockup", regexp.MustCompile(`hard LOCKUP`)},
	{"refcount", regexp.MustCompile(`refcount_t: `)},
	{"hung task", regexp.MustCompile(`INFO: task .* blocked for more than|hung_task:`)},
	{"RCU stall", regexp.MustCompile(`rcu: INFO: .*(stall|detected)`)},
	{"general protection fault", regexp.MustCompile(`general protection fault`)},
	{"oops", regexp.MustCompile(`\bOops\b`)},
	{"BUG", regexp.MustCompile(`\b(kernel BUG|BUG:)`)},
	{"WARNING", regexp.MustCompile(`\bWARNING: `)},
	{"undefined behaviour", regexp.MustCompile(`\bUBSAN: `)},
	{"device still referenced", regexp.MustCompile(`unregister_netdevice: waiting for`)},
	{"out of memory (give the guest more)", regexp.MustCompile(`Out of memory: Killed`)},
	{"panic", regexp.MustCompile(`Kernel panic`)},
}

// Lines of the log that an excerpt shows before and after the first complaint.
const (
	excerptBefore = 3
	excerptAfter  = 40
)

// findKernelFault returns the first complaint in a console log, or nil.
func findKernelFault(log []byte) *KernelFault {
	lines := strings.Split(string(bytes.ReplaceAll(log, []byte("\r"), nil)), "\n")
	for i, line := range lines {
		if strings.Contains(line, "Attempted to kill init") {
			continue // the kernel's word for an end of PID 1, which is ours
		}
		for _, f := range kernelFaults {
			if !f.pattern.MatchString(line) {
				continue
			}
			return &KernelFault{
				Kind:     f.kind,
				Line:     withoutTimestamp(line),
				Excerpt:  excerpt(lines, i),
				ExitCode: -1,
			}
		}
	}
	return nil
}

// excerpt ends where the kernel says that its report ends.
func excerpt(lines []string, at int) string {
	first, last := max(0, at-excerptBefore), min(len(lines), at+excerptAfter)
	for i := at; i < last; i++ {
		if strings.Contains(lines[i], "---[ end trace") {
			last = i + 1
		}
	}
	return strings.TrimRight(strings.Join(lines[first:last], "\n"), "\n")
}

var timestamp = regexp.MustCompile(`^(<\d+>)?\[ *\d+\.\d+\] ?`)

func withoutTimestamp(line string) string { return timestamp.ReplaceAllString(line, "") }

// logTail returns the last n lines, for a guest that died without a word.
func logTail(log []byte, n int) string {
	text := strings.TrimSpace(strings.ReplaceAll(string(log), "\r", ""))
	if text == "" {
		return "(the console stayed empty)"
	}
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
