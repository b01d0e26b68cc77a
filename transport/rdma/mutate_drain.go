//go:build verbena_mutate_drain

package rdma

const (
	mutateDrain = true
	mutateEpoch = false
)
