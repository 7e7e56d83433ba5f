package deploy

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"
	"text/template"

	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// TraceDir is where the containers tap and loadgen have what is captured.
const TraceDir = "/trace"

// Ports of the pod. All but that of HTTP, which the kubelet asks for health, are of its loopback alone.
const (
	httpPort          = 8000
	frontendHandshake = 5570
	engineHandshake   = 5580
)

// launcher runs the vllm-rs that lies in the wheel of vLLM. It finds the package without importing it, which would take
// seconds and a GPU.
const launcher = `import importlib.util, os, sys
program = os.path.join(importlib.util.find_spec("vllm").submodule_search_locations[0], "vllm-rs")
os.execv(program, [program] + sys.argv[1:])`

// modelOfBinary is the only model that is not had from the hub: the program has it in itself.
const modelOfBinary = "testdata/model/tiny"

//go:embed job.yaml.tmpl
var jobTemplate string

// jobData is what job.yaml.tmpl is filled with.
type jobData struct {
	Target                         target.Target
	Run                            Run
	Name                           string
	JobLabels, Labels, Annotations map[string]string
	Deadline, Keep                 int64 // seconds
	At                             target.Addresses

	NodeSelector      map[string]string
	GPUs              bool
	GPUProducts       []string // of the nodes, unless the run selects them
	ModelCache        string
	FrontendImage     string
	FrontendCommand   []string
	TapArgs, LoadArgs []string
	Env               []map[string]any // of engine and frontend
	// What containers ask for, and no more: a capture that others hold up has wrong times.
	EngineNeeds, Small, Middle, Large map[string]string
}

// render makes the fields of the Job.
func (d *jobData) render() (map[string]any, error) {
	asJSON := func(value any) (string, error) {
		text, err := json.Marshal(value)
		return string(text), err
	}
	parsed, err := template.New("job").Funcs(template.FuncMap{"json": asJSON}).Parse(jobTemplate)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := parsed.Execute(&text, d); err != nil {
		return nil, err
	}
	var fields map[string]any
	return fields, yaml.Unmarshal(text.Bytes(), &fields)
}

// fill decides what the pod of a capture has.
func (d *jobData) fill() error {
	t, r := d.Target, d.Run
	if t.Session != nil {
		return fmt.Errorf("session %s needs models and a frontend that are made on this machine: capture it with --local", t.Session.Name)
	}
	if t.Workload.Kind == load.Arrivals {
		return fmt.Errorf("its arrivals are in the file %s of this machine, which no pod has: capture it with --local", t.Workload.Shape.Arrivals)
	}
	var err error
	if d.EngineNeeds, err = engineNeeds(t.Model); err != nil {
		return err
	}
	d.At = target.Addresses{
		Host: "0.0.0.0", HTTP: httpPort, FrontendHandshake: frontendHandshake, EngineHandshake: engineHandshake,
		ReadyTimeout: r.Start,
	}
	if folder, isFolder := t.Model.Folder(); isFolder {
		if err := inBinary(t.Model.Key, folder); err != nil {
			return err
		}
		d.At.Model = "/model"
	}
	d.NodeSelector = map[string]string{"kubernetes.io/arch": "amd64"}
	maps.Copy(d.NodeSelector, r.NodeSelector)
	d.GPUs = !t.Model.OnCPU()
	if _, chosen := r.NodeSelector["nvidia.com/gpu.product"]; d.GPUs && !chosen {
		d.GPUProducts = []string{t.Model.GPU, "NVIDIA-" + t.Model.GPU}
	}
	size, err := resource.ParseQuantity(r.ModelCache)
	if err != nil {
		return err
	}
	d.ModelCache = size.String()
	d.FrontendImage, d.FrontendCommand = frontendImage(t), frontendCommand(t)
	d.TapArgs = append(t.TapArgs(d.At, TraceDir), "--until", path.Join(TraceDir, load.Done), "--handshake-timeout", r.Start.String())
	d.LoadArgs = append(t.LoadArgs(d.At, TraceDir),
		"--trace-dir", TraceDir, "--server-timeout", r.Start.String(), "--fetch-timeout", r.Fetch.String())
	d.Env = programEnv(t, r)
	d.Small, d.Middle, d.Large = needs("1", "1Gi"), needs("2", "2Gi"), needs("2", "4Gi")
	return nil
}

func needs(cpu, memory string) map[string]string {
	return map[string]string{"cpu": cpu, "memory": memory}
}

// inBinary demands of a model that is a folder to be the one that the program has in itself: a pod has no other.
func inBinary(key, folder string) error {
	folder = path.Clean(folder)
	if folder == modelOfBinary || strings.HasSuffix(folder, "/"+modelOfBinary) {
		return nil
	}
	return fmt.Errorf("model %s is the folder %s, which no pod has: name a model of the hub", key, folder)
}

// frontendImage is the image that has vllm-rs.
func frontendImage(t target.Target) string { return cmp.Or(t.Images.Frontend, t.Images.Engine) }

// frontendCommand is how vllm-rs is called: it lies in the wheel that the engine's image has, and an image of its own has
// it on the path.
func frontendCommand(t target.Target) []string {
	if frontendImage(t) == t.Images.Engine {
		return []string{"python3", "-c", launcher}
	}
	return []string{"vllm-rs"}
}

// programEnv is the environment of engine and frontend. Their user is in no list of users, hence the name and the home.
func programEnv(t target.Target, r Run) []map[string]any {
	var env []map[string]any
	for _, pair := range append([]string{"HOME=/home/vllm", "USER=vllm", "LOGNAME=vllm"}, append(t.EngineEnv(), "HF_HOME=/models")...) {
		name, value, _ := strings.Cut(pair, "=")
		env = append(env, map[string]any{"name": name, "value": value})
	}
	if r.TokenSecret != "" {
		name, key := r.token()
		env = append(env, map[string]any{"name": "HF_TOKEN", "valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": name, "key": key}}})
	}
	return env
}

// engineNeeds is what the engine's container asks for.
func engineNeeds(m target.Model) (map[string]string, error) {
	usual := needs("8", "64Gi")
	if m.OnCPU() {
		usual = needs("4", "16Gi")
	}
	asked := map[string]string{}
	for _, n := range []struct{ name, value string }{{"cpu", m.CPU}, {"memory", m.Memory}} {
		value := cmp.Or(n.value, usual[n.name])
		q, err := resource.ParseQuantity(value)
		if err != nil || q.Sign() <= 0 {
			return nil, fmt.Errorf("model %s: %s %q: want a quantity such as %s", m.Key, n.name, value, usual["cpu"])
		}
		asked[n.name] = q.String()
	}
	switch {
	case m.OnCPU() && m.GPUs > 0:
		return nil, fmt.Errorf("model %s: gpu is cpu, and gpus is %d: want one of the two", m.Key, m.GPUs)
	case m.GPUs < 0:
		return nil, errors.New("less than no GPU")
	case !m.OnCPU():
		asked["nvidia.com/gpu"] = strconv.Itoa(max(1, m.GPUs))
	}
	return asked, nil
}
