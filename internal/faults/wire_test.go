//go:build linux

package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/verbena-rpc/verbena/internal/vm/inside"
)

// The test VM's wire: see internal/vm. The client is on side a, the server on
// side b.
type side struct{ netdev, device, addr string }

var (
	sideA = side{"va", "rxe0", "10.8.0.1"}
	sideB = side{"vb", "rxe1", "10.8.1.1"}
	sides = []side{sideA, sideB}
)

func (s side) peer() side {
	if s == sideA {
		return sideB
	}
	return sideA
}

const (
	wireMTU = 4200 // of the VM's netdevs unless it is told otherwise
	port    = "7400"
)

// batch has ip or tc run lines of commands, until one fails.
func batch(tool string, lines ...string) error {
	_, err := inside.Run(strings.Join(lines, "\n")+"\n", tool, "-batch", "-")
	return err
}

// each makes a line for each side, with its interface in the place of NETDEV.
func each(at []side, line string) []string {
	var lines []string
	for _, s := range at {
		lines = append(lines, strings.ReplaceAll(line, "NETDEV", s.netdev))
	}
	return lines
}

// sum adds up all numbers of that name in the JSON that a command prints.
func sum(name, command string) int {
	out, err := inside.Run("", strings.Fields(command)...)
	if err != nil {
		return 0
	}
	total := 0
	for _, m := range regexp.MustCompile(`"`+name+`":(\d+)`).FindAllStringSubmatch(out, -1) {
		n, _ := strconv.Atoi(m[1])
		total += n
	}
	return total
}

// kernelObjects are what the kernel holds for RDMA, over all devices.
func kernelObjects() map[string]int {
	objects := map[string]int{}
	for _, name := range []string{"pd", "cq", "qp", "mr", "ctx"} {
		objects[name] = sum(name, "rdma -j resource show")
	}
	return objects
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// verbsNode is the name of the device's file below /dev/infiniband, which a
// process has open that uses the device.
func verbsNode(device string) (string, error) {
	names, _ := filepath.Glob("/sys/class/infiniband_verbs/uverbs*")
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(n, "ibdev"))
		if err == nil && strings.TrimSpace(string(b)) == device {
			return n, nil
		}
	}
	return "", fmt.Errorf("%s has no uverbs device", device)
}

// gids are the entries of the device's GID table that are in use, in order.
func gids(device string) string {
	var used []string
	for i := range 16 {
		b, err := os.ReadFile(fmt.Sprintf("/sys/class/infiniband/%s/ports/1/gids/%d", device, i))
		if s := strings.TrimSpace(string(b)); err == nil && strings.Trim(s, "0:") != "" {
			used = append(used, fmt.Sprintf("%d %s", i, s))
		}
	}
	return strings.Join(used, "\n")
}

func fileHas(path, text string) bool {
	b, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(string(b)) == text
}
