// Package cluster captures targets in a Kubernetes cluster whose queues are Kueue's. [Capture] submits a Job for each, fetches the
// files of those that are ready, deletes the Jobs, and has the recordings accepted. Only the program vllm-vcr-cluster imports it.
//
// A [Client] is for one Job: it connects, submits, watches until the Job is ready or something is wrong with it, copies files out
// of its pod, and deletes it. It knows Jobs, Pods, Workloads, LocalQueues, ClusterQueues and Events. It knows nothing of what runs in the pods but
// the three commands that it executes in them, see [Client.Fetch].
//
// # What counts as failed
//
// A container that was started again recorded nothing of worth, and a pod that was moved lost its files, so none of it
// is waited out: [Client.Watch] ends with a [FailedError] as soon as the cluster says so. Only three things have a budget
// of time: to be admitted, to start, and to be ready. These budgets run on this machine's monotonic clock, from when
// Watch first saw the Job in that stage; the clocks of the cluster are shown and never compared.
//
// # When the API server goes away
//
// A Job is read whole every two seconds, as states last: neither a restarted server nor a broken connection loses a change. What
// fails is tried again for [Options.Outage].
package cluster
