package vm

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/verbena-rpc/verbena/internal/vm/inside"
)

// The two ends of the wire. Both addresses are local to one kernel, which would
// hand packets over without the wire; the policy rules make each address's
// traffic to the other leave by its own interface. (Two network namespaces would
// be the usual way, but rxe of Linux 6.1 does not work in them.)
//
//	rxe0 ─ va 10.8.0.1 ══════ vb 10.8.1.1 ─ rxe1
//
// table 100: to 10.8.1.1 by va    rules 10, 12, 14: from 10.8.0.1 to 10.8.1.1
// table 101: to 10.8.0.1 by vb    rules 11, 13, 15: from 10.8.1.1 to 10.8.0.1
//
// The rules ask for locally made packets (iif lo), so that what arrives at the
// other end is still looked up in the table of local addresses, moved from
// preference 0 to 20. Rules 12 and 13 are for who has not bound an address: the
// routes give such a client that of the other side, where it would get the one
// it connects to and stay on lo. Rules 14 and 15 are for rdma_cm: it refuses a
// connection unless the interface by which the request came leads back to who
// sent it, and asks that for the interface (oif) without saying who asks.
const (
	linksScript = `link set lo up
link add va mtu %[1]d type veth peer name vb mtu %[1]d
addr add 10.8.0.1/24 dev va
addr add 10.8.1.1/24 dev vb
link set va up
link set vb up
rule add pref 10 iif lo from 10.8.0.1 to 10.8.1.1 lookup 100
rule add pref 11 iif lo from 10.8.1.1 to 10.8.0.1 lookup 101
rule add pref 12 iif lo from 0.0.0.0/32 to 10.8.1.1 lookup 100
rule add pref 13 iif lo from 0.0.0.0/32 to 10.8.0.1 lookup 101
rule add pref 14 oif va from 10.8.0.1 to 10.8.1.1 lookup 100
rule add pref 15 oif vb from 10.8.1.1 to 10.8.0.1 lookup 101
rule add pref 20 lookup local
rule del pref 0
`
	routesScript = `route replace 10.8.1.1 dev va src 10.8.0.1 table 100
route replace 10.8.0.1 dev vb src 10.8.1.1 table 101
`
)

// linkSettings let an interface take packets from an address of this host, and
// answer ARP for its own address alone.
var linkSettings = map[string]string{"accept_local": "1", "rp_filter": "0", "arp_ignore": "1"}

// setUpNetwork makes the wire and the two devices on it, with the host's own
// tools from iproute2.
func setUpNetwork(mtu int) error {
	os.Setenv("PATH", "/usr/bin:/bin:"+sbinPath)
	if err := command(fmt.Sprintf(linksScript, mtu), "ip", "-batch", "-"); err != nil {
		return err
	}
	for _, link := range []string{"va", "vb"} {
		for name, value := range linkSettings {
			file := fmt.Sprintf("/proc/sys/net/ipv4/conf/%s/%s", link, name)
			if err := os.WriteFile(file, []byte(value), 0); err != nil {
				return err
			}
		}
	}
	if err := os.WriteFile(inside.RoutesFile, []byte(routesScript), 0o644); err != nil {
		return err
	}
	if err := command("", "ip", "-batch", inside.RoutesFile); err != nil {
		return err
	}
	for i, link := range []string{"va", "vb"} {
		if err := command("", "rdma", "link", "add", fmt.Sprintf("rxe%d", i), "type", "rxe", "netdev", link); err != nil {
			return err
		}
	}
	return nil
}

func command(input string, args ...string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
