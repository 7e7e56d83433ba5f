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
// Each object is listed and then watched from that version on. A watch that ends for whatever reason is followed by a
// new list, so that neither an expired version nor a restarted server loses a change: states last, and are read whole.
// The server is asked to end every watch after a minute or two, and one that it does not end is given up, because a
// connection can be alive and mute.
package cluster
