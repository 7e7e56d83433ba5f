package chart_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/vllm-vcr/conformance/internal/frontends/extproc"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A fleet is what a cluster makes of rendered objects, without a cluster: its pods are objects of a real API server and processes of this
// machine, each with an address of its own. The test does what a kubelet and the controller of a Deployment do.
type fleet struct {
	*testenv.Kube
	namespace, program, values string
	port                       int
	epp                        *extproc.Picker
	pods                       atomic.Int32
}

// A podProcess is the server of a pod.
type podProcess struct {
	f        *fleet
	name, ip string
	peer     *testenv.Peer
	cmd      *exec.Cmd
}

func newFleet(t *testing.T, values string) *fleet {
	t.Helper()
	f := &fleet{Kube: testenv.KubeAPI(t), program: testenv.VCR(t), port: testenv.FreePort(t)}
	f.namespace = f.Namespace(t)
	f.values = fmt.Sprintf(values, f.port)
	return f
}

// objects are those of the fleet with more values, which precede its own.
func (f *fleet) objects(t *testing.T, more ...string) map[string]any {
	t.Helper()
	byName := map[string]any{}
	for _, o := range renderIn(t, f.namespace, append([]string{f.values}, more...)...) {
		byName[name(o)] = o
	}
	return byName
}

// create starts a pod of a Deployment. It becomes ready as its readiness probe says.
func (f *fleet) create(t *testing.T, objects map[string]any, role string) *podProcess {
	t.Helper()
	d := typed(t, objects["Deployment/fleet-"+role]).(*appsv1.Deployment)
	config := typed(t, objects["ConfigMap/fleet-"+role]).(*corev1.ConfigMap)
	number := f.pods.Add(1)
	p := &podProcess{f: f, name: fmt.Sprintf("%s-%d", d.Name, number), ip: fmt.Sprintf("127.0.1.%d", number)}
	pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "spec": d.Spec.Template.Spec, "metadata": map[string]any{
		"name": p.name, "namespace": f.namespace, "labels": d.Spec.Template.Labels,
	}}
	if status, reply := post(t, f.Kube, pod); status != http.StatusCreated {
		t.Fatalf("%s: status %d: %s", p.name, status, reply)
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "serve.yaml"), []byte(config.Data["serve.yaml"]), 0o600))
	container := d.Spec.Template.Spec.Containers[0]
	// What a pod has for itself: folders, an address with all of its ports, and the variables of its image.
	local := strings.NewReplacer("/etc/vllm-vcr", dir, "$(POD_IP)", p.ip)
	args := []string{"serve", "--replicas", "1", "--address-per-replica"}
	for _, arg := range container.Args {
		args = append(args, local.Replace(arg))
	}
	p.cmd = exec.Command(f.program, args...)
	p.cmd.Env = append(os.Environ(), "VLLM_VCR_HOST="+p.ip, "POD_NAME="+p.name, "XDG_CACHE_HOME="+dir)
	for _, e := range container.Env {
		if e.ValueFrom == nil {
			p.cmd.Env = append(p.cmd.Env, e.Name+"="+local.Replace(e.Value))
		}
	}
	p.peer = testenv.Process(t, p.name, p.cmd)
	return p
}

func (p *podProcess) url() string { return fmt.Sprintf("http://%s:%d", p.ip, p.f.port) }

// awaitReady waits until the readiness probe of the pod succeeds, and tells the API server.
func (p *podProcess) awaitReady(t *testing.T) {
	t.Helper()
	await(t, p.name+" to be ready", p.peer, func() bool { return p.probe() == http.StatusOK })
	p.setReady(t, true)
}

func (p *podProcess) probe() int {
	reply, err := http.Get(p.url() + "/ready")
	if err != nil {
		return 0
	}
	reply.Body.Close()
	return reply.StatusCode
}

func (p *podProcess) path() string { return "/api/v1/namespaces/" + p.f.namespace + "/pods/" + p.name }

func (p *podProcess) setReady(t *testing.T, ready bool) {
	t.Helper()
	p.f.Patch(t, p.path()+"/status", fmt.Sprintf(`{"status": {"phase": "Running", "podIP": %q, "podIPs": [{"ip": %[1]q}],
		"conditions": [{"type": "Ready", "status": %q}]}}`, p.ip, map[bool]string{true: "True", false: "False"}[ready]))
}

// end ends a pod as a kubelet does: the signal first, then the readiness probe fails, and at last its object is gone.
func (p *podProcess) end(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	await(t, p.name+" to drain", p.peer, func() bool { return p.probe() != http.StatusOK })
	p.setReady(t, false)
	if err := p.peer.Err(); err != nil {
		t.Errorf("%s: %v\n%s", p.name, err, p.peer.Tail())
	}
	p.f.Delete(t, p.path()+"?gracePeriodSeconds=0")
}

// startPicker runs the endpoint picker of the fleet, with the rights that its Role gives.
func (f *fleet) startPicker(t *testing.T, program string) {
	t.Helper()
	ports := [3]int{testenv.FreePort(t), testenv.FreePort(t), testenv.FreePort(t)}
	objects := f.objects(t, fmt.Sprintf("{router: {epp: {flags: {grpc-port: %d, grpc-health-port: %d, metrics-port: %d, secure-serving: false}}}}",
		ports[0], ports[1], ports[2]))
	for _, key := range []string{"InferencePool/fleet", "ServiceAccount/fleet-epp", "Role/fleet-epp", "RoleBinding/fleet-epp"} {
		object := objects[key].(map[string]any)
		if object["kind"] == "RoleBinding" {
			object["subjects"] = []any{map[string]any{"kind": "User", "name": "restricted", "apiGroup": "rbac.authorization.k8s.io"}}
		}
		if status, reply := post(t, f.Kube, object); status != http.StatusCreated {
			t.Fatalf("%s: status %d: %s", key, status, reply)
		}
	}
	d := typed(t, objects["Deployment/fleet-epp"]).(*appsv1.Deployment)
	dir := t.TempDir()
	for file, text := range typed(t, objects["ConfigMap/fleet-epp"]).(*corev1.ConfigMap).Data {
		// There is no name service: the first pod has the place of the Service.
		text = strings.ReplaceAll(text, "http://fleet-decode:", "http://127.0.1.1:")
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	var args []string
	for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
		args = append(args, strings.ReplaceAll(arg, "/config/", dir+"/"))
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+f.RestrictedKubeconfig, "NAMESPACE="+f.namespace, "POD_NAME=fleet-epp-1")
	peer := testenv.Process(t, "epp", cmd)
	var err error
	if f.epp, err = extproc.Dial(fmt.Sprintf("127.0.0.1:%d", ports[0])); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.epp.Close() })
	await(t, "the endpoint picker to answer", peer, func() bool { _, err := f.pick("Hello"); return err == nil || errors.Is(err, errNoServer) })
}

// await waits for something that a process does, as long as it runs.
func await(t *testing.T, what string, peer *testenv.Peer, isSo func() bool) {
	t.Helper()
	for tick := time.Tick(50 * time.Millisecond); !isSo(); <-tick {
		select {
		case <-peer.Done():
			t.Fatalf("before %s, the process ended: %v\n%s", what, peer.Err(), peer.Tail())
		case <-t.Context().Done():
			t.Fatal(what)
		default:
		}
	}
}

var errNoServer = errors.New("the endpoint picker has no server")

// Headers by which the endpoint picker names the server of a request, and the prefill server that this one asks.
const (
	pickedHeader  = extproc.Destination
	prefillHeader = "x-prefiller-host-port"
)

// pick asks the endpoint picker for the headers that it adds to the request of a prompt, as a gateway does.
func (f *fleet) pick(prompt string) (map[string]string, error) {
	body, err := json.Marshal(map[string]any{"model": "Qwen/Qwen3-8B", "prompt": prompt, "max_tokens": 20, "ignore_eos": true})
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequest(http.MethodPost, "http://fleet/v1/completions", nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Request-Id", prompt[:min(8, len(prompt))])
	answer, err := f.epp.Pick(context.Background(), r, body)
	if err == nil && answer.Endpoint == "" {
		err = errNoServer
	}
	if err != nil {
		return nil, err
	}
	return answer.Headers, nil
}

// complete sends a prompt to the server that the endpoint picker chooses, and returns the address.
func (f *fleet) complete(prompt string) (string, error) {
	headers, err := f.pick(prompt)
	if err != nil {
		return "", err
	}
	address := headers[pickedHeader]
	body, err := json.Marshal(map[string]any{"model": "Qwen/Qwen3-8B", "prompt": prompt, "max_tokens": 20, "ignore_eos": true})
	if err != nil {
		return "", err
	}
	reply, err := http.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(string(body)))
	if err != nil {
		return address, err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %s", address, reply.StatusCode, text)
	}
	return address, err
}

// awaitServer waits until the endpoint picker knows a server.
func (f *fleet) awaitServer(t *testing.T, p *podProcess) {
	t.Helper()
	await(t, "the endpoint picker to know a server", p.peer, func() bool { _, err := f.pick("Hello"); return err == nil })
}

// TestRealPicker runs a fleet with the endpoint picker of llm-d, which finds pool and pods by the API server.
func TestRealPicker(t *testing.T) {
	picker := os.Getenv("VLLM_VCR_EPP")
	if picker == "" {
		t.Skip("VLLM_VCR_EPP does not name the endpoint picker of llm-d: build cmd/epp of github.com/llm-d/llm-d-router v0.10.0")
	}
	t.Run("prefix cache", func(t *testing.T) { followsCaches(t, picker) })
	t.Run("prefill and decode", func(t *testing.T) { picksBoth(t, picker) })
	t.Run("rolling update", func(t *testing.T) { losesNothing(t, picker) })
}

// followsCaches demands that a prompt goes where its beginning is cached.
func followsCaches(t *testing.T, picker string) {
	f := newFleet(t, "{topology: prefix-cache, routing: {servicePort: %d}, config: {shutdown-delay: 0s}}")
	objects := f.objects(t)
	var last *podProcess
	for range 3 {
		last = f.create(t, objects, "decode")
		last.awaitReady(t)
	}
	f.startPicker(t, picker)
	f.awaitServer(t, last)
	places := map[string]bool{}
	for conversation := range 6 {
		prompt := fmt.Sprintf("Conversation %d. ", conversation) + strings.Repeat(fmt.Sprint("Turn ", conversation, " of the river. "), 30)
		first, err := f.complete(prompt)
		require.NoError(t, err)
		places[first] = true
		for turn := range 4 {
			prompt += fmt.Sprintf("And turn %d goes on and on and on, to the sea. ", turn)
			if again, err := f.complete(prompt); err != nil || again != first {
				t.Errorf("conversation %d, turn %d: at %s, and its cache is at %s: %v", conversation, turn, again, first, err)
			}
		}
	}
	require.True(t, len(places) >= 2, "all conversations are at %v", places)
}

// picksBoth demands a prefill server and a decode server for a new prompt. The proxy before the decode server does not run.
func picksBoth(t *testing.T, picker string) {
	f := newFleet(t, "{topology: pd, routing: {servicePort: %[1]d, proxy: {targetPort: %[1]d}}, config: {shutdown-delay: 0s}}")
	objects := f.objects(t)
	prefill, decode := f.create(t, objects, "prefill"), f.create(t, objects, "decode")
	prefill.awaitReady(t)
	decode.awaitReady(t)
	f.startPicker(t, picker)
	f.awaitServer(t, decode)
	headers, err := f.pick(strings.Repeat("A prompt that no server knows. ", 30))
	if err != nil || "http://"+headers[pickedHeader] != decode.url() || "http://"+headers[prefillHeader] != prefill.url() {
		t.Errorf("%v: got %v, want %s and %s", err, headers, decode.url(), prefill.url())
	}
}

// losesNothing starts without servers, and replaces those of one line by those of another while requests come.
func losesNothing(t *testing.T, picker string) {
	f := newFleet(t, "{topology: pool, routing: {servicePort: %d}, config: {shutdown-delay: 2s, startup-duration: 1s}}")
	f.startPicker(t, picker)
	if _, err := f.pick("Hello"); !errors.Is(err, errNoServer) {
		t.Fatalf("without servers: %v", err)
	}
	older, newer := f.objects(t, "{config: {vllm-version: '0.32'}}"), f.objects(t, "{config: {vllm-version: '0.33'}}")
	old := []*podProcess{f.create(t, older, "decode"), f.create(t, older, "decode")}
	for _, p := range old {
		p.awaitReady(t)
	}
	f.awaitServer(t, old[0])
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var sent atomic.Int64
	var mu sync.Mutex
	places := map[string]int{}
	for client := range 8 {
		clients.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				address, err := f.complete(fmt.Sprintf("Client %d, request %d.", client, i))
				if err != nil {
					t.Errorf("request %d of client %d: %v", i, client, err)
				}
				sent.Add(1)
				mu.Lock()
				places[address]++
				mu.Unlock()
			}
		})
	}
	var last *podProcess
	for _, p := range old { // one more, then one less, as the strategy of the Deployment says
		last = f.create(t, newer, "decode")
		last.awaitReady(t)
		p.end(t)
	}
	after := sent.Load()
	await(t, "requests after the update", last.peer, func() bool { return sent.Load() > after+20 })
	stop()
	clients.Wait()
	t.Logf("%d requests: %v", sent.Load(), places)
	require.Equal(t, len(places), 4, "old and new servers with requests: %v", places)
}
