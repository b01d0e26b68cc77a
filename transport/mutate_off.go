//go:build !verbena_mutate_duplicates

package transport

// mutateDuplicates takes in frames that came before, so that tests can be seen
// to notice it.
const mutateDuplicates = false
