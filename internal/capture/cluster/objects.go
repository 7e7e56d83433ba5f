package cluster

import (
	"errors"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

const (
	kueueGroup   = "kueue.x-k8s.io"
	kueueVersion = "v1beta2"

	// QueueLabel is the label of a Job that names its LocalQueue.
	QueueLabel = kueueGroup + "/queue-name"

	jobNameLabel = "batch.kubernetes.io/job-name" // of a pod
	jobUIDLabel  = kueueGroup + "/job-uid"        // of a Workload
)

// A workload is what is read of Kueue's Workload: the queue's view of a Job.
type workload struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		QueueName string `json:"queueName"`
		Active    *bool  `json:"active"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// A queue is what is read of Kueue's LocalQueue and ClusterQueue.
type queue struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		ClusterQueue string `json:"clusterQueue"` // of a LocalQueue
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// errOtherAPI is about an object that is not as this program knows it.
var errOtherAPI = errors.New("not as this version of its API says")

// decode makes a typed object of what the server sent.
func decode[T any](from *unstructured.Unstructured) (*T, error) {
	into := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, into); err != nil {
		return nil, fmt.Errorf("%s %s is %w: %w", from.GetKind(), from.GetName(), errOtherAPI, err)
	}
	return into, nil
}

// objects are what the cluster says of one Job at a time.
type objects struct {
	job        *batchv1.Job // nil once it is gone
	pods       []corev1.Pod
	lost       string // the name of a pod that was there
	workloads  []workload
	queues     []queue // the LocalQueue of the Job, if it is there
	queueKnown bool    // whether anybody looked
	// warning is the message of the newest event about the Job that reports a problem.
	warning string
}

// ownedBy reports whether an object is the Job's own, and not that of another of the same name.
func ownedBy(object metav1.Object, job types.UID) bool {
	for _, owner := range object.GetOwnerReferences() {
		if owner.UID == job {
			return true
		}
	}
	return false
}

// condition returns the condition of the type if it is true.
func condition(conditions []metav1.Condition, kind string) *metav1.Condition {
	for i, c := range conditions {
		if c.Type == kind && c.Status == metav1.ConditionTrue {
			return &conditions[i]
		}
	}
	return nil
}

func jobCondition(job *batchv1.Job, kinds ...batchv1.JobConditionType) *batchv1.JobCondition {
	for i, c := range job.Status.Conditions {
		if slices.Contains(kinds, c.Type) && c.Status == corev1.ConditionTrue {
			return &job.Status.Conditions[i]
		}
	}
	return nil
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i, c := range pod.Status.Conditions {
		if c.Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
