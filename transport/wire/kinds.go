package wire

import "fmt"

// rule says what a header of one kind may hold.
type rule struct {
	name   string
	flags  Flags  // allowed
	length uint32 // largest payload; limitless kinds are bounded by their link
}

const limitless = 1<<32 - 1

var rules = [...]rule{
	Hello:     {"HELLO", Sum, MaxHello},
	Refuse:    {"REFUSE", Sum, maxErrorFrame},
	QPOffer:   {"QP_OFFER", Sum, QPSize},
	QPAnswer:  {"QP_ANSWER", Sum, QPSize},
	QPAbandon: {"QP_ABANDON", Sum, maxErrorFrame},
	Ready:     {"READY", 0, 0},
	Ping:      {"PING", Sum, MaxPing},
	Pong:      {"PONG", Sum, MaxPing},
	Credit:    {"CREDIT", 0, 0},
	GoAway:    {"GOAWAY", 0, 0},
	Close:     {"CLOSE", Sum, maxErrorFrame},
	Ack:       {"ACK", 0, 0},
	Call:      {"CALL", More | Cont | Sum | End | Idempotent, limitless},
	Reply:     {"REPLY", More | Cont | Sum | End | Error | Unseen, limitless},
	Cancel:    {"CANCEL", 0, 0},
	Move:      {"MOVE", 0, 0},
}

// MaxPing is the largest payload of a PING in bytes.
const MaxPing = 64

// check holds the header against the rules of its kind.
func (h *Header) check() error {
	if int(h.Kind) >= len(rules) || rules[h.Kind].name == "" {
		return &ParseError{Field: "kind", Got: uint64(h.Kind), Want: "a kind of protocol version 1"}
	}
	r := &rules[h.Kind]
	switch {
	case h.Flags&^r.flags != 0:
		return &ParseError{Field: "flags", Got: uint64(h.Flags), Want: fmt.Sprintf("none but %#x on %s", uint16(r.flags), r.name)}
	case h.Flags&Unseen != 0 && h.Flags&Error == 0:
		return &ParseError{Field: "flags", Got: uint64(h.Flags), Want: "UNSEEN with ERROR alone"}
	case h.Flags&Sum != 0 && h.Length == 0:
		return &ParseError{Field: "flags", Got: uint64(h.Flags), Want: "SUM with a payload alone"}
	case h.Length > r.length:
		return &ParseError{Field: "length", Got: uint64(h.Length), Want: fmt.Sprintf("at most %d on %s", r.length, r.name)}
	}
	if field, got := h.stray(); got != 0 {
		return &ParseError{Field: field, Got: got, Want: "0 on " + r.name}
	}
	return nil
}

// stray finds a field that must be 0 on frames of this kind and is not.
func (h *Header) stray() (field string, got uint64) {
	if h.Kind != Call && h.Method != 0 {
		return "method", h.Method
	}
	if h.Kind == Call || h.Kind == Reply {
		return "", 0
	}
	switch {
	case h.Total != 0:
		return "total", uint64(h.Total)
	case h.Kind == Move && h.Seq != 0:
		return "seq", uint64(h.Seq)
	case h.Kind == Move:
		return "call", h.Call
	case h.Arg != 0:
		return "arg", uint64(h.Arg)
	case h.Kind.InLane():
		return "", 0
	case h.Seq != 0:
		return "seq", uint64(h.Seq)
	case h.Lane != 0 && h.Kind != Ack:
		return "lane", uint64(h.Lane)
	case h.Ack != 0 && h.Kind != Ack:
		return "ack", uint64(h.Ack)
	}
	return "call", h.Call
}

func (k Kind) String() string {
	if int(k) < len(rules) && rules[k].name != "" {
		return rules[k].name
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// ParseError says which field of a frame was wrong, what it held and what was
// expected. A frame that gives one closes its link.
type ParseError struct {
	Field string
	Got   uint64
	Want  string
}

func (e *ParseError) Error() string {
	return fmt.Sprintf("wire: %s is %#x, expected %s", e.Field, e.Got, e.Want)
}
