package cluster

import (
	"cmp"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Phase is how far a Job is.
type Phase string

// The phases, in the order in which a Job goes through them. It ends with Complete or Failed.
const (
	Queued    Phase = "queued"    // waits for quota
	Admitted  Phase = "admitted"  // may run; its pod has no node
	Scheduled Phase = "scheduled" // its pod has a node; no container runs, the images may be on their way
	Starting  Phase = "starting"  // some containers run
	Running   Phase = "running"   // all containers run, and all sidecars are ready
	Ready     Phase = "ready"     // its main containers are ready: the files can be fetched
	Complete  Phase = "complete"
	Failed    Phase = "failed"
)

// A State is what the cluster says of a Job.
type State struct {
	Name                string
	UID                 string
	Labels, Annotations map[string]string
	Created             time.Time

	Phase Phase
	// Reason and Message are the cluster's own words for why it has not advanced, such as Kueue's on quota or the scheduler's
	// on nodes. Either may be empty.
	Reason, Message string
	// Since is when the phase began, by the clock of the cluster; zero if it does not say.
	Since time.Time

	Pod, Node string // empty until there are any
	// Restarts is how often containers of the pod were started again.
	Restarts int
	// Images are what really runs, with digests, by container.
	Images map[string]string
}

// Why is the reason and the message, as far as there are any.
func (s State) Why() string {
	if s.Reason == "" || s.Message == "" {
		return s.Reason + s.Message
	}
	return s.Reason + ": " + s.Message
}

// stateOf makes a state of what there is. The job must not be nil.
func stateOf(o objects) State {
	s := State{
		Name: o.job.Name, UID: string(o.job.UID), Labels: o.job.Labels, Annotations: o.job.Annotations,
		Created: o.job.CreationTimestamp.Time,
	}
	if pod := o.pod(); pod != nil {
		s.Pod, s.Node = pod.Name, pod.Spec.NodeName
		s.Images = map[string]string{}
		for _, status := range statuses(pod) {
			s.Restarts += int(status.RestartCount)
			if status.ImageID != "" {
				s.Images[status.Name] = status.ImageID
			}
		}
	}
	s.setPhase(o)
	if fault := diagnose(o); fault != nil && s.Phase != Complete {
		s.Phase, s.Reason, s.Message = Failed, fault.Reason, fault.Message
	}
	return s
}

func (s *State) setPhase(o objects) {
	if done := jobCondition(o.job, batchv1.JobComplete); done != nil {
		s.Phase, s.Since = Complete, done.LastTransitionTime.Time
		return
	}
	if failed := jobCondition(o.job, batchv1.JobFailed); failed != nil {
		s.Phase, s.Since = Failed, failed.LastTransitionTime.Time
		s.Reason, s.Message = failed.Reason, failed.Message
		return
	}
	if pod := o.pod(); pod != nil && pod.Spec.NodeName != "" {
		s.setPodPhase(pod)
		return
	}
	if o.waiting() {
		s.Phase, s.Since = Queued, o.job.CreationTimestamp.Time
		s.Reason, s.Message = o.whyQueued()
		return
	}
	s.Phase = Admitted
	if o.job.Status.StartTime != nil {
		s.Since = o.job.Status.StartTime.Time
	}
	s.Reason, s.Message = o.whyUnscheduled()
}

// setPodPhase is for a pod that has a node.
func (s *State) setPodPhase(pod *corev1.Pod) {
	s.Phase, s.Since = Scheduled, pod.CreationTimestamp.Time
	if bound := podCondition(pod, corev1.PodScheduled); bound != nil {
		s.Since = bound.LastTransitionTime.Time
	}
	if mainOver(pod) {
		s.Phase, s.Message = Running, "its containers have ended"
		return
	}
	waits := notReady(pod)
	var last time.Time
	for _, status := range statuses(pod) {
		if status.State.Running != nil {
			s.Phase = Starting
			if start := status.State.Running.StartedAt.Time; start.After(last) {
				last = start
			}
		}
	}
	if s.Phase == Starting {
		s.Since = last
	}
	if len(waits) > 0 {
		s.Message = "waiting for " + strings.Join(waits, ", ")
		return
	}
	s.Phase = Running
	if mainReady(pod) {
		s.Phase = Ready
		if ready := podCondition(pod, corev1.PodReady); ready != nil {
			s.Since = ready.LastTransitionTime.Time
		}
	}
}

// pod is the Job's newest pod, or nil.
func (o objects) pod() *corev1.Pod {
	if len(o.pods) == 0 {
		return nil
	}
	newest := slices.MaxFunc(o.pods, func(a, b corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return &newest
}

// waiting reports whether the Job may not run yet.
func (o objects) waiting() bool { return o.job.Spec.Suspend != nil && *o.job.Spec.Suspend }

// whyQueued is what the queue says.
func (o objects) whyQueued() (reason, message string) {
	for _, w := range o.workloads {
		for _, c := range w.Status.Conditions {
			if c.Type == "QuotaReserved" && c.Status != metav1.ConditionTrue {
				reason, message = c.Reason, c.Message
			}
		}
	}
	if message == "" && len(o.workloads) == 0 && o.job.Labels[QueueLabel] != "" {
		message = "Kueue has not seen the job yet"
	}
	return reason, message
}

// whyUnscheduled is what the scheduler says, or the controller that refuses to make the pod.
func (o objects) whyUnscheduled() (reason, message string) {
	pod := o.pod()
	if pod == nil {
		if o.warning != "" {
			return "FailedCreate", o.warning
		}
		return "", "no pod yet"
	}
	if bound := podCondition(pod, corev1.PodScheduled); bound != nil && bound.Status != corev1.ConditionTrue {
		return bound.Reason, bound.Message
	}
	return "", "no node yet"
}

// statuses are those of all containers of a pod, the sidecars first.
func statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// sidecars are the names of the init containers that go on running.
func sidecars(pod *corev1.Pod) map[string]bool {
	names := map[string]bool{}
	for _, c := range pod.Spec.InitContainers {
		names[c.Name] = c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	}
	return names
}

// notReady names what is still to come of a pod: sidecars that are not ready, others that do not run.
func notReady(pod *corev1.Pod) []string {
	known := map[string]corev1.ContainerStatus{}
	for _, status := range statuses(pod) {
		known[status.Name] = status
	}
	var waits []string
	for _, c := range pod.Spec.InitContainers {
		status := known[c.Name]
		done := status.State.Terminated != nil && status.State.Terminated.ExitCode == 0
		if sidecar := sidecars(pod)[c.Name]; sidecar && !status.Ready || !sidecar && !done {
			waits = append(waits, c.Name+why(status))
		}
	}
	for _, c := range pod.Spec.Containers {
		if status := known[c.Name]; status.State.Running == nil && status.State.Terminated == nil {
			waits = append(waits, c.Name+why(status))
		}
	}
	return waits
}

func why(status corev1.ContainerStatus) string {
	if status.State.Waiting != nil && status.State.Waiting.Reason != "" {
		return " (" + status.State.Waiting.Reason + ")"
	}
	return ""
}

func mainReady(pod *corev1.Pod) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if !status.Ready {
			return false
		}
	}
	return len(pod.Status.ContainerStatuses) == len(pod.Spec.Containers)
}

// mainOver reports whether the main containers have ended, and the Job is about to.
func mainOver(pod *corev1.Pod) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Terminated == nil {
			return false
		}
	}
	return len(pod.Status.ContainerStatuses) > 0
}
