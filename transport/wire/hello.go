package wire

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// MaxHello is the largest HELLO payload in bytes.
const MaxHello = 4096

// Features of one side, in HELLO.
type Features uint64

// Feature bits.
const (
	FeaturePayloadSum Features = 1 << iota // payload sums wanted
	FeatureFastLink                        // fast links possible
	knownFeatures     = FeaturePayloadSum | FeatureFastLink
)

// SessionID names a session for as long as both processes live.
type SessionID [16]byte

// HelloMsg is the payload of a HELLO.
type HelloMsg struct {
	MinVersion, MaxVersion uint8
	Session                SessionID
	Features               Features
	MaxMessage             uint32 // bytes of a message this side takes in
	MaxCalls               uint32 // calls at once this side takes in
	Lanes                  []LaneState
	NoFastLink             string // why FeatureFastLink is not set, at most 256 bytes
	Software               string // at most 64 bytes
}

// LaneState is what a lane has taken in, for resuming.
type LaneState struct {
	Lane uint16
	Next uint32 // sequence number expected next
}

const (
	tlvVersions   = 1
	tlvSession    = 2
	tlvFeatures   = 3
	tlvLimits     = 4
	tlvLane       = 5
	tlvNoFastLink = 6
	tlvSoftware   = 7
	lastTLV       = tlvSoftware // those above are skipped, and may repeat

	maxLanes    = 64
	maxReason   = 256
	maxSoftware = 64
)

// Append adds the encoding to b. Texts are cut to their limits.
func (m *HelloMsg) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = appendTLV(b, tlvVersions, []byte{m.MinVersion, m.MaxVersion})
	b = appendTLV(b, tlvSession, m.Session[:])
	b = appendTLV(b, tlvFeatures, le.AppendUint64(nil, uint64(m.Features)))
	b = appendTLV(b, tlvLimits, le.AppendUint32(le.AppendUint32(nil, m.MaxMessage), m.MaxCalls))
	for _, l := range m.Lanes {
		b = appendTLV(b, tlvLane, le.AppendUint32(le.AppendUint16(nil, l.Lane), l.Next))
	}
	if m.NoFastLink != "" {
		b = appendTLV(b, tlvNoFastLink, []byte(cut(m.NoFastLink, maxReason)))
	}
	if m.Software != "" {
		b = appendTLV(b, tlvSoftware, []byte(cut(m.Software, maxSoftware)))
	}
	return b
}

// Parse reads a HELLO payload. Unknown TLVs are skipped; versions, session,
// features and limits must be there.
func (m *HelloMsg) Parse(b []byte) error {
	*m = HelloMsg{}
	var seen uint32
	for len(b) > 0 {
		if len(b) < 4 {
			return &ParseError{Field: "HELLO TLV header", Got: uint64(len(b)), Want: "4 bytes"}
		}
		typ, n := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		b = b[4:]
		if len(b) < n {
			return &ParseError{Field: "HELLO TLV length", Got: uint64(n), Want: fmt.Sprintf("at most the %d bytes left", len(b))}
		}
		if typ <= lastTLV {
			if typ != tlvLane && seen&(1<<typ) != 0 {
				return &ParseError{Field: "HELLO TLV", Got: uint64(typ), Want: "each type once"}
			}
			seen |= 1 << typ
		}
		if err := m.take(typ, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	const required = 1<<tlvVersions | 1<<tlvSession | 1<<tlvFeatures | 1<<tlvLimits
	if seen&required != required {
		return &ParseError{Field: "HELLO", Got: uint64(seen), Want: "versions, session, features and limits"}
	}
	return nil
}

func (m *HelloMsg) take(typ uint16, v []byte) error {
	le := binary.LittleEndian
	wrong := func(want string) error {
		return &ParseError{Field: fmt.Sprintf("HELLO TLV %d length", typ), Got: uint64(len(v)), Want: want}
	}
	switch typ {
	case tlvVersions:
		if len(v) != 2 {
			return wrong("2")
		}
		m.MinVersion, m.MaxVersion = v[0], v[1]
		if m.MinVersion > m.MaxVersion {
			return &ParseError{Field: "HELLO lowest version", Got: uint64(v[0]), Want: fmt.Sprintf("at most the highest, %d", v[1])}
		}
	case tlvSession:
		if len(v) != len(m.Session) {
			return wrong("16")
		}
		copy(m.Session[:], v)
	case tlvFeatures:
		if len(v) != 8 {
			return wrong("8")
		}
		m.Features = Features(le.Uint64(v))
		if m.Features&^knownFeatures != 0 {
			return &ParseError{Field: "HELLO features", Got: uint64(m.Features), Want: fmt.Sprintf("none but %#x", uint64(knownFeatures))}
		}
	case tlvLimits:
		if len(v) != 8 {
			return wrong("8")
		}
		m.MaxMessage, m.MaxCalls = le.Uint32(v), le.Uint32(v[4:])
	case tlvLane:
		if len(v) != 6 {
			return wrong("6")
		}
		if len(m.Lanes) == maxLanes {
			return &ParseError{Field: "HELLO lanes", Got: maxLanes + 1, Want: "at most 64"}
		}
		lane := LaneState{Lane: le.Uint16(v), Next: le.Uint32(v[2:])}
		if slices.ContainsFunc(m.Lanes, func(l LaneState) bool { return l.Lane == lane.Lane }) {
			return &ParseError{Field: "HELLO lane", Got: uint64(lane.Lane), Want: "each lane once"}
		}
		m.Lanes = append(m.Lanes, lane)
	case tlvNoFastLink:
		if len(v) > maxReason {
			return wrong("at most 256")
		}
		m.NoFastLink = validText(v)
	case tlvSoftware:
		if len(v) > maxSoftware {
			return wrong("at most 64")
		}
		m.Software = validText(v)
	}
	return nil
}

func appendTLV(b []byte, typ uint16, v []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, typ)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(v)))
	return append(b, v...)
}

// cut shortens a text to n bytes without leaving part of a character.
func cut(s string, n int) string {
	return strings.ToValidUTF8(s[:min(len(s), n)], "")
}

// validText is a peer's text as text.
func validText(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
