//go:build linux

package abicheck

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rpc/verbena/transport/rdma/internal/verbs"
)

func TestABI(t *testing.T) {
	Require(t, "infiniband/verbs.h", "libibverbs-dev")
	h := Compile(t, source, "-I", "../ibverbs")
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

func checkStructs(t *testing.T, h Headers) {
	checked := 0
	for name, ours := range h.Structs {
		if !strings.HasPrefix(name, "vb_") || shimOnly[name] {
			continue
		}
		real := h.Structs["ibv_"+plain(name)]
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

func checkFunctions(t *testing.T, h Headers) {
	checked := 0
	for name, ours := range h.Functions {
		fn, ok := strings.CutPrefix(name, "ours_")
		if !ok {
			continue
		}
		real := h.Functions["real_"+fn]
		require.NotNil(t, real, fn)
		checked++
		for _, d := range differFunctions(fn, ours, real) {
			t.Error(d)
		}
	}
	require.Greater(t, checked, 20, "the debug information was not read")
}

func checkCConstants(t *testing.T, h Headers) {
	checked := 0
	for name, ours := range h.Constants {
		if !strings.HasPrefix(name, "VB_") || shimOnly[name] {
			continue
		}
		checked++
		real, ok := h.Constants["I"+strings.Replace(name, "VB_", "BV_", 1)]
		if !ok || ours != real {
			t.Errorf("%s is %d, in libibverbs it is %d (there: %v)", name, ours, real, ok)
		}
	}
	require.Greater(t, checked, 20, "the debug information was not read")
}

func checkGoConstants(t *testing.T, h Headers) {
	ours := goConstants(t)
	for name, value := range ours {
		cName, ok := constants[name]
		if !ok {
			t.Errorf("verbs.%s is not in the table of constants", name)
			continue
		}
		real, ok := h.Constants[cName]
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
func checkGoStructs(t *testing.T, h Headers) {
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
		real := h.Structs[c.cName]
		require.NotNil(t, real, c.cName)
		if got := int64(c.ours.Size()); got != real.Size() {
			t.Errorf("verbs.%s has %d bytes, %s has %d", c.ours.Name(), got, c.cName, real.Size())
		}
		if c.ours.Kind() == reflect.Struct {
			for _, d := range DifferGo(c.ours, real, c.names) {
				t.Error(d)
			}
		}
	}
}
