package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A Kube is a real Kubernetes API server with its etcd. All tests of a test binary share one: they keep apart by
// namespaces, see [Kube.Namespace], and one that takes the server down must not run in parallel to others.
type Kube struct {
	// URL is its base, such as https://127.0.0.1:15321; CAFile holds the certificate of its authority.
	URL, CAFile string
	// Token is that of a user who may do everything, and Kubeconfig the path of that user's configuration.
	Token, Kubeconfig string
	// RestrictedToken is that of the user "restricted", who may do nothing until a test gives it roles, and
	// RestrictedKubeconfig the path of that user's configuration.
	RestrictedToken, RestrictedKubeconfig string

	dir, bin   string
	cleaner    *janitor
	port       int
	client     *http.Client
	apiserver  *process.Process
	processes  []*process.Process // all that were started, for the log of a failed test
	namespaces atomic.Int32
}

var kubeAPI shared[*Kube]

// KubeAPI returns a real API server, without any controllers: what a test creates stays as it is until the test changes
// it, a Job gets no pods, and nothing is collected. RBAC is on, and the resource types of Kueue, whose version to use is
// v1beta2, and of the Gateway API are known. The server starts in 4 s for the first test that needs it, and ends with the test binary.
//
// Where it is not installed, the test is skipped, in CI too, as it takes minutes to build: `make kube-test` installs it
// and sets VLLM_VCR_REQUIRE_KUBE, which makes its absence a failure.
func KubeAPI(t testing.TB) *Kube {
	t.Helper()
	bin := kubePrograms(t)
	k := kubeAPI.get(func() *Kube {
		k := startKube(t, bin)
		k.installTypes(t)
		return k
	})
	k.logOnFailure(t)
	return k
}

// shared is what the tests of a binary start once. A start that fails ends its test, and the next one tries again.
type shared[T any] struct {
	mu      sync.Mutex
	started bool
	value   T
}

func (s *shared[T]) get(start func() T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.value = start()
		s.started = true
	}
	return s.value
}

// kubePrograms returns the folder of etcd and kube-apiserver, which are both there.
func kubePrograms(t testing.TB) (bin string) {
	t.Helper()
	dir := PeersDir(t)
	for _, name := range []string{"etcd", "kube-apiserver"} {
		_, err := findInstalled(dir, name, "kube")
		settleUnless(t, err, anySet(envKube))
	}
	return filepath.Join(dir, "bin")
}

// Namespace creates a namespace of the test's own and deletes it when the test ends.
func (k *Kube) Namespace(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test-%d", k.namespaces.Add(1))
	k.Create(t, "/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}")
	t.Cleanup(func() { k.Do(t, http.MethodDelete, "/api/v1/namespaces/"+name, "", "") })
	return name
}

// Create creates an object, as JSON or YAML, in the collection at path, such as /apis/batch/v1/namespaces/N/jobs.
func (k *Kube) Create(t testing.TB, path, object string) {
	t.Helper()
	k.want(t, http.MethodPost, path, "application/yaml", object)
}

// Patch merges a JSON document into the object at path, which may end in /status.
func (k *Kube) Patch(t testing.TB, path, merge string) {
	t.Helper()
	k.want(t, http.MethodPatch, path, "application/merge-patch+json", merge)
}

// Get decodes what is at path into v, a pointer.
func (k *Kube) Get(t testing.TB, path string, v any) {
	t.Helper()
	require.NoErrorf(t, json.Unmarshal(k.want(t, http.MethodGet, path, "", ""), v), "GET %s", path)
}

// Delete deletes the object at path.
func (k *Kube) Delete(t testing.TB, path string) {
	t.Helper()
	k.want(t, http.MethodDelete, path, "", "")
}

func (k *Kube) want(t testing.TB, method, path, contentType, body string) (reply []byte) {
	t.Helper()
	status, reply := k.Do(t, method, path, contentType, body)
	if status/100 != 2 {
		t.Fatalf("%s %s: status %d: %s", method, path, status, reply)
	}
	return reply
}

// Do sends a request as the user who may do everything and returns the answer, whatever its status.
func (k *Kube) Do(t testing.TB, method, path, contentType, body string) (status int, reply []byte) {
	t.Helper()
	status, reply, err := k.request(method, path, contentType, body)
	require.NoErrorf(t, err, "%s %s", method, path)
	return status, reply
}

func (k *Kube) request(method, path, contentType, body string) (status int, reply []byte, err error) {
	response, err := k.send(context.Background(), k.Token, method, path, contentType, body)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	reply, err = io.ReadAll(response.Body)
	return response.StatusCode, reply, err
}

// send sends a request as the user who has the token.
func (k *Kube) send(ctx context.Context, token, method, path, contentType, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, k.URL+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Accept", "application/json")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	return k.client.Do(request)
}

// logOnFailure logs the last words of all processes if the test has failed when it ends.
func (k *Kube) logOnFailure(t testing.TB) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, p := range k.processes {
			if exit := p.Exit(); exit != nil {
				t.Logf("ended: %v", exit)
			} else {
				t.Logf("process %d: %s", p.Pid(), p.Tail())
			}
		}
	})
}
