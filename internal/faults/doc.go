// Package faults injects real faults under real calls: processes are killed
// and stopped, devices and links go away, packets are lost, limits are reached.
// It runs in the test VM, where there are devices to break:
//
//	make faults FAULTS=500 SEED=7
//
// Three processes take part, all of this package's test binary. A server
// executes calls and writes each down (Record) before it answers. A client
// makes calls without end, through generated stubs, and writes down how each
// ended. The third injects one fault at a time, makes sure that it took effect,
// ends it, waits until calls are back on RDMA, and holds what was written down
// against what is promised (Ledger). What is written down is in files, which
// outlive a process that is killed.
//
// The checker and the table are pure and tested everywhere.
package faults
