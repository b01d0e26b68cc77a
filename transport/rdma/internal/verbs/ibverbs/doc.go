// Package ibverbs is the provider of package verbs over libibverbs, for any
// RDMA device that rdma-core knows.
//
// The library is loaded at run time: building needs no RDMA package, and the
// binary starts where there is none. Without it, without cgo, or off Linux,
// every call of the provider returns a *verbs.UnavailableError with the
// reason.
//
// The data path crosses into C once per batch, and its C functions neither
// call back into Go nor keep a Go pointer.
package ibverbs
