package deploy

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/capture/target"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Jobs renders the Job of each target, in their order. All that is wrong is reported at once.
func Jobs(targets []target.Target, r Run) ([]*Job, error) {
	if _, err := r.withDefaults(); err != nil {
		return nil, err
	}
	var jobs []*Job
	var wrong []error
	of := map[string]string{} // the target of a name
	for _, t := range targets {
		job, err := NewJob(t, r)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		if other, taken := of[job.Name]; taken {
			wrong = append(wrong, fmt.Errorf("%s and %s: both would be the Job %s", other, t.Name(), job.Name))
		}
		of[job.Name] = t.Name()
		jobs = append(jobs, job)
	}
	return jobs, errors.Join(wrong...)
}

// Job renders the capture of a target: a suspended Job that the queue admits. The same target and run always give the
// same Job.
func NewJob(t target.Target, r Run) (*Job, error) {
	r, err := r.withDefaults()
	if err != nil {
		return nil, err
	}
	name, err := jobName(t, r.ID)
	if err != nil {
		return nil, err
	}
	if err := checkImages(t); err != nil {
		return nil, err
	}
	pod, err := podOf(t, r)
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", t.Name(), err)
	}
	labels := map[string]string{
		labelName: "vllm-vcr", labelPart: "capture", labelManagedBy: managedBy,
		LabelLine: t.Line, LabelTarget: t.ID, LabelRun: r.ID,
	}
	annotations := annotationsOf(t, pod)
	// That of the queue is not on its pod, which is not queued by itself.
	ofJob := maps.Clone(labels)
	ofJob[labelQueue] = r.Queue
	return &Job{
		TypeMeta: TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: ObjectMeta{
			Name: name, Namespace: r.Namespace, Labels: ofJob, Annotations: annotations,
		},
		Spec: JobSpec{
			Suspend:                 true, // until the queue admits it
			Parallelism:             1,
			Completions:             1,
			BackoffLimit:            0, // what a second pod would record is another run
			ActiveDeadlineSeconds:   seconds(r.Start + r.Load + r.Fetch + slack),
			TTLSecondsAfterFinished: int32(seconds(keep)),
			PodReplacementPolicy:    "Failed",
			PodFailurePolicy:        failurePolicy(),
			Template: PodTemplateSpec{
				ObjectMeta: ObjectMeta{Labels: labels, Annotations: annotations},
				Spec:       pod,
			},
		},
	}, nil
}

// failurePolicy makes the condition of a failed Job say which container failed, or what took the pod away, instead of
// how many pods it may have.
func failurePolicy() PodFailurePolicy {
	return PodFailurePolicy{Rules: []PodFailurePolicyRule{
		{
			Action:      "FailJob",
			OnExitCodes: &OnExitCodes{ContainerName: Loadgen, Operator: "NotIn", Values: []int32{0}},
		},
		{
			Action:          "FailJob",
			OnPodConditions: []PodConditionPattern{{Type: "DisruptionTarget", Status: "True"}},
		},
	}}
}

var notInNames = lazyregexp.New(`[^a-z0-9]+`)

// jobName is the name of a target's Job in a run: capture-0-33-multiturn-s7-17. It is a label of the pod, too, which
// bounds its length.
func jobName(t target.Target, run string) (string, error) {
	name := "capture-" + dashed(t.Line+"-"+t.ID) + "-" + run
	if len(name) > validation.LabelValueMaxLength {
		return "", fmt.Errorf("target %s: the name of its Job, %s, has %d characters of at most %d: shorten its id or the "+
			"run id", t.Name(), name, len(name), validation.LabelValueMaxLength)
	}
	for _, label := range []string{t.Line, t.ID} {
		if !valid(validation.IsValidLabelValue(label)) {
			return "", fmt.Errorf("target %s: %q cannot be a label: want letters, digits and hyphens", t.Name(), label)
		}
	}
	return name, nil
}

// dashed is a name in the characters that names in a cluster have.
func dashed(name string) string { return notInNames().ReplaceAllString(strings.ToLower(name), "-") }

func annotationsOf(t target.Target, pod PodSpec) map[string]string {
	annotations := map[string]string{AnnotationTarget: t.Name(), AnnotationConfigHash: t.ConfigHash()}
	for _, c := range pod.InitContainers {
		if c.RestartPolicy != "" {
			annotations[AnnotationImages+c.Name] = c.Image
		}
	}
	return annotations
}

var byDigest = lazyregexp.New(`^[a-z0-9][-a-zA-Z0-9._:/]*@sha256:[0-9a-f]{64}$`)

// checkImages demands images that cannot change: what ran is a part of what a golden says of itself.
func checkImages(t target.Target) error {
	var wrong []error
	for _, i := range []struct{ key, image string }{
		{"engine_image", t.Images.Engine}, {"frontend_image", frontendImage(t)}, {"tap_image", t.Images.Tap},
	} {
		if err := checkImage(i.image); err != nil && (i.key != "frontend_image" || t.Images.Frontend != "") {
			wrong = append(wrong, fmt.Errorf("target %s: %s of line %s: %w", t.Name(), i.key, t.Line, err))
		}
	}
	return errors.Join(wrong...)
}

func checkImage(image string) error {
	switch {
	case image == "":
		return errors.New("there is none: give the line one in the file of targets, or capture with --local")
	case !byDigest().MatchString(image):
		return fmt.Errorf("%q has no digest: want NAME:TAG@sha256:…", image)
	}
	return nil
}

func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
