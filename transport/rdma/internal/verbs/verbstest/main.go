package verbstest

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// grace is how long what the tests stopped may take to end.
const grace = 10 * time.Second

// Main runs the tests of a package, and fails the run if they leave verbs
// objects, goroutines or file descriptors behind. Use it as
//
//	func TestMain(m *testing.M) { verbstest.Main(m) }
//
// warm, if given, runs before the first count: what it leaves behind is the
// provider's for the life of the process, such as a loaded library.
func Main(m *testing.M, warm ...func()) {
	verbs.TraceLive(true)
	startPoller()
	for _, f := range warm {
		f()
	}
	before := take()
	code := m.Run()
	if code == 0 {
		if leak := before.leaks(grace); leak != "" {
			fmt.Fprintf(os.Stderr, "verbstest: the tests left behind:\n%s", leak)
			code = 1
		}
	}
	os.Exit(code)
}

// census is what a process holds at one moment.
type census struct {
	objects    int
	goroutines int
	files      map[string]string // descriptor to what it is; nil where the system does not say
}

func take() census {
	return census{objects: len(verbs.Live()), goroutines: runtime.NumGoroutine(), files: openFiles()}
}

// leaks says what there is beyond c, once it did not go away for a while.
func (c census) leaks(patience time.Duration) string {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		leak := c.beyond(take())
		if leak == "" || time.Now().After(end) {
			return leak
		}
	}
}

func (c census) beyond(now census) string {
	var b strings.Builder
	if now.objects > c.objects {
		for _, o := range verbs.Live() {
			fmt.Fprintf(&b, "%v\n", o)
		}
	}
	if now.goroutines > c.goroutines {
		fmt.Fprintf(&b, "%d goroutines, %d before:\n%s", now.goroutines, c.goroutines, stacks())
	}
	for fd, what := range now.files {
		if c.files[fd] == "" {
			fmt.Fprintf(&b, "descriptor %s: %s\n", fd, what)
		}
	}
	return b.String()
}

func stacks() string {
	var b bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
	return b.String()
}

// startPoller makes the runtime open what its poller needs, which it keeps.
func startPoller() {
	if r, w, err := os.Pipe(); err == nil {
		_ = r.Close()
		_ = w.Close()
	}
}

// openFiles lists the descriptors of the process.
func openFiles() map[string]string {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	files := map[string]string{}
	for _, e := range entries {
		what, err := os.Readlink(dir + "/" + e.Name())
		if err == nil { // not the one ReadDir used
			files[e.Name()] = what
		}
	}
	return files
}
