// Package uverbs is the provider of package verbs that speaks to the kernel
// itself, by /dev/infiniband/uverbsN, for devices whose queues are laid out in
// a public header. There is one: rdma_rxe (linux/rdma/rdma_user_rxe.h).
//
// It is pure Go. A poll reads the mapped completion queue and a receive is
// written into the mapped receive queue, neither with a system call; a batch
// of sends is written into the mapped send queue and rung in with one ioctl,
// which the scheduler is not told of. docs/adr/0007-mapped-rings.md has the
// measurements that this rests on.
//
// Open of a device of another driver fails with an error that is
// errors.ErrUnsupported; off Linux every call returns a
// *verbs.UnavailableError.
//
// # Memory order
//
// A ring has one producer and one consumer, one of them the driver. Who fills
// an element stores the producer's index afterwards, with release; who empties
// it loads that index first, with acquire, and stores its own afterwards, with
// release. Go's atomic loads and stores are both, on all architectures (the
// driver's side are smp_load_acquire and smp_store_release in rxe_queue.h).
//
// # Memory
//
// The kernel is given the addresses of commands and answers as numbers, so
// they live outside the Go heap, as the rings do.
package uverbs
