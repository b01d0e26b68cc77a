package vm

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bzImage with one sector of set-up code, and its payload 16 bytes behind.
func bzImage(payload []byte) []byte {
	b := make([]byte, 2*512+16)
	b[0x1f1] = 1
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x206:], 0x20f)
	binary.LittleEndian.PutUint32(b[0x248:], 16)
	binary.LittleEndian.PutUint32(b[0x24c:], uint32(len(payload)))
	return append(b, payload...)
}

func TestKernelPayload(t *testing.T) {
	got, err := kernelPayload(bzImage([]byte("payload")))
	require.NoError(t, err)
	require.Equal(t, "payload", string(got))

	old := bzImage(nil)
	old[0x206], old[0x207] = 7, 2
	long := bzImage([]byte("x"))
	binary.LittleEndian.PutUint32(long[0x24c:], 0xffffffff)
	for want, b := range map[string][]byte{
		"not a bzImage":       make([]byte, 4096),
		"is older than 0x208": old,
		"of 1041 bytes":       long,
	} {
		_, err := kernelPayload(b)
		require.ErrorContains(t, err, want)
	}
	_, err = kernelPayload(nil)
	require.ErrorContains(t, err, "not a bzImage")
}

// putKernel makes a kernel in a cache, as setup leaves it before unpacking.
func putKernel(t *testing.T, cache, key, release string, image []byte) {
	boot := filepath.Join(cache, kernelDir, key, "boot")
	require.NoError(t, os.MkdirAll(boot, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(boot, "vmlinuz-"+release), image, 0o600))
	modules := filepath.Join(cache, kernelDir, key, "lib", "modules", release)
	require.NoError(t, os.MkdirAll(filepath.Join(modules, "kernel"), 0o700))
	builtin := ""
	for _, m := range baseModules {
		builtin += "kernel/" + m + ".ko\n"
	}
	require.NoError(t, os.WriteFile(filepath.Join(modules, "modules.builtin"), []byte(builtin), 0o600))
}

func TestFindKernel(t *testing.T) {
	cache := t.TempDir()
	_, err := findKernel(cache)
	require.ErrorIs(t, err, ErrNoKernel)

	putKernel(t, cache, "linux-image-6.1.0-57-amd64_6.1.192-3", "6.1.0-57-amd64", nil)
	k, err := findKernel(cache)
	require.NoError(t, err)
	require.Equal(t, "linux-image-6.1.0-57-amd64_6.1.192-3", k.key)
	require.Equal(t, "6.1.0-57-amd64", filepath.Base(k.modules))
	require.DirExists(t, k.modules)
	require.Equal(t, k.image, k.bootImage())
}

func TestUnpackImage(t *testing.T) {
	xz := exec.Command("xz", "-c")
	xz.Stdin = bytes.NewReader([]byte("vmlinux"))
	payload, err := xz.Output()
	if err != nil {
		t.Skip("no xz here: ", err)
	}
	cache := t.TempDir()
	putKernel(t, cache, "linux-image-1", "1", bzImage(append(payload, 7, 0, 0, 0)))
	k, err := findKernel(cache)
	require.NoError(t, err)
	require.NoError(t, k.unpackImage())
	require.Equal(t, "vmlinux-1", filepath.Base(k.bootImage()))
	got, err := os.ReadFile(k.bootImage())
	require.NoError(t, err)
	require.Equal(t, "vmlinux", string(got))
	require.NoError(t, k.unpackImage())
}

func TestUnpackImageLeavesOtherCompressionsToTheKernel(t *testing.T) {
	cache := t.TempDir()
	putKernel(t, cache, "linux-image-1", "1", bzImage([]byte("\x28\xb5\x2f\xfd zstd")))
	k, err := findKernel(cache)
	require.NoError(t, err)
	require.NoError(t, k.unpackImage())
	require.Equal(t, k.image, k.bootImage())
}

// elfProgram is the smallest ELF file that is static, or not.
func elfProgram(dynamic bool) []byte {
	b := fakeModule("")
	if dynamic {
		binary.LittleEndian.PutUint64(b[32:], uint64(len(b))) // program headers here
		binary.LittleEndian.PutUint16(b[54:], 56)
		binary.LittleEndian.PutUint16(b[56:], 1)
		ph := make([]byte, 56)
		ph[0] = 3 // PT_INTERP
		b = append(b, ph...)
	}
	return b
}

func TestEnsureInitrd(t *testing.T) {
	cache := t.TempDir()
	putKernel(t, cache, "linux-image-1", "1", nil)
	k, err := findKernel(cache)
	require.NoError(t, err)
	init := filepath.Join(t.TempDir(), "init")
	require.NoError(t, os.WriteFile(init, elfProgram(false), 0o600))

	first, err := ensureInitrd(cache, k, init, nil)
	require.NoError(t, err)
	b, err := os.ReadFile(first)
	require.NoError(t, err)
	entries, err := readCPIO(b)
	require.NoError(t, err)
	require.Equal(t, "init", entries[len(entries)-1].name) // all modules are built in
	require.Equal(t, elfProgram(false), entries[len(entries)-1].data)

	again, err := ensureInitrd(cache, k, init, nil)
	require.NoError(t, err)
	require.Equal(t, first, again)

	other, err := ensureInitrd(cache, k, init, []string{"veth"})
	require.NoError(t, err)
	require.NotEqual(t, first, other)

	long := time.Now().Add(-2 * initrdAge)
	require.NoError(t, os.Chtimes(first, long, long))
	_, err = ensureInitrd(cache, k, init, []string{"veth", "9p"})
	require.NoError(t, err)
	require.NoFileExists(t, first)
	require.FileExists(t, other)

	require.NoError(t, os.WriteFile(init, elfProgram(true), 0o600))
	_, err = ensureInitrd(cache, k, init, nil)
	require.ErrorIs(t, err, ErrNotStatic)
}

func TestWriteAtomicallyLeavesNothingHalf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "file")
	err := writeAtomically(path, func(w io.Writer) error {
		w.Write([]byte("half"))
		return errFull
	})
	require.ErrorIs(t, err, errFull)
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Empty(t, left)
}
