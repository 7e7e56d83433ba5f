package tables

import "syscall"

// limitMemory bounds the memory of this process, in bytes: beyond it the Go runtime ends the process with "out of memory".
// In Parquet a value repeats a billion times in few bytes, and the library has no bound of its own.
func limitMemory(most uint64) {
	_ = syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: most, Max: most}) // else there is none, as elsewhere
}
