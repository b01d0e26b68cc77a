package transport

import (
	"cmp"
	"net"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// reach says whether there can be fast links: of one side, or between two. Both
// texts are empty where there can.
type reach struct {
	never string // why never in this session
	now   string // why not at present; a device may come, a port come up
}

// why is the reason that there is none now.
func (r reach) why() string { return cmp.Or(r.never, r.now) }

// reach is that of this side, on a connection with that local address.
func (n *Network) reach(cfg *Config, local net.Addr) (r reach) {
	switch {
	case cfg.FastLink == NeverFastLink:
		r.never = "fast links are switched off"
	case n.Fabric == nil:
		r.never = "no fabric is configured"
	default:
		if err := n.Fabric.Usable(local); err != nil {
			r.now = err.Error()
		}
	}
	return r
}

// with is the reach between this side and a peer that said HELLO. The error is a
// *NoFastLinkError where a fast link is required and cannot be had.
func (r reach) with(peer *wire.HelloMsg, policy FastLinkPolicy) (reach, error) {
	said := "peer: " + cmp.Or(peer.NoFastLink, "no fast links")
	switch {
	case r.never != "":
	case peer.Features&wire.FeatureFastLink == 0:
		r.never = said
	case r.now == "" && peer.NoFastLink != "":
		r.now = said
	}
	if why := r.why(); why != "" && policy == RequireFastLink {
		return r, &NoFastLinkError{Reason: why}
	}
	return r, nil
}
