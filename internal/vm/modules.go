package vm

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// baseModules is what the guest needs; their dependencies come from the modules
// themselves. rdma_rxe asks the crypto API for crc32 by name at run time, which
// no dependency shows.
var baseModules = []string{
	"virtio_pci", "virtio_console", // the control port
	"9pnet_virtio", "9p", "overlay", // the root
	"crc32_generic", "crc32_pclmul", "rdma_rxe", "ib_uverbs", "rdma_ucm", "veth",
	"sch_netem", "sch_ingress", "cls_u32", "cls_matchall", "cls_basic", "em_cmp", "act_gact", // faults on the wire
	"tcp_diag", // ss -K, which resets connections
}

// moduleTree finds and reads the modules of one kernel release. Module names
// use '_' where file names may have '-'.
type moduleTree struct {
	files   map[string]string // name to path
	builtin map[string]bool
}

func moduleName(file string) string {
	base, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(base, "-", "_")
}

// openModuleTree reads a directory such as lib/modules/6.1.0-57-amd64.
func openModuleTree(dir string) (*moduleTree, error) {
	t := &moduleTree{files: map[string]string{}, builtin: map[string]bool{}}
	list, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	for f := range strings.FieldsSeq(string(list)) {
		t.builtin[moduleName(f)] = true
	}
	err = filepath.WalkDir(filepath.Join(dir, "kernel"), func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(d.Name(), ".ko") {
			t.files[moduleName(p)] = p
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	return t, nil
}

// load reads a module; present is false for one built into the kernel.
func (t *moduleTree) load(name string) (image []byte, present bool, err error) {
	if t.builtin[name] {
		return nil, false, nil
	}
	file, ok := t.files[name]
	if !ok {
		return nil, false, fmt.Errorf("the kernel has no module %q", name)
	}
	if strings.HasSuffix(file, ".xz") { // Debian 13 on
		image, err = exec.Command("xz", "-dc", file).Output()
	} else {
		image, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read module %s: %w", file, err)
	}
	return image, true, nil
}

// resolveModules returns the wanted modules and all they depend on, each once
// and after its dependencies. Debian's package has no modules.dep (depmod writes
// it on installation), so the "depends" entry of each module is read instead,
// from which depmod would make it.
func resolveModules(wanted []string, load func(name string) ([]byte, bool, error)) ([]module, error) {
	var order []module
	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		name = strings.ReplaceAll(name, "-", "_")
		if seen[name] {
			return nil
		}
		seen[name] = true
		image, present, err := load(name)
		if err != nil || !present {
			return err
		}
		deps, err := moduleDepends(image)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, d := range deps {
			if err := visit(d); err != nil {
				return fmt.Errorf("%w (needed by %s)", err, name)
			}
		}
		order = append(order, module{name, image})
		return nil
	}
	for _, name := range wanted {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleDepends reads which modules have to be loaded before this one. Soft
// dependencies are left out: the kernel works without them.
func moduleDepends(image []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no .modinfo section")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for _, entry := range bytes.Split(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(entry, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ","), nil
		}
	}
	return nil, nil
}
