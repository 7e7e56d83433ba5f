package cluster

import (
	"bytes"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
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
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
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
		{name: "nothing", want: "no cluster is configured: name a kubeconfig (--kubeconfig, $KUBECONFIG)"},
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
				require.True(t, err != nil && strings.Contains(err.Error(), test.want) && !strings.Contains(err.Error(), "secret-token"), "got %v, want %q", err, test.want)
				return
			}
			require.True(t, err == nil && c.Server() == test.server && c.Namespace() == test.namespace, "%+v, %v", c, err)
		})
	}
}

// TestUnreachable is about servers that are not there, or not who they should be.
func TestUnreachable(t *testing.T) {
	isolate(t)
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(tls.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := "https://" + listener.Addr().String()
	listener.Close()
	authority := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw})
	require.NoError(t, os.WriteFile(authority, block, 0o600))
	token := `{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{},"status":{"token":"secret"}}`
	script := func(text string) []string {
		path := filepath.Join(t.TempDir(), "credential")
		testenv.WriteProgram(t, path, "#!/bin/sh\n"+text+"\n")
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
			}, []string{"check the address and the certificate authority"},
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
			require.NoError(t, err)
			c.backoff = noWait
			err = c.Preflight(t.Context(), "queue")
			for _, part := range test.want {
				require.True(t, err != nil && strings.Contains(err.Error(), part) && !strings.Contains(err.Error(), "secret"), "got %v, want %q", err, part)
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
	require.True(t, log.Len() == 0, "%q", log.String())
}
