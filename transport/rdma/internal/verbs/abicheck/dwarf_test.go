//go:build linux

package abicheck

import (
	"debug/dwarf"
	"fmt"
	"strings"
)

// source has both headers and, for each function that ibverbs loads, the two
// prototypes as types.
const source = `
#include <infiniband/verbs.h>
#include "shim.h"
#define PAIR(ret, fn, symbol, version, params, args) \
	typedef __typeof__(symbol) real_##fn; \
	typedef ret ours_##fn params;
VB_RETURN_POINTER(PAIR)
VB_RETURN_ERRNO(PAIR)
VB_OPTIONAL(PAIR)
`

// differ lists where type ours is not laid out as real. Fields that only real
// has are no difference: a union of which we use one member, or names that
// the equal size accounts for.
func differ(path string, ours, real dwarf.Type) []string {
	ours, real = bare(ours), bare(real)
	mismatch := []string{fmt.Sprintf("%s: ours is %v, %d bytes; libibverbs has %v, %d bytes",
		path, ours, size(ours), real, size(real))}
	if size(ours) != size(real) {
		return mismatch
	}
	switch o := ours.(type) {
	case nil:
		return nil
	case *dwarf.StructType:
		if r, ok := real.(*dwarf.StructType); ok {
			return differFields(path, o, r)
		}
	case *dwarf.ArrayType:
		if r, ok := real.(*dwarf.ArrayType); ok && o.Count == r.Count {
			return differ(path+"[]", o.Type, r.Type)
		}
	case *dwarf.PtrType:
		if r, ok := real.(*dwarf.PtrType); ok {
			return differPointees(path, o, r)
		}
	default:
		if isNumber(real) {
			return nil
		}
	}
	return mismatch
}

func differFields(path string, ours, real *dwarf.StructType) (diffs []string) {
	found := fields(real, 0)
	for name, o := range fields(ours, 0) {
		r, ok := found[name]
		switch {
		case !ok:
			diffs = append(diffs, fmt.Sprintf("%s.%s: libibverbs has no such field", path, name))
		case o.ByteOffset != r.ByteOffset:
			diffs = append(diffs, fmt.Sprintf("%s.%s: offset %d, libibverbs has %d", path, name, o.ByteOffset, r.ByteOffset))
		default:
			diffs = append(diffs, differ(path+"."+name, o.Type, r.Type)...)
		}
	}
	return diffs
}

// differPointees compares pointers to structures by name, since each
// structure is compared once by itself.
func differPointees(path string, ours, real *dwarf.PtrType) []string {
	switch o := bare(ours.Type).(type) {
	case *dwarf.FuncType:
		if r, ok := bare(real.Type).(*dwarf.FuncType); ok {
			return differFunctions(path, o, r)
		}
	case *dwarf.StructType:
		if r, ok := bare(real.Type).(*dwarf.StructType); ok && plain(o.StructName) == plain(r.StructName) {
			return nil
		}
	case *dwarf.PtrType:
		if r, ok := bare(real.Type).(*dwarf.PtrType); ok {
			return differPointees(path, o, r)
		}
	default:
		if size(o) == size(bare(real.Type)) {
			return nil
		}
	}
	return []string{fmt.Sprintf("%s: points to %v, in libibverbs to %v", path, ours.Type, real.Type)}
}

func differFunctions(path string, ours, real *dwarf.FuncType) []string {
	if len(ours.ParamType) != len(real.ParamType) {
		return []string{fmt.Sprintf("%s: %d parameters, libibverbs has %d", path, len(ours.ParamType), len(real.ParamType))}
	}
	diffs := differ(path+" result", ours.ReturnType, real.ReturnType)
	for i := range ours.ParamType {
		diffs = append(diffs, differ(fmt.Sprintf("%s parameter %d", path, i+1), ours.ParamType[i], real.ParamType[i])...)
	}
	return diffs
}

// plain is the name that both headers share.
func plain(name string) string {
	name = strings.TrimPrefix(name, "_compat_")
	return strings.TrimPrefix(strings.TrimPrefix(name, "ibv_"), "vb_")
}

func isNumber(t dwarf.Type) bool {
	switch t.(type) {
	case *dwarf.IntType, *dwarf.UintType, *dwarf.CharType, *dwarf.UcharType, *dwarf.EnumType:
		return true
	}
	return false
}
