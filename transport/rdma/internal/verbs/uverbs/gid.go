//go:build linux

package uverbs

import (
	"math"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-rpc/verbena/pool"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

// QueryGIDs asks for the tables of all ports at once, by the one ioctl of this
// package (Linux 5.10), and keeps one port's: in sysfs it would be three files
// for each of rxe's 1,024 entries.
func (d *device) QueryGIDs(port uint8) ([]verbs.GIDEntry, error) {
	const op = "ibv_query_gid_table"
	if _, err := d.QueryPort(port); err != nil {
		return nil, err
	}
	size, err := d.gidTableSize()
	if err != nil || size == 0 {
		return nil, err
	}
	mem, err := pool.NewArena(int(unsafe.Sizeof(gidQuery{})) + size*int(unsafe.Sizeof(gidEntry{})))
	if err != nil {
		return nil, uobject.Failure(op, d.Name(), err)
	}
	defer mem.Close()
	q := (*gidQuery)(unsafe.Pointer(&mem.Bytes()[0]))
	table := unsafe.Slice((*gidEntry)(unsafe.Add(unsafe.Pointer(q), unsafe.Sizeof(*q))), size)
	q.fill(table)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), rdmaVerbsIoctl, uintptr(unsafe.Pointer(q))); errno != 0 {
		return nil, uobject.Failure(op, d.Name(), errno)
	}
	var entries []verbs.GIDEntry
	for _, e := range table[:min(q.found, uint64(size))] {
		if e.portNum == uint32(port) && e.gid != (verbs.GID{}) {
			entries = append(entries, verbs.GIDEntry{
				Index: int(e.gidIndex), GID: e.gid, Type: verbs.GIDType(e.gidType), NetDev: uobject.InterfaceName(int(e.netdevIfindex)),
			})
		}
	}
	return entries, nil
}

// gidTableSize is the number of entries of all ports together, or as many as
// the length of an answer, 16 bits, can count.
func (d *device) gidTableSize() (int, error) {
	dev, err := d.Query()
	if err != nil {
		return 0, err
	}
	size := 0
	for p := range dev.Ports {
		attr, err := d.QueryPort(p + 1)
		if err != nil {
			return 0, err
		}
		size += attr.GIDTable
	}
	return min(size, math.MaxUint16/int(unsafe.Sizeof(gidEntry{}))), nil
}

// gidQuery is the command with its answer's length, in memory outside the Go
// heap.
type gidQuery struct {
	head  ioctlHdr
	attrs [3]ioctlAttr
	found uint64 // entries
}

func (q *gidQuery) fill(table []gidEntry) {
	const entry = unsafe.Sizeof(gidEntry{})
	q.head = ioctlHdr{
		length:   uint16(unsafe.Offsetof(q.found)),
		objectID: objectDevice, methodID: methodQueryGIDTable, numAttrs: uint16(len(q.attrs)), driverID: driverRXE,
	}
	q.attrs = [3]ioctlAttr{
		{attrID: attrEntrySize, len: 8, flags: attrMandatory, data: uint64(entry)},
		{attrID: attrRespEntries, len: uint16(uintptr(len(table)) * entry), flags: attrMandatory, data: address(&table[0])},
		{attrID: attrRespNumEntries, len: 8, flags: attrMandatory, data: address(&q.found)},
	}
}
