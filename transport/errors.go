package transport

import "fmt"

// SessionError says how a session ended. errors.Is with net.ErrClosed holds
// where one of the sides ended it regularly.
type SessionError struct {
	What string // "closed here", "closed by the peer", "control link", "fast link"
	Err  error
}

func (e *SessionError) Error() string {
	return fmt.Sprintf("transport: session ended: %s: %v", e.What, e.Err)
}

func (e *SessionError) Unwrap() error { return e.Err }

// SetupError says that a session did not come to be.
type SetupError struct {
	Addr string // of the peer
	Step string // "connect", "hello", "fast link"
	Err  error
}

func (e *SetupError) Error() string {
	return fmt.Sprintf("transport: session with %s: %s: %v", e.Addr, e.Step, e.Err)
}

func (e *SetupError) Unwrap() error { return e.Err }

// PeerError is an error that the peer stated in REFUSE or CLOSE.
type PeerError struct{ Text string }

func (e *PeerError) Error() string { return "peer: " + e.Text }

// NoFastLinkError says why there is no fast link where Config requires one.
type NoFastLinkError struct{ Reason string }

func (e *NoFastLinkError) Error() string { return "no fast link: " + e.Reason }

// TooLargeError says that a message exceeds what the peer takes in. Nothing of
// it was sent.
type TooLargeError struct{ Size, Max int } // bytes

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("transport: message of %d bytes, the peer takes in %d", e.Size, e.Max)
}

// ConfigError names the field of a Config that is out of range.
type ConfigError struct {
	Field string
	Got   any
	Want  string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("transport: Config.%s is %v, expected %s", e.Field, e.Got, e.Want)
}
