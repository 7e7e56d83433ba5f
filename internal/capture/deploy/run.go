package deploy

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Names that a cluster knows a capture by.
const (
	// DefaultQueue is the local queue, and the cluster queue, of the folder deploy.
	DefaultQueue = "conformance-queue"
	// DefaultNamespace is the one of the folder deploy.
	DefaultNamespace = "vllm-vcr"

	labelPrefix = "vllm-vcr.github.io/"
	// LabelLine, LabelTarget and LabelRun are on the Job and its pod: the line, the id of the target in it, and the run.
	LabelLine   = labelPrefix + "line"
	LabelTarget = labelPrefix + "target"
	LabelRun    = labelPrefix + "run"
	// AnnotationTarget is the full name of the target, which is not a label as it has a slash.
	AnnotationTarget = labelPrefix + "target"
	// AnnotationConfigHash is the hash of the configuration that is deployed.
	AnnotationConfigHash = labelPrefix + "config-hash"
	// AnnotationImages begins the annotations that name the image of a container.
	AnnotationImages = labelPrefix + "image-"

	labelManagedBy = "app.kubernetes.io/managed-by"
	labelName      = "app.kubernetes.io/name"
	labelPart      = "app.kubernetes.io/component"
	labelQueue     = "kueue.x-k8s.io/queue-name"
	managedBy      = "vllm-vcr"
)

// Containers of the pod.
const (
	Frontend = "frontend"
	Tap      = "tap"
	Engine   = "engine"
	// Loadgen is the main container. Files are fetched from it.
	Loadgen = "loadgen"
)

// A Run is what the Jobs of one run have in common, whatever their targets are.
type Run struct {
	// ID distinguishes the run from others, in names and labels: "17", "20261121-a1b2". At most 20 lower-case letters, digits
	// and hyphens.
	ID        string
	Namespace string // that of the client unless given
	Queue     string // local queue; DefaultQueue unless given

	// Start is how long the engine may take to serve, Load how long the load may take after that, and Fetch how long the
	// files wait for somebody to fetch them. An hour, an hour and two hours unless given.
	Start, Load, Fetch time.Duration

	// ModelCache is the size of the volume for models of the hub, 100Gi unless given.
	ModelCache string
	// TokenSecret names the secret, "NAME" or "NAME/KEY", that has the token of the model hub under the key, "token"
	// unless given. Without it models are had anonymously.
	TokenSecret string
	// NodeSelector are labels of the nodes that may be used, beside that of the architecture.
	NodeSelector map[string]string
}

const (
	defaultStart = time.Hour
	defaultLoad  = time.Hour
	defaultFetch = 2 * time.Hour
	// slack is what a Job may take beyond its budgets, to pull images and to end.
	slack = 15 * time.Minute
	// keep is how long a Job that has ended, with the logs of its pod, stays unless somebody deletes it.
	keep = 24 * time.Hour

	longestRunID = 20
)

var runID = lazyregexp.New(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// withDefaults checks a run and fills in what is not given.
func (r Run) withDefaults() (Run, error) {
	r.Queue = cmp.Or(r.Queue, DefaultQueue)
	r.Start, r.Load, r.Fetch = cmp.Or(r.Start, defaultStart), cmp.Or(r.Load, defaultLoad), cmp.Or(r.Fetch, defaultFetch)
	r.ModelCache = cmp.Or(r.ModelCache, "100Gi")
	return r, errors.Join(r.checkNames(), r.checkBudgets(), r.checkVolumes())
}

func (r Run) checkNames() error {
	var wrong []error
	if len(r.ID) > longestRunID || !runID().MatchString(r.ID) {
		wrong = append(wrong,
			fmt.Errorf("run id %q: want at most %d lower-case letters, digits and hyphens", r.ID, longestRunID))
	}
	if r.Namespace != "" && !valid(validation.IsDNS1123Label(r.Namespace)) {
		wrong = append(wrong, fmt.Errorf("namespace %q is not a valid name", r.Namespace))
	}
	if !valid(validation.IsDNS1123Subdomain(r.Queue)) || len(r.Queue) > validation.LabelValueMaxLength {
		wrong = append(wrong, fmt.Errorf("queue %q is not a valid name", r.Queue))
	}
	for key, value := range r.NodeSelector {
		if !valid(validation.IsQualifiedName(key)) || !valid(validation.IsValidLabelValue(value)) {
			wrong = append(wrong, fmt.Errorf("node selector %q=%q is not a valid label", key, value))
		}
	}
	return errors.Join(wrong...)
}

func (r Run) checkBudgets() error {
	for _, b := range []struct {
		name  string
		given time.Duration
	}{{"start", r.Start}, {"load", r.Load}, {"fetch", r.Fetch}} {
		if b.given < time.Second || b.given > 7*24*time.Hour {
			return fmt.Errorf("%s budget %v: want between a second and a week", b.name, b.given)
		}
	}
	return nil
}

func (r Run) checkVolumes() error {
	if size, err := resource.ParseQuantity(r.ModelCache); err != nil || size.Sign() <= 0 {
		return fmt.Errorf("size of the model cache %q: want one such as 100Gi", r.ModelCache)
	}
	name, key := r.token()
	if r.TokenSecret != "" && (!valid(validation.IsDNS1123Subdomain(name)) || !valid(validation.IsConfigMapKey(key))) {
		// What was given may be the token itself, which must not be shown.
		return errors.New("secret of the model hub's token: want the name of a Secret, NAME or NAME/KEY, not the token")
	}
	return nil
}

// token is the secret of the hub's token, and the key in it.
func (r Run) token() (name, key string) {
	name, key, _ = strings.Cut(r.TokenSecret, "/")
	return name, cmp.Or(key, "token")
}

// valid reports whether a rule of Kubernetes found nothing against a name.
func valid(against []string) bool { return len(against) == 0 }
