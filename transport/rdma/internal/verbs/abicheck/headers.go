//go:build linux

// Package abicheck compares structures, constants and prototypes that this
// project declares itself with the system's headers. Its own test does so for
// packages verbs and ibverbs and infiniband/verbs.h, apart from them because
// it needs a C compiler and that header (libibverbs-dev), which nothing else
// does.
package abicheck

import (
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Require skips, with the reason, where a header of the system cannot be
// compiled; VERBENA_REQUIRE_RDMA_HEADERS=1 makes that a failure.
func Require(t *testing.T, header, debian string) {
	t.Helper()
	reason := ""
	if _, err := exec.LookPath("cc"); err != nil {
		reason = "no C compiler (cc)"
	} else if err := exec.Command("sh", "-c", "echo '#include <"+header+">' | cc -E -x c -").Run(); err != nil {
		reason = fmt.Sprintf("no %s (package %s)", header, debian)
	}
	switch {
	case reason == "":
	case os.Getenv("VERBENA_REQUIRE_RDMA_HEADERS") == "1":
		t.Fatal(reason)
	default:
		t.Skip(reason)
	}
}

// Headers is what a C compiler made of a source file, by C name.
type Headers struct {
	Structs   map[string]*dwarf.StructType // complete ones; unions too
	Constants map[string]int64             // enumerators
	Functions map[string]*dwarf.FuncType   // those that a typedef names
}

// Compile reads what a source file declares by way of the compiler's debug
// information, so that nothing can be forgotten.
func Compile(t *testing.T, source string, flags ...string) Headers {
	t.Helper()
	dir := t.TempDir()
	object := filepath.Join(dir, "abi.o")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "abi.c"), []byte(source), 0o600))
	args := append([]string{"-g", "-fno-eliminate-unused-debug-types"}, flags...)
	cc := exec.Command("cc", append(args, "-c", "-o", object, filepath.Join(dir, "abi.c"))...)
	out, err := cc.CombinedOutput()
	require.NoError(t, err, "%s", out)

	f, err := elf.Open(object)
	require.NoError(t, err)
	defer f.Close()
	data, err := f.DWARF()
	require.NoError(t, err)
	return read(t, data)
}

func read(t *testing.T, data *dwarf.Data) Headers {
	h := Headers{
		Structs:   map[string]*dwarf.StructType{},
		Constants: map[string]int64{},
		Functions: map[string]*dwarf.FuncType{},
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

func (h Headers) add(typ dwarf.Type) {
	switch typ := typ.(type) {
	case *dwarf.StructType:
		if !typ.Incomplete && typ.StructName != "" {
			h.Structs[typ.StructName] = typ
		}
	case *dwarf.EnumType:
		for _, v := range typ.Val {
			h.Constants[v.Name] = v.Val
		}
	case *dwarf.TypedefType:
		if f, ok := typ.Type.(*dwarf.FuncType); ok {
			h.Functions[typ.Name] = f
		}
	}
}

// DifferGo lists the fields of a Go structure that are not laid out as those of
// the same name in C. names has the C names that are other words.
func DifferGo(ours reflect.Type, real *dwarf.StructType, names map[string]string) (diffs []string) {
	found := map[string]dwarf.StructField{}
	for name, f := range fields(real, 0) {
		found[strings.ReplaceAll(name, "_", "")] = f
	}
	for f := range ours.Fields() {
		if f.Name == "_" {
			continue
		}
		cName, ok := names[f.Name]
		if !ok {
			cName = strings.ToLower(f.Name)
		}
		r, ok := found[strings.ReplaceAll(cName, "_", "")]
		if !ok || int64(f.Offset) != r.ByteOffset || int64(f.Type.Size()) != size(bare(r.Type)) {
			diffs = append(diffs, fmt.Sprintf("%s.%s: offset %d, %d bytes; %s.%s: offset %d, %d bytes (there: %v)",
				ours.Name(), f.Name, f.Offset, f.Type.Size(), real.StructName, r.Name, r.ByteOffset, size(bare(r.Type)), ok))
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

func size(t dwarf.Type) int64 {
	if t == nil {
		return 0
	}
	return t.Size()
}
