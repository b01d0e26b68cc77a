package vm

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeModule is the smallest ELF file with a .modinfo section.
func fakeModule(modinfo string) []byte {
	names := "\x00.modinfo\x00.shstrtab\x00"
	const header, section = 64, 64
	body := uint64(header)
	var out bytes.Buffer
	put := func(v any) { binary.Write(&out, binary.LittleEndian, v) }
	put(elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Shoff: body + uint64(len(modinfo)+len(names)), Ehsize: header, Shentsize: section, Shnum: 3, Shstrndx: 2,
	})
	out.WriteString(modinfo + names)
	put(elf.Section64{})
	put(elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: body, Size: uint64(len(modinfo))})
	put(elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: body + uint64(len(modinfo)), Size: uint64(len(names))})
	return out.Bytes()
}

func TestModuleDepends(t *testing.T) {
	for modinfo, want := range map[string][]string{
		"license=GPL\x00depends=ib_core,udp_tunnel\x00name=rdma_rxe\x00": {"ib_core", "udp_tunnel"},
		"depends=\x00name=udp_tunnel\x00":                                nil,
		"name=x\x00":                                                     nil,
	} {
		got, err := moduleDepends(fakeModule(modinfo))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := moduleDepends([]byte("not ELF"))
	require.Error(t, err)
}

// tree writes a module tree: file to "depends".
func tree(t *testing.T, files map[string]string, builtin string) *moduleTree {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte(builtin), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "kernel"), 0o700))
	for name, depends := range files {
		image := fakeModule("depends=" + depends + "\x00")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "kernel", name), image, 0o600))
	}
	tr, err := openModuleTree(dir)
	require.NoError(t, err)
	return tr
}

func TestResolveModules(t *testing.T) {
	tr := tree(t, map[string]string{
		"rdma_rxe.ko":       "ib_uverbs,ip6_udp_tunnel,ib_core,crc32",
		"ib_uverbs.ko":      "ib_core",
		"ib_core.ko":        "",
		"ip6-udp-tunnel.ko": "udp-tunnel",
		"udp_tunnel.ko":     "",
		"unused.ko":         "",
		"orphan.ko":         "gone",
	}, "kernel/lib/crc32.ko\nkernel/fs/ext4.ko\n")

	order, err := resolveModules([]string{"ib-uverbs", "rdma_rxe", "ext4", "ib_uverbs"}, tr.load)
	require.NoError(t, err)
	var names []string
	for _, m := range order {
		names = append(names, m.name)
	}
	require.Equal(t, []string{"ib_core", "ib_uverbs", "udp_tunnel", "ip6_udp_tunnel", "rdma_rxe"}, names)

	_, err = resolveModules([]string{"nosuch"}, tr.load)
	require.ErrorContains(t, err, `no module "nosuch"`)
	_, err = resolveModules([]string{"orphan"}, tr.load)
	require.ErrorContains(t, err, "needed by orphan")
}
