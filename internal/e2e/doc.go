// Package e2e holds the tests that need everything: real processes that call
// each other over TCP and, where there are devices, over RDMA, and that are
// killed while they do. It has no code of its own.
package e2e
