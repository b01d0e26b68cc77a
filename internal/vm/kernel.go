package vm

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// CacheDir is where kernel and initrd are kept: $VERBENA_CACHE, or "verbena"
// in the user's cache directory. It may be deleted at any time.
func CacheDir() (string, error) {
	if dir := os.Getenv("VERBENA_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory, set VERBENA_CACHE: %w", err)
	}
	return filepath.Join(dir, "verbena"), nil
}

// kernel is an unpacked kernel package in the cache:
// kernel/<package>_<version>/{boot/vmlinuz-<release>,lib/modules/<release>}.
type kernel struct {
	key     string // <package>_<version>
	image   string // the compressed image of the package
	modules string
}

const kernelDir = "kernel"

// findKernel returns the newest kernel in the cache, or ErrNoKernel.
func findKernel(cache string) (kernel, error) {
	images, _ := filepath.Glob(filepath.Join(cache, kernelDir, "linux-image-*", "boot", "vmlinuz-*"))
	if len(images) == 0 {
		return kernel{}, fmt.Errorf("%w: looked in %s", ErrNoKernel, cache)
	}
	image := slices.MaxFunc(images, func(a, b string) int { return modTime(a).Compare(modTime(b)) })
	root := filepath.Dir(filepath.Dir(image))
	release := strings.TrimPrefix(filepath.Base(image), "vmlinuz-")
	return kernel{
		key:     filepath.Base(root),
		image:   image,
		modules: filepath.Join(root, "lib", "modules", release),
	}, nil
}

// bootImage is what QEMU boots: the unpacked kernel where there is one. The
// guest needs 4 s of emulation to unpack it, two thirds of a boot; QEMU starts
// an unpacked one by its PVH entry point.
func (k kernel) bootImage() string {
	if _, err := os.Stat(k.unpackedImage()); err == nil {
		return k.unpackedImage()
	}
	return k.image
}

func (k kernel) unpackedImage() string {
	return filepath.Join(filepath.Dir(k.image), strings.Replace(filepath.Base(k.image), "vmlinuz-", "vmlinux-", 1))
}

// unpackImage makes the unpacked kernel, unless it is there or the image is
// compressed with something else than xz, which costs time but works.
func (k kernel) unpackImage() error {
	if k.bootImage() != k.image {
		return nil
	}
	bzImage, err := os.ReadFile(k.image)
	if err != nil {
		return fmt.Errorf("read kernel: %w", err)
	}
	payload, err := kernelPayload(bzImage)
	if err != nil {
		return fmt.Errorf("%s: %w", k.image, err)
	}
	if !bytes.HasPrefix(payload, []byte("\xfd7zXZ\x00")) {
		return nil
	}
	return writeAtomically(k.unpackedImage(), func(w io.Writer) error {
		xz := exec.Command("xz", "-dc", "--single-stream") // the image's size follows the stream
		xz.Stdin, xz.Stdout = bytes.NewReader(payload), w
		return xz.Run()
	})
}

// kernelPayload finds the compressed kernel in a bzImage by its setup header
// (Documentation/x86/boot.rst, protocol 2.08 on).
func kernelPayload(bzImage []byte) ([]byte, error) {
	const setupSects, magic, version, offset, length, headerEnd = 0x1f1, 0x202, 0x206, 0x248, 0x24c, 0x250
	if len(bzImage) < headerEnd || string(bzImage[magic:magic+4]) != "HdrS" {
		return nil, errors.New("not a bzImage")
	}
	if v := binary.LittleEndian.Uint16(bzImage[version:]); v < 0x208 {
		return nil, fmt.Errorf("boot protocol %#x is older than 0x208", v)
	}
	start := (uint64(bzImage[setupSects])+1)*512 + uint64(binary.LittleEndian.Uint32(bzImage[offset:]))
	end := start + uint64(binary.LittleEndian.Uint32(bzImage[length:]))
	if end > uint64(len(bzImage)) {
		return nil, fmt.Errorf("payload ends at %d of %d bytes", end, len(bzImage))
	}
	return bzImage[start:end], nil
}

func modTime(path string) time.Time {
	if st, err := os.Stat(path); err == nil {
		return st.ModTime()
	}
	return time.Time{}
}

// initrdFormat changes whenever initrdEntries lays things out differently.
const initrdFormat = 1

// initrdAge is how long an unused initrd stays: each build of PID 1 leaves one.
const initrdAge = 24 * time.Hour

// ensureInitrd returns the path of an initrd of this kernel, PID 1 and list of
// modules, written unless the cache has it. It is left uncompressed: the guest
// would take longer to unpack it than QEMU takes to copy it.
func ensureInitrd(cache string, k kernel, initPath string, extra []string) (string, error) {
	init, err := os.ReadFile(initPath)
	if err != nil {
		return "", fmt.Errorf("read PID 1: %w", err)
	}
	if err := checkStatic(init); err != nil {
		return "", fmt.Errorf("%s: %w", initPath, err)
	}
	wanted := append(slices.Clone(baseModules), extra...)
	hash := sha256.New()
	fmt.Fprintf(hash, "%d %s %q ", initrdFormat, k.key, wanted)
	hash.Write(init)
	path := filepath.Join(cache, "initrd", fmt.Sprintf("%x.cpio", hash.Sum(nil)[:8]))
	if _, err := os.Stat(path); err == nil {
		now := time.Now()
		os.Chtimes(path, now, now) // in use; a cache that cannot be written is fine
		return path, nil
	}
	tree, err := openModuleTree(k.modules)
	if err != nil {
		return "", err
	}
	modules, err := resolveModules(wanted, tree.load)
	if err != nil {
		return "", err
	}
	removeOld(filepath.Dir(path))
	return path, writeAtomically(path, func(w io.Writer) error {
		return writeCPIO(w, initrdEntries(init, modules))
	})
}

// checkStatic refuses a program that asks for a dynamic loader: the initrd has none.
func checkStatic(image []byte) error {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotStatic, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return ErrNotStatic
		}
	}
	return nil
}

// removeOld forgets initrds that have not been used for a while.
func removeOld(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range files {
		if time.Since(modTime(f)) > initrdAge {
			os.Remove(f)
		}
	}
}

// writeAtomically lets a reader see the whole file or none: several runs may
// fill the cache at once.
func writeAtomically(path string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	defer os.Remove(f.Name())
	if err = f.Chmod(0o644); err == nil {
		err = write(f)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
