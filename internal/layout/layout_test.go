// Package layout holds the shape of the module: which package may import which,
// and where cgo may be.
package layout

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/verbena-rpc/verbena/"

// rules says for each part of the module which other parts it may import.
// Test files are free. The first rule whose prefix fits a package holds.
var rules = []struct {
	pkg     string   // prefix of the package
	imports []string // prefixes of the packages it may import, of this module
	modules []string // prefixes of packages of other modules
	why     string
}{
	{"pool/pooltest", []string{"pool"}, nil, "a check of the pool for everybody's tests"},
	{"pool", nil, []string{"golang.org/x/sys/"}, "memory is the lowest layer"},
	{"codec/internal/testpb", []string{"codec/fastpb", "rpc"}, []string{"google.golang.org/protobuf/"}, "messages come with the stubs of their file"},
	{"codec", []string{"pool"}, []string{"google.golang.org/protobuf/"}, "codecs know messages and memory, no connection"},
	{"transport/wire", nil, []string{"github.com/cespare/xxhash/"}, "encodings are a pure core"},
	{"transport/tcp", []string{"pool", "transport", "transport/internal/crowd", "transport/internal/quota", "transport/wire"}, []string{"golang.org/x/sys/"}, "links know the contract, not each other"},
	{"transport/rdma/internal/verbs/verbstest", []string{"pool", "transport/rdma/internal/verbs"}, []string{"github.com/stretchr/testify"}, "one suite for every device knows none of them"},
	{"transport/rdma/internal/verbs/rxetest", []string{"transport/rdma/internal/verbs", "transport/rdma/internal/verbs/"}, []string{"golang.org/x/sys/", "github.com/stretchr/testify"}, "one suite for every provider over the kernel is given one"},
	{"transport/rdma/internal/verbs/abicheck", nil, []string{"github.com/stretchr/testify"}, "a comparison of declarations knows none"},
	{"transport/rdma", []string{"pool", "transport", "transport/internal/crowd", "transport/wire", "transport/rdma/"}, []string{"golang.org/x/sys/"}, "links know the contract, not each other"},
	{"transport/linktest", []string{"pool", "pool/pooltest", "transport", "transport/wire"}, []string{"github.com/stretchr/testify"}, "one suite for every link knows none of them"},
	{"transport", []string{"pool", "transport/internal/quota", "transport/wire"}, nil, "the contract knows no implementation"},
	{"rpc", []string{"pool", "codec", "transport", "transport/wire"}, []string{"github.com/valyala/bytebufferpool"}, "calls know lanes, never rdma or tcp"},
}

// kernelPackages may touch the kernel's or a C library's RDMA interface.
const kernelPackages = "transport/rdma/internal/verbs/"

type goPackage struct {
	ImportPath string
	Imports    []string
	CgoFiles   []string
}

func list(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,CgoFiles", module+"...")
	out, err := cmd.Output()
	require.NoError(t, err)
	var pkgs []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return pkgs
		}
		require.NoError(t, err)
		pkgs = append(pkgs, p)
	}
}

func TestImports(t *testing.T) {
	pkgs := list(t)
	require.NotEmpty(t, pkgs)
	checked := map[string]bool{}
	for _, p := range pkgs {
		path := strings.TrimPrefix(p.ImportPath, module)
		for _, r := range rules {
			if !within(path, r.pkg) {
				continue
			}
			checked[r.pkg] = true
			for _, imp := range p.Imports {
				if !allowed(imp, r.imports, r.modules) {
					t.Errorf("%s imports %s: %s", path, imp, r.why)
				}
			}
			break
		}
	}
	for _, r := range rules {
		require.True(t, checked[r.pkg], "no package fits the rule for %q", r.pkg)
	}
}

func TestCgoStaysInOnePlace(t *testing.T) {
	for _, p := range list(t) {
		if len(p.CgoFiles) > 0 && !strings.HasPrefix(p.ImportPath, module+kernelPackages) {
			t.Errorf("%s uses cgo; only packages below %s may", p.ImportPath, kernelPackages)
		}
	}
}

func allowed(imp string, imports, modules []string) bool {
	if own, ok := strings.CutPrefix(imp, module); ok {
		for _, a := range imports {
			if own == a || strings.HasSuffix(a, "/") && strings.HasPrefix(own, a) {
				return true
			}
		}
		return false
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return true // standard library, and "C"
	}
	for _, m := range modules {
		if strings.HasPrefix(imp, m) {
			return true
		}
	}
	return false
}

func within(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}
