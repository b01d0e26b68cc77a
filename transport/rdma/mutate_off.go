//go:build !verbena_mutate_drain && !verbena_mutate_epoch

package rdma

// Guarantees that the build of a test breaks, so that the simulation can be
// seen to notice it (internal/sim, TestMutations).
const (
	mutateDrain = false // a drain is over before everything has completed
	mutateEpoch = false // frames of other links are taken in
)
