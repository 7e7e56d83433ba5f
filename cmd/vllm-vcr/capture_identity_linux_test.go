package main

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const audience = "vllm-vcr-capture"

// An issuer signs the identities of jobs, as GitHub does, and gives them to who has the job's secret.
type issuer struct {
	*httptest.Server
	key    *rsa.PrivateKey
	mu     sync.Mutex
	claims map[string]any // beside those that all tokens have
	tokens []string
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	i := &issuer{key: key}
	i.Server = httptest.NewTLSServer(i)
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	encode := base64.RawURLEncoding.EncodeToString
	answer := map[string]any{}
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		answer = map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS256"}}
	case "/keys":
		answer["keys"] = []any{map[string]any{
			"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "k",
			"n": encode(i.key.N.Bytes()), "e": encode(big.NewInt(int64(i.key.E)).Bytes()),
		}}
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(answer)
}

// token is the identity of a job for an audience.
func (i *issuer) token(t *testing.T, audience string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	claims := map[string]any{
		"iss": i.URL, "aud": audience, "sub": "repo:owner/name:environment:capture", "jti": len(i.tokens),
		"iat": time.Now().Unix(), "nbf": time.Now().Add(-time.Minute).Unix(), "exp": time.Now().Add(5 * time.Minute).Unix(),
	}
	for name, value := range i.claims {
		claims[name] = value
	}
	payload, err := json.Marshal(claims)
	require.NoError(t, err)
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","kid":"k","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(payload)
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, sum[:])
	require.NoError(t, err)
	i.tokens = append(i.tokens, text+"."+base64.RawURLEncoding.EncodeToString(signature))
	return i.tokens[len(i.tokens)-1]
}

// is says which job asks from now on.
func (i *issuer) is(repository, owner, environment string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.claims = map[string]any{"repository_id": repository, "repository_owner_id": owner}
	if environment != "" {
		i.claims["environment"] = environment
	}
}

// secrets are all tokens so far.
func (i *issuer) secrets() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]string{"job-secret"}, i.tokens...)
}

// tokenService is where jobs ask; the environment of a job is what they need for that.
func (i *issuer) tokenService(t *testing.T) (environment []string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer job-secret" {
			http.Error(w, "not this way", http.StatusUnauthorized)
			return
		}
		json.NewEncoder(w).Encode(map[string]string{"value": i.token(t, r.URL.Query().Get("audience"))})
	}))
	t.Cleanup(server.Close)
	return []string{"ACTIONS_ID_TOKEN_REQUEST_URL=" + server.URL + "/token?api-version=2.0", "ACTIONS_ID_TOKEN_REQUEST_TOKEN=job-secret"}
}

// configuration is the example of the folder deploy, with this issuer in place of GitHub.
func (i *issuer) configuration(t *testing.T) string {
	t.Helper()
	example, err := os.ReadFile("../../deploy/oidc/authentication.yaml")
	require.NoError(t, err)
	const theirs = "      url: https://token.actions.githubusercontent.com\n"
	if strings.Count(string(example), theirs) != 1 {
		t.Fatalf("the example does not name its issuer:\n%s", example)
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})
	ours := "      url: " + i.URL + "\n      certificateAuthority: |\n"
	for line := range strings.Lines(string(authority)) {
		ours += "        " + line
	}
	return strings.Replace(string(example), theirs, ours, 1)
}

// setUp creates what a cluster needs before the first capture. There is no Kueue: the queues are said to be active.
func setUp(t *testing.T, k *testenv.Kube) {
	t.Helper()
	objects, err := deploy.Setup(vcr.Files, vcr.DeployPath)
	require.NoError(t, err)
	const rbac, kueue, in = "/apis/rbac.authorization.k8s.io/v1", "/apis/kueue.x-k8s.io/v1beta2", "/namespaces/" + deploy.DefaultNamespace
	paths := map[string]string{
		"Namespace": "/api/v1/namespaces", "ResourceFlavor": kueue + "/resourceflavors",
		"ClusterQueue": kueue + "/clusterqueues", "LocalQueue": kueue + in + "/localqueues",
		"Role": rbac + in + "/roles", "RoleBinding": rbac + in + "/rolebindings",
		"ClusterRole": rbac + "/clusterroles", "ClusterRoleBinding": rbac + "/clusterrolebindings",
		"NetworkPolicy": "/apis/networking.k8s.io/v1" + in + "/networkpolicies",
	}
	for _, object := range objects {
		text, err := json.Marshal(object)
		require.NoError(t, err)
		fields := object.(map[string]any)
		kind := fields["kind"].(string)
		path := paths[kind] + "/" + fields["metadata"].(map[string]any)["name"].(string)
		k.Create(t, paths[kind], string(text))
		t.Cleanup(func() { k.Do(t, http.MethodDelete, path, "", "") })
		if strings.HasSuffix(kind, "Queue") {
			k.Patch(t, path+"/status", `{"status":{"conditions":[{"type":"Active","status":"True","reason":"Ready","message":"",
				"lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`)
		}
	}
}

// TestRealKubeIdentity has jobs of GitHub submit captures with nothing but their identity, to an API server that is
// configured as the folder deploy says.
func TestRealKubeIdentity(t *testing.T) {
	k := testenv.KubeAPI(t)
	i := newIssuer(t)
	environment := append(i.tokenService(t), "KUBECONFIG=/dev/null")
	k.Authenticate(t, i.configuration(t))
	setUp(t, k)
	d := newClusterUser(t, k, deploy.DefaultNamespace)
	d.kubeconfig = ""
	theServer := func(audience string) []string {
		return []string{"--server", k.URL, "--certificate-authority", k.CAFile, "--audience", audience}
	}
	i.is("123456789", "12345678", "capture")
	awaitTrust(t, k, i)

	const job = "capture-0-33-edge-s1-r1"
	s, code := runSpied(t, environment, d.args("submit", "r1", append(theServer(audience), "0.33/edge-s1")...)...)
	if code != 0 {
		t.Errorf("exit code %d:\n%s", code, s.stderr.text())
	}
	says(t, s.stdout.text(), `^0\.33/edge-s1: submitted: job `+job+` of run r1$`)
	tests := []struct {
		name                           string
		repository, owner, environment string
		audience                       string
	}{
		{"another repository", "123456780", "12345678", "capture", audience},
		{"another owner", "123456789", "12345670", "capture", audience},
		{"another environment", "123456789", "12345678", "test", audience},
		{"no environment", "123456789", "12345678", "", audience},
		{"another audience", "123456789", "12345678", "capture", "sts.amazonaws.com"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			i.is(test.repository, test.owner, test.environment)
			s, code := runSpied(t, environment, d.args("submit", "r2", append(theServer(test.audience), "0.33/edge-s2")...)...)
			d.refused(t, s, code, 3, `: `+regexp.QuoteMeta(k.URL)+` does not take our credentials: `, job)
			saysNone(t, s, i.secrets())
		})
	}
	i.is("123456789", "12345678", "capture")
	t.Run("no permission", func(t *testing.T) {
		s, code := runSpied(t, []string{"KUBECONFIG=/dev/null", "ACTIONS_ID_TOKEN_REQUEST_URL="}, d.args("submit", "r2", append(theServer(audience), "0.33/edge-s2")...)...)
		// Two have something to say: who asks for credentials, and the program that was asked, which is the same.
		says(t, s.stderr.text(), `^vllm-vcr: error: GitHub offers this job no identity token: .*id-token: write`,
			`^vllm-vcr: error: reach the cluster: .*getting credentials`)
		if left := d.jobs(t); code != 3 || len(left) != 1 {
			t.Errorf("exit code %d, jobs %q", code, left)
		}
	})
	t.Run("other commands", func(t *testing.T) {
		s, code := runSpied(t, environment, append([]string{"capture", "status"}, theServer(audience)...)...)
		says(t, s.stdout.text(), `^0\.33/edge-s1 +r1 +queued `)
		saysNone(t, s, i.secrets())
		if code != 0 {
			t.Errorf("exit code %d:\n%s", code, s.stderr.text())
		}
	})
	t.Run("credential", func(t *testing.T) {
		s, code := runSpied(t, environment, "capture", "credential", "--audience", audience)
		var printed struct {
			Status struct{ Token, ExpirationTimestamp string }
		}
		if err := json.Unmarshal([]byte(s.stdout.text()), &printed); err != nil || code != 0 {
			t.Fatalf("exit code %d, %v", code, err)
		}
		require.Equal(t, whoIs(t, k, printed.Status.Token), "github:repo:owner/name:environment:capture [github:capture system:authenticated]", "user")
	})
}

func saysNone(t *testing.T, s *spied, secrets []string) {
	t.Helper()
	for _, secret := range secrets {
		if strings.Contains(s.stdout.text()+s.stderr.text(), secret) {
			t.Errorf("it tells a secret:\n%s%s", s.stdout.text(), s.stderr.text())
		}
	}
}

// whoIs is what the API server takes a token for.
func whoIs(t *testing.T, k *testenv.Kube, token string) string {
	t.Helper()
	_, reply := k.Do(t, http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", "application/json",
		`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"`+token+`"}}`)
	var review struct {
		Status struct {
			User struct {
				Username string
				Groups   []string
			}
		}
	}
	require.NoErrorf(t, json.Unmarshal(reply, &review), "%s", reply)
	return fmt.Sprint(review.Status.User.Username, " ", review.Status.User.Groups)
}

// awaitTrust returns when the server has found the issuer, which it looks for behind its back.
func awaitTrust(t *testing.T, k *testenv.Kube, i *issuer) {
	t.Helper()
	token := i.token(t, audience)
	eventuallyTrue(t, "the server trusts the issuer", func() bool { return strings.HasPrefix(whoIs(t, k, token), "github:") })
}

const clusterTargets = `[lines."0.33"]
engine_image = "docker.io/vllm/vllm-openai:v0.33.0@sha256:5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
tap_image = "ghcr.io/vllm-vcr/vllm-vcr:1.0.0@sha256:5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"

[models.qwen]
source = "Qwen/Qwen3-0.6B"
unprefixed = true
gpu = "cpu"
cpu = "1"
memory = "4Gi"

[[target]]
lines = ["0.33"]
models = ["qwen"]
scenarios = ["baseline"]
workloads = ["edge"]
seeds = [1, 2]
`

// A clusterUser is somebody who captures in a namespace of a cluster, with a manifest of their own.
type clusterUser struct {
	kube           *testenv.Kube
	dir, namespace string
	kubeconfig, mf string
}

func newClusterUser(t *testing.T, kube *testenv.Kube, namespace string) *clusterUser {
	t.Helper()
	d := &clusterUser{kube: kube, dir: t.TempDir(), namespace: namespace, kubeconfig: kube.Kubeconfig}
	d.mf = filepath.Join(d.dir, "manifest.toml")
	require.NoError(t, os.WriteFile(filepath.Join(d.dir, "targets.toml"), []byte(clusterTargets), 0o600))
	return d
}

// args are those of a command that is about the cluster.
func (d *clusterUser) args(command, run string, more ...string) []string {
	args := []string{"capture", command, "--targets", filepath.Join(d.dir, "targets.toml"), "--run-id", run, "--namespace", d.namespace}
	if d.kubeconfig != "" {
		args = append(args, "--kubeconfig", d.kubeconfig)
	}
	if command == "run" {
		args = append(args, "--manifest", d.mf, "--work", filepath.Join(d.dir, "work"))
	}
	return append(args, more...)
}

// jobs are the names of all that are in the namespace.
func (d *clusterUser) jobs(t *testing.T) (names []string) {
	t.Helper()
	var list struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	d.kube.Get(t, "/apis/batch/v1/namespaces/"+d.namespace+"/jobs", &list)
	for _, job := range list.Items {
		names = append(names, job.Metadata.Name)
	}
	return names
}

// refused demands that a command ended with a code and one message, and left nothing but jobs of others.
func (d *clusterUser) refused(t *testing.T, s *spied, code, want int, message string, others ...string) {
	t.Helper()
	require.Equal(t, code, want, "exit code")
	all := s.stdout.text() + s.stderr.text()
	says(t, all, message)
	require.Equal(t, len(regexp.MustCompile("(?m)^vllm-vcr: error: ").FindAllString(s.stderr.text(), -1)), 1, "errors in:\n%s", all)
	for _, secret := range []string{d.kube.Token, d.kube.RestrictedToken, "another-token"} {
		require.True(t, !strings.Contains(all, secret), "it tells a secret:\n%s", all)
	}
	if left := d.jobs(t); strings.Join(left, " ") != strings.Join(others, " ") {
		t.Errorf("jobs %q are left, want %q", left, others)
	}
	if _, err := os.Stat(d.mf); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was registered: %v", err)
	}
}

func eventuallyTrue(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !isSo() {
		select {
		case <-deadline:
			t.Fatalf("it never came to it that %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
