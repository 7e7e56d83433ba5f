// Package local captures targets on this machine: for each target it starts the line's engine for the CPU, the tap and
// vllm-rs, has the load generator ask what the workload says, and leaves a [capture.Recording].
package local
