package deploy

import (
	"encoding/json"
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

// A Job is one of batch/v1, with the fields of job.yaml.tmpl.
type Job struct {
	Name, Namespace     string
	Labels, Annotations map[string]string

	fields map[string]any // of the whole object
}

// MarshalJSON implements [json.Marshaler].
func (j *Job) MarshalJSON() ([]byte, error) { return json.Marshal(j.fields) }

// UnmarshalJSON implements [json.Unmarshaler].
func (j *Job) UnmarshalJSON(text []byte) error {
	var known struct {
		Metadata struct {
			Name, Namespace     string
			Labels, Annotations map[string]string
		}
	}
	j.fields = nil
	if err := errors.Join(json.Unmarshal(text, &j.fields), json.Unmarshal(text, &known)); err != nil {
		return err
	}
	j.Name, j.Namespace = known.Metadata.Name, known.Metadata.Namespace
	j.Labels, j.Annotations = known.Metadata.Labels, known.Metadata.Annotations
	return nil
}

// NewJob renders the capture of a target: a suspended Job that the queue admits. The same target and run always give the
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
	labels := map[string]string{
		labelName: "vllm-vcr", labelPart: "capture", labelManagedBy: managedBy,
		LabelLine: t.Line, LabelTarget: t.ID, LabelRun: r.ID,
	}
	// That of the queue is not on its pod, which is not queued by itself.
	ofJob := maps.Clone(labels)
	ofJob[labelQueue] = r.Queue
	d := &jobData{
		Target: t, Run: r, Name: name, JobLabels: ofJob, Labels: labels,
		Annotations: map[string]string{
			AnnotationTarget: t.Name(), AnnotationConfigHash: t.ConfigHash(), AnnotationImages + Frontend: frontendImage(t),
			AnnotationImages + Tap: t.Images.Tap, AnnotationImages + Engine: t.Images.Engine,
		},
		Deadline: seconds(r.Start + r.Load + r.Fetch + slack), Keep: seconds(keep),
	}
	if err := d.fill(); err != nil {
		return nil, fmt.Errorf("target %s: %w", t.Name(), err)
	}
	fields, err := d.render()
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", t.Name(), err)
	}
	return &Job{Name: name, Namespace: r.Namespace, Labels: ofJob, Annotations: d.Annotations, fields: fields}, nil
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
