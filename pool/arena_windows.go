package pool

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

func mapPages(size int) ([]byte, error) {
	addr, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, err
	}
	// The address is the system's, not the heap's: reading it through a
	// pointer to addr says so without a uintptr-to-Pointer conversion.
	mem := unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), size)
	for i := 0; i < size; i += os.Getpagesize() {
		mem[i] = 0 // a write makes the page present
	}
	return mem, nil
}

func unmapPages(mem []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(mem))), 0, windows.MEM_RELEASE)
}
