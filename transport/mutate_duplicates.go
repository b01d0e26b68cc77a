//go:build verbena_mutate_duplicates

package transport

const mutateDuplicates = true
