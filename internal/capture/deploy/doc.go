// Package deploy renders what a capture is in a Kubernetes cluster: the Job of a target, and the queue that admits one after
// the other.
//
// [NewJob] renders a target. Its pod has four containers that share an address and the volume /trace:
//
//	loadgen ──HTTP──> frontend <──ZeroMQ── tap <──ZeroMQ── engine
//
// The first three to the right are restartable init containers, which end with the pod's main container, the load
// generator. They start in the order in which the one listens that the next dials. None has a startup probe: a startup
// probe holds up the containers behind it, and the frontend serves HTTP only once the engine, the last of them, has
// registered. The load generator waits for it instead, within [Run.Start].
//
// When the load is through, the tap's files are whole and the load generator gets ready: that the pod is Ready is the
// sign to fetch them. It exits once they are fetched, or after [Run.Fetch]; and with it the Job ends.
//
// Nothing here sends requests to a cluster. The Job is a template, as the types of Kubernetes would double the size of vllm-vcr; only
// package cluster imports those. The tests hold one against the other.
//
// vllm-vcr-cluster is the program that captures in a cluster. vllm-vcr reads the command line and finds the targets. It gives the
// helper the same arguments, environment and standard streams, and a [HelperRequest] in a file that the environment names. Both
// programs must have the same version. On Unix the helper replaces the process, with its signals and its exit code.
package deploy
