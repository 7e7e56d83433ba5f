package deploy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Values of fields that all containers have.
const (
	pullIfNotPresent = "IfNotPresent"
	fallbackToLogs   = "FallbackToLogsOnError" // the end of the log is the message of a container that failed
	archLabel        = "kubernetes.io/arch"
)

// binary is where our image has its only program, and "nobody" the user that it runs as: see Dockerfile.
const (
	binary = "/vllm-vcr"
	nobody = 65532
)

// TraceDir is where the containers tap and loadgen have what is captured.
const TraceDir = "/trace"

// Other folders in the pod.
const (
	modelCacheDir = "/models"
	modelDir      = "/model"
	homeDir       = "/home/vllm"
)

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

// podOf is the pod of a capture.
func podOf(t target.Target, r Run) (PodSpec, error) {
	if t.Session != nil {
		return PodSpec{}, fmt.Errorf("session %s needs models and a frontend that are made on this machine: capture it with --local", t.Session.Name)
	}
	if t.Workload.Kind == load.Arrivals {
		return PodSpec{}, fmt.Errorf("its arrivals are in the file %s of this machine, which no pod has: capture it with --local", t.Workload.Shape.Arrivals)
	}
	needs, err := engineNeeds(t.Model)
	if err != nil {
		return PodSpec{}, err
	}
	at, prepare, err := addresses(t, r)
	if err != nil {
		return PodSpec{}, err
	}
	names := []string{"trace", "home", "tmp", "model-cache", "shm"}
	if at.Model != "" {
		names = append(names, "model")
	}
	volumes, err := volumesOf(r, names...)
	if err != nil {
		return PodSpec{}, err
	}
	pod := basePod()
	pod.RestartPolicy = "Never"
	pod.TerminationGracePeriodSeconds = 60 // the tap may still write what it has when the pod is taken away
	pod.NodeSelector = map[string]string{archLabel: "amd64"}
	maps.Copy(pod.NodeSelector, r.NodeSelector)
	pod.Affinity, pod.Tolerations = gpuNode(t.Model, r)
	pod.Volumes = volumes
	pod.InitContainers = append(prepare, frontendOf(t, r, at), tapOf(t, r, at), engineOf(t, r, at, needs))
	pod.Containers = []Container{loadgenOf(t, r, at)}
	return pod, nil
}

// basePod is what all pods have: the restricted profile of the pod security standards, and nothing of the cluster's.
func basePod() PodSpec {
	return PodSpec{
		AutomountServiceAccountToken: false,
		// Otherwise a Service called "vllm" would set VLLM_PORT, which the engine takes for its own.
		EnableServiceLinks: false,
		SecurityContext: PodSecurityContext{
			RunAsNonRoot: true, RunAsUser: nobody, RunAsGroup: nobody, FSGroup: nobody,
			SeccompProfile: SeccompProfile{Type: "RuntimeDefault"},
		},
	}
}

// confined is the security of a container. The engine's own files stay writable: its libraries compile what they run.
func confined(readOnly bool) SecurityContext {
	return SecurityContext{
		AllowPrivilegeEscalation: false, ReadOnlyRootFilesystem: readOnly, RunAsNonRoot: true,
		Capabilities: Capabilities{Drop: []string{"ALL"}},
	}
}

// addresses are where the programs meet, and the init containers that must have run before.
func addresses(t target.Target, r Run) (target.Addresses, []Container, error) {
	at := target.Addresses{
		Host: "0.0.0.0", HTTP: httpPort, FrontendHandshake: frontendHandshake, EngineHandshake: engineHandshake,
		ReadyTimeout: r.Start,
	}
	folder, isFolder := t.Model.Folder()
	if !isFolder {
		return at, nil, nil
	}
	if err := inBinary(t.Model.Key, folder); err != nil {
		return at, nil, err
	}
	at.Model = modelDir
	export := []string{"golden", "export", "--model-out", modelDir}
	return at, []Container{exporter("model", t.Images.Tap, export, mounts("model", modelDir))}, nil
}

// exporter is an init container that writes what our program has in itself, or fetches.
func exporter(name, image string, args []string, at []VolumeMount) Container {
	return Container{
		Name: name, Image: image, ImagePullPolicy: pullIfNotPresent,
		Command: []string{binary}, Args: args, Env: []EnvVar{{Name: "VLLM_VCR_CACHE_DIR", Value: "/tmp/cache"}},
		Resources: fixed("1", "1Gi"), SecurityContext: confined(true),
		TerminationMessagePolicy: fallbackToLogs,
		VolumeMounts:             at,
	}
}

// inBinary demands of a model that is a folder to be the one that the program has in itself: a pod has no other.
func inBinary(key, folder string) error {
	folder = path.Clean(folder)
	if folder == modelOfBinary || strings.HasSuffix(folder, "/"+modelOfBinary) {
		return nil
	}
	return fmt.Errorf("model %s is the folder %s, which no pod has: name a model of the hub", key, folder)
}

// sidecar is a container that runs as long as the load generator does.
func sidecar(name, image string, readOnly bool) Container {
	return Container{
		Name: name, Image: image, ImagePullPolicy: pullIfNotPresent,
		RestartPolicy:            "Always",
		TerminationMessagePolicy: fallbackToLogs,
		SecurityContext:          confined(readOnly),
	}
}

func frontendOf(t target.Target, r Run, at target.Addresses) Container {
	c := sidecar(Frontend, frontendImage(t), true)
	c.Command, c.Args, c.WorkingDir = rustCommand(t), t.FrontendArgs(at), homeDir
	c.Env = append(programEnv(t), r.hubEnv()...)
	c.Resources = fixed("2", "4Gi")
	c.VolumeMounts = mounts("home", homeDir, "tmp", "/tmp", "model-cache", modelCacheDir)
	if at.Model != "" {
		c.VolumeMounts = append(c.VolumeMounts, readOnly("model", modelDir))
	}
	// Not a startup probe: the containers behind it would wait for what only they can bring about. The kubelet asks at the
	// pod's address; others are kept away by the network policy of the folder deploy.
	c.Ports = []ContainerPort{{Name: "http", ContainerPort: httpPort}}
	c.ReadinessProbe = health(5, 3)
	return c
}

// frontendImage is the image that has vllm-rs.
func frontendImage(t target.Target) string { return cmp.Or(t.Images.Frontend, t.Images.Engine) }

// rustCommand is how vllm-rs is called: it lies in the wheel that the engine's image has, and an image of its own has
// it on the path.
func rustCommand(t target.Target) []string {
	if frontendImage(t) == t.Images.Engine {
		return []string{"python3", "-c", launcher}
	}
	return []string{"vllm-rs"}
}

func tapOf(t target.Target, r Run, at target.Addresses) Container {
	c := sidecar(Tap, t.Images.Tap, true)
	c.Command = []string{binary}
	c.Args = append(t.TapArgs(at, TraceDir),
		"--until", path.Join(TraceDir, "load-done"), "--handshake-timeout", r.Start.String())
	c.Resources = fixed("2", "2Gi")
	c.VolumeMounts = mounts("trace", TraceDir)
	return c
}

func engineOf(t target.Target, r Run, at target.Addresses, needs ResourceList) Container {
	c := sidecar(Engine, t.Images.Engine, false)
	// Images start in a folder with parts of vLLM's sources, which Python would take for the package.
	c.Command, c.Args, c.WorkingDir = []string{"vllm"}, t.EngineArgs(at), homeDir
	c.Env = append(programEnv(t), r.hubEnv()...)
	c.Resources = ResourceRequirements{Requests: needs, Limits: needs}
	c.VolumeMounts = mounts("home", homeDir, "model-cache", modelCacheDir, "shm", "/dev/shm")
	if at.Model != "" {
		c.VolumeMounts = append(c.VolumeMounts, readOnly("model", modelDir))
	}
	return c
}

func loadgenOf(t target.Target, r Run, at target.Addresses) Container {
	return Container{
		Name: Loadgen, Image: t.Images.Tap, ImagePullPolicy: pullIfNotPresent,
		Command: []string{binary},
		Args: append(t.LoadArgs(at, TraceDir),
			"--trace-dir", TraceDir, "--server-timeout", r.Start.String(), "--fetch-timeout", r.Fetch.String()),
		Resources:                fixed("2", "2Gi"),
		TerminationMessagePolicy: fallbackToLogs,
		SecurityContext:          confined(true),
		VolumeMounts:             mounts("trace", TraceDir),
		ReadinessProbe: &Probe{
			Exec:          &ExecAction{Command: []string{binary, "capture", "pod", "ready", "--dir", TraceDir}},
			PeriodSeconds: 5, TimeoutSeconds: 10, SuccessThreshold: 1, FailureThreshold: 1,
		},
	}
}

// programEnv is the environment of engine and frontend. Their user is in no list of users, hence the name and the home.
func programEnv(t target.Target) []EnvVar {
	env := []EnvVar{
		{Name: "HOME", Value: homeDir}, {Name: "USER", Value: "vllm"}, {Name: "LOGNAME", Value: "vllm"},
	}
	for _, pair := range t.EngineEnv() {
		name, value, _ := strings.Cut(pair, "=")
		env = append(env, EnvVar{Name: name, Value: value})
	}
	return env
}

// engineNeeds is what the engine's container asks for.
func engineNeeds(m target.Model) (ResourceList, error) {
	usual := [2]string{"8", "64Gi"}
	if m.OnCPU() {
		usual = [2]string{"4", "16Gi"}
	}
	needs := ResourceList{}
	for _, n := range []struct {
		name, value string
	}{
		{"cpu", cmp.Or(m.CPU, usual[0])},
		{"memory", cmp.Or(m.Memory, usual[1])},
	} {
		q, err := resource.ParseQuantity(n.value)
		if err != nil || q.Sign() <= 0 {
			return nil, fmt.Errorf("model %s: %s %q: want a quantity such as %s", m.Key, n.name, n.value, usual[0])
		}
		needs[n.name] = q
	}
	switch {
	case m.OnCPU() && m.GPUs > 0:
		return nil, fmt.Errorf("model %s: gpu is cpu, and gpus is %d: want one of the two", m.Key, m.GPUs)
	case m.GPUs < 0:
		return nil, errors.New("less than no GPU")
	case !m.OnCPU():
		needs[gpuResource] = resource.MustParse(strconv.Itoa(max(1, m.GPUs)))
	}
	return needs, nil
}

const (
	gpuResource = "nvidia.com/gpu"
	gpuProduct  = "nvidia.com/gpu.product"
)

// gpuNode demands a node with the GPU that the target names, as its configuration hash says that it ran there. Nodes
// are labelled with the product, mostly with the maker before it. A run that selects the product itself knows better.
func gpuNode(m target.Model, r Run) (*Affinity, []Toleration) {
	if m.OnCPU() {
		return nil, nil
	}
	tolerations := []Toleration{{
		Key: gpuResource, Operator: "Exists", Effect: "NoSchedule",
	}}
	if _, chosen := r.NodeSelector[gpuProduct]; chosen {
		return nil, tolerations
	}
	return &Affinity{NodeAffinity: NodeAffinity{
		Required: NodeSelector{
			NodeSelectorTerms: []NodeSelectorTerm{{MatchExpressions: []NodeSelectorRequirement{{
				Key: gpuProduct, Operator: "In", Values: []string{m.GPU, "NVIDIA-" + m.GPU},
			}}}},
		},
	}}, tolerations
}

// volumesOf are the named volumes. All of them end with the pod.
func volumesOf(r Run, names ...string) ([]Volume, error) {
	var all []Volume
	for _, name := range names {
		size, medium := "20Gi", ""
		switch name {
		case "model-cache":
			size = r.ModelCache
		case "shm":
			size, medium = "8Gi", "Memory"
		case "tmp", "model":
			size = "1Gi"
		}
		limit, err := resource.ParseQuantity(size)
		if err != nil {
			return nil, err
		}
		all = append(all, Volume{Name: name, EmptyDir: EmptyDir{Medium: medium, SizeLimit: limit}})
	}
	return all, nil
}

// mounts are of pairs of volume and folder.
func mounts(pairs ...string) []VolumeMount {
	var all []VolumeMount
	for i := 0; i+1 < len(pairs); i += 2 {
		all = append(all, VolumeMount{Name: pairs[i], MountPath: pairs[i+1]})
	}
	return all
}

func readOnly(volume, folder string) VolumeMount {
	return VolumeMount{Name: volume, MountPath: folder, ReadOnly: true}
}

// fixed asks for so much and gets no more: a capture that others hold up has wrong times.
func fixed(cpu, memory string) ResourceRequirements {
	list := ResourceList{
		"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory),
	}
	return ResourceRequirements{Requests: list, Limits: list}
}

func health(period, failures int32) *Probe {
	return &Probe{
		HTTPGet:       &HTTPGet{Path: "/health", Port: "http", Scheme: "HTTP"},
		PeriodSeconds: period, TimeoutSeconds: 5, FailureThreshold: cmp.Or(failures, 1),
	}
}
