package latency

import "math/bits"

// What is recorded is kept by the size of the prompt and the number of requests
// that ran beside each other.
const (
	promptBuckets      = 11
	concurrencyBuckets = 8
)

// concurrencyEdges are the least concurrencies of the buckets.
var concurrencyEdges = [concurrencyBuckets]int{0, 2, 5, 7, 9, 17, 33, 65}

// promptBucket returns the bucket of a prompt of so many tokens: up to 64, up to 128
// and so on, doubling.
func promptBucket(tokens int) int {
	return min(max(bits.Len(uint(max(tokens-1, 0)))-6, 0), promptBuckets-1)
}

// concurrencyBucket returns the bucket of so many running requests. None counts
// as one: who asks is running.
func concurrencyBucket(running int) int {
	b := 0
	for i, edge := range concurrencyEdges {
		if running >= edge {
			b = i
		}
	}
	return b
}
