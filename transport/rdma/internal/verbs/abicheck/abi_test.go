//go:build linux

// Package abicheck holds the structures, constants and prototypes that
// packages verbs and ibverbs declare themselves against the system's
// infiniband/verbs.h. It is a package of its own because it needs a C
// compiler and that header (libibverbs-dev), which nothing else does.
package abicheck

import (
	"debug/dwarf"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

// requireHeader skips, with the reason, where the comparison cannot be made;
// VERBENA_REQUIRE_RDMA_HEADERS=1 makes that a failure.
func requireHeader(t *testing.T) {
	t.Helper()
	reason := ""
	if _, err := exec.LookPath("cc"); err != nil {
		reason = "no C compiler (cc)"
	} else if err := exec.Command("sh", "-c", "echo '#include <infiniband/verbs.h>' | cc -E -x c -").Run(); err != nil {
		reason = "no infiniband/verbs.h (package libibverbs-dev)"
	}
	switch {
	case reason == "":
	case os.Getenv("VERBENA_REQUIRE_RDMA_HEADERS") == "1":
		t.Fatal(reason)
	default:
		t.Skip(reason)
	}
}

func TestABI(t *testing.T) {
	requireHeader(t)
	h := compile(t)
	t.Run("structures", func(t *testing.T) { checkStructs(t, h) })
	t.Run("prototypes", func(t *testing.T) { checkFunctions(t, h) })
	t.Run("C constants", func(t *testing.T) { checkCConstants(t, h) })
	t.Run("Go constants", func(t *testing.T) { checkGoConstants(t, h) })
	t.Run("Go structures", func(t *testing.T) { checkGoStructs(t, h) })
}

// shimOnly are names of shim.h that libibverbs has no counterpart of.
var shimOnly = map[string]bool{
	"vb_send_req": true, "vb_recv_req": true, "vb_event": true, "vb_posted": true,
	"VB_WAKE_TIMEOUT": true, "VB_WAKE_EVENT": true, "VB_WAKE_CALL": true,
}

func checkStructs(t *testing.T, h headers) {
	checked := 0
	for name, ours := range h.structs {
		if !strings.HasPrefix(name, "vb_") || shimOnly[name] {
			continue
		}
		real := h.structs["ibv_"+plain(name)]
		if real == nil {
			t.Errorf("libibverbs has no structure for %s", name)
			continue
		}
		checked++
		for _, d := range differ(name, ours, real) {
			t.Error(d)
		}
	}
	require.Greater(t, checked, 20, "the debug information was not read")
}

func checkFunctions(t *testing.T, h headers) {
	checked := 0
	for name, ours := range h.functions {
		fn, ok := strings.CutPrefix(name, "ours_")
		if !ok {
			continue
		}
		real := h.functions["real_"+fn]
		require.NotNil(t, real, fn)
		checked++
		for _, d := range differFunctions(fn, ours, real) {
			t.Error(d)
		}
	}
	require.Greater(t, checked, 20, "the debug information was not read")
}

func checkCConstants(t *testing.T, h headers) {
	checked := 0
	for name, ours := range h.constants {
		if !strings.HasPrefix(name, "VB_") || shimOnly[name] {
			continue
		}
		checked++
		real, ok := h.constants["I"+strings.Replace(name, "VB_", "BV_", 1)]
		if !ok || ours != real {
			t.Errorf("%s is %d, in libibverbs it is %d (there: %v)", name, ours, real, ok)
		}
	}
	require.Greater(t, checked, 20, "the debug information was not read")
}

func checkGoConstants(t *testing.T, h headers) {
	ours := goConstants(t)
	for name, value := range ours {
		cName, ok := constants[name]
		if !ok {
			t.Errorf("verbs.%s is not in the table of constants", name)
			continue
		}
		real, ok := h.constants[cName]
		if !ok || value != real {
			t.Errorf("verbs.%s is %d, %s is %d (there: %v)", name, value, cName, real, ok)
		}
	}
	for name := range constants {
		if _, ok := ours[name]; !ok {
			t.Errorf("package verbs has no constant %s", name)
		}
	}
}

// goConstants are the exported integer constants of package verbs, read from
// its source.
func goConstants(t *testing.T) map[string]int64 {
	t.Helper()
	files, err := filepath.Glob("../*.go")
	require.NoError(t, err)
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		p, err := parser.ParseFile(fset, f, nil, 0)
		require.NoError(t, err)
		parsed = append(parsed, p)
	}
	// No constant depends on an import, so none is resolved.
	config := types.Config{Error: func(error) {}}
	pkg, _ := config.Check("verbs", fset, parsed, nil)

	values := map[string]int64{}
	for _, name := range pkg.Scope().Names() {
		c, ok := pkg.Scope().Lookup(name).(*types.Const)
		if !ok || !c.Exported() {
			continue
		}
		if v, exact := constant.Int64Val(c.Val()); exact {
			values[name] = v
		}
	}
	return values
}

// checkGoStructs compares the Go structures that cross into C as they are.
func checkGoStructs(t *testing.T, h headers) {
	for _, c := range []struct {
		ours  reflect.Type
		cName string
		names map[string]string // of fields whose C name is another word
	}{
		{reflect.TypeFor[verbs.SendWR](), "vb_send_req", nil},
		{reflect.TypeFor[verbs.RecvWR](), "vb_recv_req", nil},
		{reflect.TypeFor[verbs.WC](), "ibv_wc", map[string]string{
			"ID": "wr_id", "ImmBE": "imm_data", "Flags": "wc_flags", "DLIDBits": "dlid_path_bits",
		}},
		{reflect.TypeFor[verbs.GID](), "ibv_gid", nil},
	} {
		real := h.structs[c.cName]
		require.NotNil(t, real, c.cName)
		if got := int64(c.ours.Size()); got != real.Size() {
			t.Errorf("verbs.%s has %d bytes, %s has %d", c.ours.Name(), got, c.cName, real.Size())
		}
		if c.ours.Kind() == reflect.Struct {
			for _, d := range differGo(c.ours, real, c.names) {
				t.Error(d)
			}
		}
	}
}

func differGo(ours reflect.Type, real *dwarf.StructType, names map[string]string) (diffs []string) {
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
			diffs = append(diffs, fmt.Sprintf("verbs.%s.%s: offset %d, %d bytes; %s.%s: offset %d, %d bytes (there: %v)",
				ours.Name(), f.Name, f.Offset, f.Type.Size(), real.StructName, r.Name, r.ByteOffset, size(bare(r.Type)), ok))
		}
	}
	return diffs
}
