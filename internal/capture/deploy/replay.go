package deploy

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/vllm-vcr/conformance/internal/capture/target"

	"k8s.io/apimachinery/pkg/util/validation"
)

// A FrontendKind is one of the two frontends of vLLM.
type FrontendKind string

// Kinds of frontends.
const (
	Rust   FrontendKind = "rust"   // vllm-rs
	Python FrontendKind = "python" // vllm serve
)

// FrontendKinds are both, the usual one first.
func FrontendKinds() []FrontendKind { return []FrontendKind{Rust, Python} }

// A Replay is a golden served over HTTP, by a real frontend with the player in the engine's place.
type Replay struct {
	// Target is what the golden was captured of. Its images are the frontend's and ours.
	Target   target.Target
	Frontend FrontendKind
	// Source are flags of golden export that say where the golden is, if it is not in the binary.
	Source []string

	Namespace   string // that of the client unless given
	TokenSecret string // as [Run.TokenSecret]
	ModelCache  string // as [Run.ModelCache]
}

const replayDir = "/replay"

// Objects are the Deployment and the Service of a replay.
func (p Replay) Objects() ([]any, error) {
	r := Run{ID: "replay", Namespace: p.Namespace, TokenSecret: p.TokenSecret, ModelCache: p.ModelCache}
	r, err := r.withDefaults()
	if err != nil {
		return nil, err
	}
	if !slices.Contains(FrontendKinds(), p.Frontend) {
		return nil, fmt.Errorf("frontend %q: want one of %q", p.Frontend, FrontendKinds())
	}
	if err := checkReplayImages(p.Target); err != nil {
		return nil, err
	}
	name, err := replayName(p.Target)
	if err != nil {
		return nil, err
	}
	pod, err := p.pod(r)
	if err != nil {
		return nil, fmt.Errorf("golden %s: %w", p.Target.Name(), err)
	}
	labels := map[string]string{
		labelName: "vllm-vcr", labelPart: "replay", labelManagedBy: managedBy,
		LabelLine: p.Target.Line, LabelTarget: p.Target.ID,
	}
	meta := ObjectMeta{Name: name, Namespace: p.Namespace, Labels: labels}
	return []any{
		&Deployment{
			TypeMeta: TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: meta,
			Spec: DeploymentSpec{
				Replicas: 1, Selector: LabelSelector{MatchLabels: labels},
				// A player registers with one frontend, once: two pods side by side would be two replays.
				Strategy: DeploymentStrategy{Type: "Recreate"},
				Template: PodTemplateSpec{ObjectMeta: ObjectMeta{Labels: labels}, Spec: pod},
			},
		},
		&Service{
			TypeMeta: TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta,
			Spec: ServiceSpec{Selector: labels, Ports: []ServicePort{
				{Name: "http", Port: httpPort, TargetPort: "http"},
			}},
		},
	}, nil
}

func checkReplayImages(t target.Target) error {
	var wrong []error
	for _, i := range []struct{ what, image string }{
		{"image of the frontend", frontendImage(t)}, {"image of vllm-vcr", t.Images.Tap},
	} {
		switch {
		case i.image == "":
			wrong = append(wrong, fmt.Errorf("golden %s: no %s is given", t.Name(), i.what))
		case !byDigest().MatchString(i.image):
			wrong = append(wrong, fmt.Errorf("golden %s: %s: %w", t.Name(), i.what, checkImage(i.image)))
		}
	}
	return errors.Join(wrong...)
}

func replayName(t target.Target) (string, error) {
	name := "replay-" + dashed(t.Line+"-"+t.ID)
	if !valid(validation.IsDNS1035Label(name)) {
		return "", fmt.Errorf("golden %s: no Service can be called %s: want at most %d letters, digits and hyphens",
			t.Name(), name, validation.LabelValueMaxLength)
	}
	return name, nil
}

func (p Replay) pod(r Run) (PodSpec, error) {
	volumes, err := volumesOf(r, "replay", "home", "tmp", "model-cache", "shm")
	if err != nil {
		return PodSpec{}, err
	}
	at := target.Addresses{Host: "0.0.0.0", HTTP: httpPort, FrontendHandshake: frontendHandshake}
	export := slices.Concat([]string{
		"golden", "export", "--line", p.Target.Line, "--golden", p.Target.ID,
		"--output", path.Join(replayDir, target.TraceFile),
	}, p.Source)
	if folder, isFolder := p.Target.Model.Folder(); isFolder {
		if err := inBinary(p.Target.Model.Key, folder); err != nil {
			return PodSpec{}, err
		}
		at.Model = path.Join(replayDir, "model")
		export = append(export, "--model-out", at.Model)
	}
	pod := basePod()
	pod.NodeSelector = map[string]string{archLabel: "amd64"}
	pod.Volumes = volumes
	folders := mounts("replay", replayDir, "tmp", "/tmp")
	pod.InitContainers = []Container{exporter("golden", p.Target.Images.Tap, export, folders)}
	pod.Containers = []Container{p.player(), p.frontend(r, at)}
	return pod, nil
}

// player takes the engine's place. When its frontend goes away it ends, and the one that is started after it registers
// with the next frontend.
func (p Replay) player() Container {
	return Container{
		Name: "play", Image: p.Target.Images.Tap, ImagePullPolicy: pullIfNotPresent,
		Command: []string{binary},
		Args: []string{
			"play",
			"--frontend-handshake", "tcp://127.0.0.1:" + strconv.Itoa(frontendHandshake), "--handshake-timeout", "10m",
			"--trace", path.Join(replayDir, target.TraceFile), "--replay-match", "prefix",
			"--pace", "recorded", "--strict",
		},
		Resources: fixed("1", "1Gi"), SecurityContext: confined(true),
		TerminationMessagePolicy: fallbackToLogs,
		VolumeMounts:             []VolumeMount{readOnly("replay", replayDir)},
	}
}

func (p Replay) frontend(r Run, at target.Addresses) Container {
	folders := mounts("home", homeDir, "tmp", "/tmp", "model-cache", modelCacheDir, "shm", "/dev/shm")
	c := Container{
		Name: Frontend, Image: frontendImage(p.Target), ImagePullPolicy: pullIfNotPresent,
		Command: rustCommand(p.Target), Args: p.Target.FrontendArgs(at),
		WorkingDir: homeDir, Env: append(replayEnv(p.Target), r.hubEnv()...),
		Ports:                    []ContainerPort{{Name: "http", ContainerPort: httpPort}},
		Resources:                fixed("2", "4Gi"),
		SecurityContext:          confined(p.Frontend == Rust),
		TerminationMessagePolicy: fallbackToLogs,
		VolumeMounts:             append(folders, readOnly("replay", replayDir)),
		StartupProbe:             health(5, 120), // ten minutes to import PyTorch and to have the tokenizer
		ReadinessProbe:           health(5, 1),
		LivenessProbe:            health(10, 6),
	}
	if p.Frontend == Python {
		c.Command, c.Args = []string{"vllm"}, pythonArgs(p.Target, at)
	}
	return c
}

// replayEnv is the environment without the calls that act on the engine: others than the load generator reach a replay.
func replayEnv(t target.Target) []EnvVar {
	return slices.DeleteFunc(programEnv(t), func(e EnvVar) bool { return e.Name == "VLLM_SERVER_DEV_MODE" })
}

// pythonArgs are those of the engine, which the Python frontend takes, too, without an engine of its own.
func pythonArgs(t target.Target, at target.Addresses) []string {
	at.EngineHandshake = at.FrontendHandshake
	args := slices.DeleteFunc(t.EngineArgs(at), func(arg string) bool { return arg == "--headless" })
	args = append(args, "--data-parallel-size-local", "0", "--host", at.Host, "--port", strconv.Itoa(at.HTTP))
	if t.Scenario != target.LoRA {
		return args
	}
	args = append(args, "--lora-modules")
	for _, a := range t.Model.Adapters {
		args = append(args, a.Name+"="+a.Source)
	}
	return args
}

func health(period, failures int32) *Probe {
	return &Probe{
		HTTPGet:       &HTTPGet{Path: "/health", Port: "http", Scheme: "HTTP"},
		PeriodSeconds: period, TimeoutSeconds: 5, FailureThreshold: cmp.Or(failures, 1),
	}
}
