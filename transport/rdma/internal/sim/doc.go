// Package sim is a world in which calls are made while everything under them
// fails. It is all tests: clients and servers of package rpc on real sessions
// of package transport, over the real TCP links on a simulated network (package
// simnet) and the real Fabric on a simulated device (package simverbs), under
// the virtual time of testing/synctest. A seed makes topology, workload and
// faults; a model knows what each caller may be told.
//
// docs/reliability.md, "Simulation", says what is checked and how far a seed
// repeats.
package sim
