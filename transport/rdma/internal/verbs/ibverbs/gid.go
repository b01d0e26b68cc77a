//go:build linux && cgo

package ibverbs

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs/uobject"
)

func (d *device) QueryGIDs(port uint8) ([]verbs.GIDEntry, error) {
	attr, err := d.QueryPort(port)
	if err != nil {
		return nil, err
	}
	if C.vb_has_query_gid_table() != 0 {
		return d.gidTable(port)
	}
	return d.gidsOneByOne(port, attr.GIDTable)
}

// gidTable reads the tables of all ports in one call and keeps one port's.
func (d *device) gidTable(port uint8) ([]verbs.GIDEntry, error) {
	const op = "ibv_query_gid_table"
	size, err := d.gidTableSize()
	if err != nil || size == 0 {
		return nil, err
	}
	table := make([]C.struct_vb_gid_entry, size)
	n := C.vb_query_gid_table(d.ctx, &table[0], C.size_t(size), 0, C.size_t(unsafe.Sizeof(table[0])))
	if n < 0 {
		return nil, uobject.Failure(op, d.Name(), syscall.Errno(-n))
	}
	var entries []verbs.GIDEntry
	for _, e := range table[:n] {
		gid := *(*verbs.GID)(unsafe.Pointer(&e.gid))
		if e.port_num != C.uint32_t(port) || gid == (verbs.GID{}) {
			continue
		}
		entries = append(entries, verbs.GIDEntry{
			Index:  int(e.gid_index),
			GID:    gid,
			Type:   verbs.GIDType(e.gid_type),
			NetDev: uobject.InterfaceName(int(e.ndev_ifindex)),
		})
	}
	return entries, nil
}

// gidTableSize is the number of entries of all ports together.
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
	return size, nil
}

// gidsOneByOne is for libraries without ibv_query_gid_table: sysfs has the
// type and the network interface of each entry.
func (d *device) gidsOneByOne(port uint8, size int) ([]verbs.GIDEntry, error) {
	const op = "ibv_query_gid"
	attrs := filepath.Join("/sys/class/infiniband", d.Name(), "ports", strconv.Itoa(int(port)), "gid_attrs")
	var entries []verbs.GIDEntry
	for i := range size {
		var gid verbs.GID
		err := errnoOf(C.vb_query_gid(d.ctx, C.uint8_t(port), C.int(i), (*C.union_vb_gid)(unsafe.Pointer(&gid))))
		if err != nil {
			return nil, uobject.Failure(op, fmt.Sprintf("%s, GID %d", uobject.PortName(d.Name(), port), i), err)
		}
		if gid == (verbs.GID{}) {
			continue
		}
		entries = append(entries, verbs.GIDEntry{
			Index:  i,
			GID:    gid,
			Type:   gidType(readSysfs(attrs, "types", i)),
			NetDev: readSysfs(attrs, "ndevs", i),
		})
	}
	return entries, nil
}

// gidType reads the names of drivers/infiniband/core/roce_gid_mgmt.c. IB and
// RoCE v1 share one.
func gidType(name string) verbs.GIDType {
	switch name {
	case "RoCE v2":
		return verbs.GIDRoCEv2
	case "IB/RoCE v1":
		return verbs.GIDRoCEv1
	}
	return verbs.GIDInfiniBand
}

func readSysfs(dir, kind string, index int) string {
	b, err := os.ReadFile(filepath.Join(dir, kind, strconv.Itoa(index)))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
