package vm

import (
	"fmt"
	"io"
	"path"
)

// cpioEntry is a file, directory or device node of an initramfs.
type cpioEntry struct {
	name         string // relative to the root
	mode         uint32 // type and permissions, as of stat(2)
	data         []byte
	major, minor uint32 // of a device node
}

const (
	modeDir     = 0o040755
	modeFile    = 0o100644
	modeProgram = 0o100755
	modeNode    = 0o020600
)

// writeCPIO writes entries in the "newc" format of the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst, in the given
// order (a directory before what is in it). Same entries, same bytes.
func writeCPIO(w io.Writer, entries []cpioEntry) error {
	cw := &countingWriter{w: w}
	for i, e := range append(entries, cpioEntry{name: "TRAILER!!!"}) {
		name := path.Clean(e.name)
		fmt.Fprintf(cw, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
			i+1, e.mode, 0, 0, 1, 0, len(e.data), 0, 0, e.major, e.minor, len(name)+1, 0, name)
		cw.pad()
		cw.Write(e.data)
		cw.pad()
	}
	return cw.err
}

// countingWriter knows its position, for padding, and keeps the first error.
type countingWriter struct {
	w   io.Writer
	n   int
	err error
}

func (c *countingWriter) Write(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.w.Write(p)
	c.n += n
	c.err = err
	return n, err
}

func (c *countingWriter) pad() { c.Write(make([]byte, -c.n&3)) }

// module is a kernel module, uncompressed.
type module struct {
	name  string
	image []byte
}

// initrdEntries lays out the guest's first file system: PID 1, the device nodes
// that it needs before it has mounted devtmpfs, and the modules, whose file
// names sort in the order of loading.
func initrdEntries(init []byte, modules []module) []cpioEntry {
	entries := []cpioEntry{
		{name: "dev", mode: modeDir},
		{name: "dev/console", mode: modeNode, major: 5, minor: 1},
		{name: "dev/null", mode: modeNode, major: 1, minor: 3},
		{name: "proc", mode: modeDir},
		{name: "modules", mode: modeDir},
		{name: "init", mode: modeProgram, data: init},
	}
	for i, m := range modules {
		name := fmt.Sprintf("modules/%03d-%s.ko", i, m.name)
		entries = append(entries, cpioEntry{name: name, mode: modeFile, data: m.image})
	}
	return entries
}
