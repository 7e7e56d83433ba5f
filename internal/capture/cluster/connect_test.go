package cluster

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/vllm-vcr/conformance/internal/forge/oidc"
)

// isolate takes all configuration of this machine away.
func isolate(t *testing.T) {
	t.Helper()
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
}

const kubeconfig = `apiVersion: v1
kind: Config
current-context: one
contexts:
- {name: one, context: {cluster: c, user: u, namespace: captures}}
- {name: two, context: {cluster: c, user: u}}
clusters: [{name: c, cluster: {server: "https://10.1.2.3:6443"}}]
users: [{name: u, user: {token: secret-token}}]
`

func TestConnect(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "config")
	broken := filepath.Join(t.TempDir(), "broken")
	for path, text := range map[string]string{file: kubeconfig, broken: "apiVersion: [\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name                    string
		opt                     Options
		server, namespace, want string
	}{
		{name: "file", opt: Options{Kubeconfig: file}, server: "https://10.1.2.3:6443", namespace: "captures"},
		{name: "context", opt: Options{Kubeconfig: file, Context: "two"}, server: "https://10.1.2.3:6443", namespace: "default"},
		{name: "namespace", opt: Options{Kubeconfig: file, Namespace: "ns"}, server: "https://10.1.2.3:6443", namespace: "ns"},
		{
			name: "server", opt: Options{Server: "https://10.9.9.9", TokenAudience: "me", Namespace: "ns"},
			server: "https://10.9.9.9", namespace: "ns",
		},
		{name: "nothing", want: "no cluster is known: name a kubeconfig (--kubeconfig, $KUBECONFIG)"},
		{name: "no file", opt: Options{Kubeconfig: file + "x"}, want: file + "x"},
		{name: "broken", opt: Options{Kubeconfig: broken}, want: broken},
		{name: "no context", opt: Options{Kubeconfig: file, Context: "three"}, want: `context "three" does not exist`},
		{name: "both", opt: Options{Kubeconfig: file, Server: "https://x", TokenAudience: "a"}, want: "give one of them"},
		{name: "no audience", opt: Options{Server: "https://x"}, want: "--audience"},
		{name: "audience alone", opt: Options{TokenAudience: "a"}, want: "--server"},
		{name: "no authority", opt: Options{Server: "https://x", TokenAudience: "a", CAFile: file + "x"}, want: file + "x"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := Connect(test.opt)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret-token") {
					t.Errorf("got %v, want %q", err, test.want)
				}
				return
			}
			if err != nil || c.Server() != test.server || c.Namespace() != test.namespace {
				t.Errorf("%+v, %v", c, err)
			}
		})
	}
}

// TestUnreachable is about servers that are not there, or not who they should be.
func TestUnreachable(t *testing.T) {
	isolate(t)
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(tls.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "https://" + listener.Addr().String()
	listener.Close()
	authority := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw})
	if err := os.WriteFile(authority, block, 0o600); err != nil {
		t.Fatal(err)
	}
	token := `{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{},"status":{"token":"secret"}}`
	script := func(text string) []string {
		path := filepath.Join(t.TempDir(), "credential")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return []string{path}
	}
	good, bad := script("echo '"+token+"'"), script("exit 3")
	tests := []struct {
		name string
		opt  Options
		want []string
	}{
		{
			"unknown authority",
			Options{Server: tls.URL, Credential: good},
			[]string{tls.URL, "authority that this machine does not know", "--certificate-authority"},
		},
		{
			"another name", Options{
				Server: strings.Replace(tls.URL, "127.0.0.1", "localhost", 1), CAFile: authority, Credential: good,
			}, []string{"check the address, and the authority"},
		},
		{"nobody there", Options{Server: nobody, Credential: good}, []string{"the API server at " + nobody + " is not reached"}},
		{"no credential", Options{Server: tls.URL, CAFile: authority, Credential: bad}, []string{"getting credentials", "the command that"}},
		// What answers is no API server: whatever it has, no namespace is among it.
		{"known authority", Options{Server: tls.URL, CAFile: authority, Credential: good}, []string{"no namespace default at " + tls.URL}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.opt.TokenAudience = "me"
			c, err := Connect(test.opt)
			if err != nil {
				t.Fatal(err)
			}
			c.backoff = noWait
			err = c.Preflight(t.Context(), "queue")
			for _, part := range test.want {
				if err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %v, want %q", err, part)
				}
			}
		})
	}
}

// TestQuiet has the library log: nothing of it comes to stderr by itself, nor louder than for debugging.
func TestQuiet(t *testing.T) {
	var log bytes.Buffer
	handler := slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})
	klog.SetSlogLogger(slog.New(debugOnly{handler}))
	t.Cleanup(func() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) })
	klog.Error("a failure\n::error::x")
	if text := log.String(); !strings.Contains(text, "level=DEBUG") || strings.Count(text, "\n") != 1 {
		t.Errorf("%q", text)
	}
	log.Reset()
	klog.SetSlogLogger(slog.New(debugOnly{slog.NewTextHandler(&log, nil)}))
	klog.Error("a failure")
	if log.Len() > 0 {
		t.Errorf("%q", log.String())
	}
}

// gitHub answers requests for identity tokens, and counts them.
func gitHub(t *testing.T, answer func(try int) (status int, body string)) (oidc.Job, *int) {
	t.Helper()
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		if r.URL.Query().Get("audience") != "my&cluster" || r.URL.Query().Get("api") != "1" ||
			r.Header.Get("Authorization") != "Bearer request-secret" {
			t.Errorf("asked %s with %v", r.URL, r.Header)
		}
		status, body := answer(calls)
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	return oidc.Job{URL: server.URL + "/token?api=1", Token: "request-secret", Backoff: noWait}, &calls
}

func jwt(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

func TestCredential(t *testing.T) {
	tests := []struct {
		name     string
		statuses []int // one for each try, the last ever after
		body     string
		expires  string
		calls    int
		want     string // of the error
	}{
		{name: "token", statuses: []int{200}, body: jwt(`{"exp":1767323045}`), expires: "2026-01-02T03:04:05Z", calls: 1},
		{name: "no expiry", statuses: []int{200}, body: jwt(`{"sub":"x"}`), calls: 1},
		{name: "no claims", statuses: []int{200}, body: "opaque", calls: 1},
		{name: "busy at first", statuses: []int{500, 429, 200}, body: jwt(`{}`), calls: 3},
		{name: "busy", statuses: []int{503}, body: "secret-answer", calls: 4, want: "HTTP status 503"},
		{name: "refused", statuses: []int{403}, body: "secret-answer", calls: 1, want: "HTTP status 403"},
		{name: "redirected", statuses: []int{302}, body: "secret-answer", calls: 1, want: "HTTP status 302"},
		{name: "no token", statuses: []int{200}, calls: 4, want: "the answer holds no token"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g, calls := gitHub(t, func(try int) (int, string) {
				status := test.statuses[min(try, len(test.statuses))-1]
				if status != http.StatusOK {
					return status, test.body
				}
				body, _ := json.Marshal(map[string]string{"value": test.body})
				return status, string(body)
			})
			got, err := Credential(t.Context(), g, "my&cluster")
			if *calls != test.calls {
				t.Errorf("%d calls, want %d", *calls, test.calls)
			}
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %v, want %q", err, test.want)
				}
				return
			}
			var credential struct {
				Kind, APIVersion string
				Status           struct{ Token, ExpirationTimestamp string }
			}
			if err := json.Unmarshal(got, &credential); err != nil || credential.Kind != "ExecCredential" ||
				credential.APIVersion != "client.authentication.k8s.io/v1" || credential.Status.Token != test.body ||
				credential.Status.ExpirationTimestamp != test.expires {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}

// TestCredentialWithoutGitHub makes no request, and tells no secret.
func TestCredentialWithoutGitHub(t *testing.T) {
	for _, test := range []struct {
		name     string
		github   oidc.Job
		audience string
		want     string
	}{
		{"no audience", oidc.Job{URL: "http://127.0.0.1:1", Token: "secret"}, "", "--audience"},
		{"no permission", oidc.Job{}, "a", "id-token: write"},
		{"no URL", oidc.Job{URL: "secret", Token: "secret"}, "a", "is not an URL"},
		{"bad URL", oidc.Job{URL: "http://secret:x/%", Token: "secret"}, "a", "is not an URL"},
		{"nobody there", oidc.Job{URL: "http://127.0.0.1:1/?sig=secret", Token: "secret", Backoff: noWait}, "a", "connection refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Credential(t.Context(), test.github, test.audience)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
