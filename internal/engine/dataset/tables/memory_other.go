//go:build !linux

package tables

// limitMemory does nothing where a process has no bound that holds for its heap.
func limitMemory(uint64) {}
