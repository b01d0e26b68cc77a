//go:build linux

package abicheck

import (
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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

// headers is what a C compiler made of both headers, by C name.
type headers struct {
	structs   map[string]*dwarf.StructType // complete ones; unions too
	constants map[string]int64
	functions map[string]*dwarf.FuncType // ours_vb_X and real_vb_X
}

// compile reads both headers by way of the compiler's debug information, so
// that nothing which they declare can be forgotten here.
func compile(t *testing.T) headers {
	t.Helper()
	dir := t.TempDir()
	object := filepath.Join(dir, "abi.o")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "abi.c"), []byte(source), 0o600))
	cc := exec.Command("cc", "-g", "-fno-eliminate-unused-debug-types", "-I", "../ibverbs",
		"-c", "-o", object, filepath.Join(dir, "abi.c"))
	out, err := cc.CombinedOutput()
	require.NoError(t, err, "%s", out)

	f, err := elf.Open(object)
	require.NoError(t, err)
	defer f.Close()
	data, err := f.DWARF()
	require.NoError(t, err)
	return read(t, data)
}

func read(t *testing.T, data *dwarf.Data) headers {
	h := headers{
		structs:   map[string]*dwarf.StructType{},
		constants: map[string]int64{},
		functions: map[string]*dwarf.FuncType{},
	}
	for r := data.Reader(); ; {
		entry, err := r.Next()
		require.NoError(t, err)
		if entry == nil {
			return h
		}
		switch entry.Tag {
		case dwarf.TagStructType, dwarf.TagUnionType, dwarf.TagEnumerationType, dwarf.TagTypedef:
			typ, err := data.Type(entry.Offset)
			require.NoError(t, err)
			h.add(typ)
		}
	}
}

func (h headers) add(typ dwarf.Type) {
	switch typ := typ.(type) {
	case *dwarf.StructType:
		if !typ.Incomplete && typ.StructName != "" {
			h.structs[typ.StructName] = typ
		}
	case *dwarf.EnumType:
		for _, v := range typ.Val {
			h.constants[v.Name] = v.Val
		}
	case *dwarf.TypedefType:
		if f, ok := typ.Type.(*dwarf.FuncType); ok {
			h.functions[typ.Name] = f
		}
	}
}

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

// fields are the fields of s, those of anonymous members included.
func fields(s *dwarf.StructType, base int64) map[string]dwarf.StructField {
	all := map[string]dwarf.StructField{}
	for _, f := range s.Field {
		f := *f
		f.ByteOffset += base
		if inner, ok := bare(f.Type).(*dwarf.StructType); ok && f.Name == "" {
			for name, g := range fields(inner, f.ByteOffset) {
				all[name] = g
			}
			continue
		}
		all[f.Name] = f
	}
	return all
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

// bare is t without typedefs and qualifiers; nil is void.
func bare(t dwarf.Type) dwarf.Type {
	for {
		switch u := t.(type) {
		case *dwarf.TypedefType:
			t = u.Type
		case *dwarf.QualType:
			t = u.Type
		case *dwarf.VoidType:
			return nil
		default:
			return t
		}
	}
}

func isNumber(t dwarf.Type) bool {
	switch t.(type) {
	case *dwarf.IntType, *dwarf.UintType, *dwarf.CharType, *dwarf.UcharType, *dwarf.EnumType:
		return true
	}
	return false
}

func size(t dwarf.Type) int64 {
	if t == nil {
		return 0
	}
	return t.Size()
}
