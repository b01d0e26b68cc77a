package transport

import (
	"fmt"

	"github.com/verbena-rpc/verbena/transport/wire"
)

// software names this implementation in HELLO, for logs.
const software = "verbena-go"

// noFastLink says why this side cannot have a fast link on this connection.
func (s *Session) noFastLink() string {
	switch {
	case s.cfg.FastLink == NeverFastLink:
		return "fast links are switched off"
	case s.network.Fabric == nil:
		return "no fabric is configured"
	}
	if err := s.network.Fabric.Usable(s.control.Info().Local); err != nil {
		return err.Error()
	}
	return ""
}

// hello is the payload of this side's HELLO.
func (s *Session) hello() []byte {
	m := wire.HelloMsg{
		MinVersion: wire.Version, MaxVersion: wire.Version,
		Session:    s.id,
		MaxMessage: uint32(s.cfg.MaxMessage), MaxCalls: uint32(s.cfg.MaxCalls),
		NoFastLink: s.unable,
		Software:   software,
	}
	if m.NoFastLink == "" {
		m.Features |= wire.FeatureFastLink
	}
	if s.cfg.PayloadSum {
		m.Features |= wire.FeaturePayloadSum
	}
	return m.Append(nil)
}

// checkHello says why there can be no session with the peer, or nil.
func (s *Session) checkHello(m *wire.HelloMsg) error {
	switch {
	case m.MinVersion > wire.Version || m.MaxVersion < wire.Version:
		return fmt.Errorf("versions %d to %d, this side has %d", m.MinVersion, m.MaxVersion, wire.Version)
	case len(m.Lanes) > 0:
		return fmt.Errorf("sessions cannot be resumed")
	case s.client && m.Session != s.id:
		return fmt.Errorf("HELLO for session %x, asked for %x", m.Session, s.id)
	}
	return nil
}

// unable says why no fast link is possible between the two sides, or "".
func unable(own string, peer *wire.HelloMsg) string {
	switch {
	case own != "":
		return own
	case peer.Features&wire.FeatureFastLink != 0:
		return ""
	case peer.NoFastLink != "":
		return "peer: " + peer.NoFastLink
	}
	return "peer: no fast links"
}
