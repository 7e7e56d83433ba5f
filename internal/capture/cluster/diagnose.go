package cluster

import (
	"cmp"
	"fmt"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A fault is why a Job will not come to a good end.
type fault struct {
	Reason, Message, Hint string
	// Container is whose fault it is, if it is one's.
	Container string
	// Effect says that somebody did this and may not have said yet why.
	Effect bool
}

// hopeless are the reasons for which a container waits that time does not mend, with what to do.
var hopeless = map[string]string{
	"CrashLoopBackOff":           "read its log",
	"ErrImagePull":               "check the image, its digest, and that the nodes may pull it",
	"ImagePullBackOff":           "check the image, its digest, and that the nodes may pull it",
	"ErrImageNeverPull":          "check the image, its digest, and that the nodes may pull it",
	"InvalidImageName":           "check the image's name",
	"ImageInspectError":          "check the image",
	"RegistryUnavailable":        "check the registry",
	"SignatureValidationFailed":  "check the image's signature",
	"CreateContainerConfigError": "check that the secrets and volumes that the pod names exist",
	"CreateContainerError":       "check the container's command and volumes",
	"RunContainerError":          "check the container's command and volumes",
	"StartError":                 "check the container's command",
	"PostStartHookError":         "read its log",
}

// diagnose finds what is wrong. Causes come before what follows from them: a queue that wants its quota back before a
// container that was killed.
func diagnose(o objects) *fault {
	for _, find := range []func(objects) *fault{
		jobGone, evicted, disrupted, overdue, podGoes, badContainer, refused, jobFailed,
	} {
		if found := find(o); found != nil {
			return found
		}
	}
	return nil
}

func jobGone(o objects) *fault {
	if o.job == nil {
		return &fault{Reason: "Deleted", Message: "the job was deleted", Hint: "somebody else cleans up here"}
	}
	if o.job.DeletionTimestamp != nil {
		return &fault{Reason: "Deleted", Message: "the job is being deleted", Hint: "somebody else cleans up here"}
	}
	return nil
}

// evicted is what the queue has to say.
func evicted(o objects) *fault {
	for _, w := range o.workloads {
		if w.Spec.Active != nil && !*w.Spec.Active {
			return &fault{Reason: "Deactivated", Message: "the workload was deactivated in Kueue", Hint: "submit it again"}
		}
		if c := condition(w.Status.Conditions, "Evicted"); c != nil {
			return &fault{
				Reason: "Evicted", Message: fmt.Sprintf("Kueue took the quota back (%s): %s", c.Reason, c.Message),
				Hint: "what it recorded is lost; submit it again",
			}
		}
	}
	if !o.waiting() || o.job.Labels[QueueLabel] == "" {
		return nil
	}
	reason, message := o.whyQueued()
	switch {
	case o.queueKnown && queueFault(o.queues) != "":
		return &fault{
			Reason: "NoQueue", Message: fmt.Sprintf("LocalQueue %s %s", o.job.Labels[QueueLabel], queueFault(o.queues)),
			Hint: "check the queue: kubectl apply -k deploy/",
		}
	case reason == "Inadmissible":
		return &fault{Reason: reason, Message: message, Hint: "check the queue: kubectl apply -k deploy/"}
	case strings.Contains(message, "> maximum capacity"), strings.Contains(message, "unavailable in ClusterQueue"):
		return &fault{Reason: "NeverAdmitted", Message: message, Hint: "it asks for more than the whole quota of its queue"}
	}
	return nil
}

// disrupted is about a pod that something else needed the place of.
func disrupted(o objects) *fault {
	pod := o.pod()
	if pod == nil {
		return nil
	}
	if c := podCondition(pod, corev1.DisruptionTarget); c != nil && c.Status == corev1.ConditionTrue {
		return &fault{
			Reason:  c.Reason,
			Message: fmt.Sprintf("pod %s was taken off node %s: %s", pod.Name, pod.Spec.NodeName, c.Message),
			Hint:    "what it recorded is lost; submit it again",
		}
	}
	switch {
	case pod.Status.Phase == corev1.PodUnknown, pod.Status.Reason == "NodeLost":
		return &fault{
			Reason: "NodeLost", Message: fmt.Sprintf("node %s of pod %s does not answer", pod.Spec.NodeName, pod.Name),
			Hint: "what it recorded is lost; submit it again",
		}
	case pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "" && pod.Status.Reason != "DeadlineExceeded":
		return &fault{
			Reason:  pod.Status.Reason,
			Message: fmt.Sprintf("pod %s on node %s: %s", pod.Name, pod.Spec.NodeName, pod.Status.Message),
			Hint:    "submit it again",
		}
	}
	return nil
}

// overdue is about the deadline of the Job itself.
func overdue(o objects) *fault {
	for _, kind := range []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed} {
		if c := jobCondition(o.job, kind); c != nil && c.Reason == batchv1.JobReasonDeadlineExceeded {
			return &fault{Reason: c.Reason, Message: c.Message, Hint: "it took longer than the deadline in its spec"}
		}
	}
	return nil
}

func badContainer(o objects) *fault {
	pod := o.pod()
	if pod == nil {
		return nil
	}
	if len(o.pods) > 1 {
		return &fault{
			Reason: "Replaced", Message: fmt.Sprintf("the job has %d pods: the first is lost", len(o.pods)),
			Hint: "submit it again",
		}
	}
	var first *fault
	for _, status := range statuses(pod) {
		f := badStatus(status, mainOver(pod), sidecars(pod))
		if f == nil {
			continue
		}
		f.Container = status.Name
		if !f.Effect {
			return f
		}
		first = cmp.Or(first, f)
	}
	return first
}

// badStatus is about one container. Once the main containers are over, the sidecars end too. A sidecar that ends well
// does so because another is gone, as an engine does without its frontend.
func badStatus(status corev1.ContainerStatus, over bool, sidecars map[string]bool) *fault {
	sidecar := sidecars[status.Name]
	if status.RestartCount > 0 {
		before := status.LastTerminationState.Terminated
		return &fault{
			Reason:  reasonOf(before, "Restarted"),
			Message: fmt.Sprintf("container %s was started again after it %s", status.Name, ending(before)),
			Hint:    "what was recorded is worth nothing; " + hintOf(before),
			Effect:  before != nil && before.ExitCode == 0,
		}
	}
	if waiting := status.State.Waiting; waiting != nil && hopeless[waiting.Reason] != "" {
		return &fault{
			Reason:  waiting.Reason,
			Message: fmt.Sprintf("container %s of image %s: %s", status.Name, status.Image, waiting.Message),
			Hint:    hopeless[waiting.Reason],
		}
	}
	ended := status.State.Terminated
	if ended == nil || ended.ExitCode == 0 && !sidecar || sidecar && over {
		return nil
	}
	return &fault{
		Reason: reasonOf(ended, "Error"), Message: fmt.Sprintf("container %s %s", status.Name, ending(ended)),
		Hint: hintOf(ended), Effect: ended.ExitCode == 0,
	}
}

func reasonOf(ended *corev1.ContainerStateTerminated, usual string) string {
	if ended != nil && ended.Reason == "OOMKilled" {
		return ended.Reason
	}
	return usual
}

func hintOf(ended *corev1.ContainerStateTerminated) string {
	if ended != nil && ended.Reason == "OOMKilled" {
		return "give its container more memory"
	}
	return "read its log"
}

// ending says how a container ended, to go on a sentence.
func ending(ended *corev1.ContainerStateTerminated) string {
	if ended == nil {
		return "ended"
	}
	text := fmt.Sprintf("ended with exit code %d", ended.ExitCode)
	if ended.Reason != "" {
		text += " (" + ended.Reason + ")"
	}
	if message := strings.TrimSpace(ended.Message); message != "" {
		text += ": " + message
	}
	return text
}

// podGoes is about a pod that is taken away. Its containers end for that reason.
func podGoes(o objects) *fault {
	pod := o.pod()
	gone := &fault{
		Reason: "PodDeleted", Hint: "what it recorded is lost; submit it again",
		Effect: jobCondition(o.job, batchv1.JobFailed) == nil,
	}
	switch {
	case jobCondition(o.job, batchv1.JobComplete, batchv1.JobSuccessCriteriaMet) != nil:
		return nil
	case o.lost != "":
		gone.Message = fmt.Sprintf("pod %s is gone", o.lost)
	case pod != nil && pod.DeletionTimestamp != nil:
		gone.Message = fmt.Sprintf("pod %s is being deleted by somebody", pod.Name)
	default:
		return nil
	}
	return gone
}

// refused is about a pod that may not be. The controller would try for ever.
func refused(o objects) *fault {
	if len(o.pods) > 0 || o.waiting() || !strings.Contains(o.warning, "is forbidden") {
		return nil
	}
	return &fault{Reason: "FailedCreate", Message: o.warning, Hint: "the cluster's policies do not let the pod be"}
}

func jobFailed(o objects) *fault {
	for _, kind := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobFailureTarget} {
		if c := jobCondition(o.job, kind); c != nil {
			return &fault{Reason: c.Reason, Message: c.Message, Hint: "submit it again"}
		}
	}
	return nil
}

// queueFault says what is wrong with a queue, or "".
func queueFault(found []queue) string {
	if len(found) == 0 {
		return "is not there"
	}
	for _, q := range found {
		if q.DeletionTimestamp != nil {
			return "is being deleted"
		}
		if condition(q.Status.Conditions, "Active") == nil {
			return "is not active" + said(q.Status.Conditions, "Active")
		}
	}
	return ""
}

// said is what the status says of a condition, to go on a sentence.
func said(conditions []metav1.Condition, kind string) string {
	for _, c := range conditions {
		if c.Type == kind {
			return fmt.Sprintf(" (%s: %s)", c.Reason, c.Message)
		}
	}
	return ", Kueue has not looked at it: see that it runs"
}
