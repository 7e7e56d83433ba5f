// Package deploy says what a capture is in a Kubernetes cluster: the Job of a target, the queue that admits one after
// the other, and the Deployment that serves a golden without an engine.
//
// [Job] renders a target. Its pod has four containers that share an address and the volume /trace:
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
// Nothing here talks to a cluster.
package deploy
