// Package remote captures targets in a Kubernetes cluster: it submits a Job for each, fetches the files of those that are
// ready, deletes the Jobs, and has the recordings accepted. Only the binary vllm-vcr-cluster imports it.
package remote
