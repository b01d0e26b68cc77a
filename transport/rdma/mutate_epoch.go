//go:build verbena_mutate_epoch

package rdma

const (
	mutateDrain = false
	mutateEpoch = true
)
