package testenv

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const (
	kubeToken           = "testenv-admin-token"
	kubeRestrictedToken = "testenv-restricted-token"
	kubeStartLimit      = 90 * time.Second // of each process, on a machine that is busy with other tests
)

// startKube starts etcd and the API server in a folder that goes when this process does.
func startKube(t testing.TB, bin string) *Kube {
	t.Helper()
	dir, cleaner := processDir(t)
	k := &Kube{
		CAFile: filepath.Join(dir, "ca.crt"), Token: kubeToken, Kubeconfig: filepath.Join(dir, "admin.kubeconfig"),
		RestrictedToken: kubeRestrictedToken, RestrictedKubeconfig: filepath.Join(dir, "restricted.kubeconfig"),
		dir: dir, cleaner: cleaner, bin: bin, port: FreePort(t),
	}
	k.URL = fmt.Sprintf("https://127.0.0.1:%d", k.port)
	k.logOnFailure(t)
	require.NoError(t, k.writeFiles())
	// Of a unix address the program takes host and port as the name of a socket in its folder.
	k.start(t, exec.Command(filepath.Join(bin, "etcd"), "--data-dir=etcd", "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls=unix://etcd:1", "--advertise-client-urls=unix://etcd:1",
		"--listen-peer-urls=unix://etcd:2", "--initial-advertise-peer-urls=unix://etcd:2",
		"--name=etcd", "--initial-cluster=etcd=unix://etcd:2"))
	k.startAPIServer(t)
	return k
}

func (k *Kube) writeFiles() error {
	if err := writeCertificates(k.dir); err != nil {
		return fmt.Errorf("write the certificates of a cluster: %w", err)
	}
	client, err := newKubeClient(k.CAFile)
	if err != nil {
		return err
	}
	k.client = client
	tokens := k.Token + ",admin,1,system:masters\n" + k.RestrictedToken + ",restricted,2\n"
	for path, text := range map[string]string{
		filepath.Join(k.dir, "tokens.csv"): tokens,
		k.Kubeconfig:                       k.kubeconfig("admin", k.Token),
		k.RestrictedKubeconfig:             k.kubeconfig("restricted", k.RestrictedToken),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kube) kubeconfig(user, token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: testenv, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: %s, user: {token: %s}}]
contexts: [{name: testenv, context: {cluster: testenv, user: %[3]s}}]
current-context: testenv
`, k.URL, k.CAFile, user, token)
}

func (k *Kube) startAPIServer(t testing.TB, more ...string) {
	t.Helper()
	arguments := append([]string{
		"--etcd-servers=unix://etcd:1",
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(k.port), "--cert-dir=.",
		"--tls-cert-file=server.crt", "--tls-private-key-file=server.key", "--kubelet-certificate-authority=ca.crt",
		"--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer=https://127.0.0.1",
		"--service-account-key-file=server.key", "--service-account-signing-key-file=server.key",
		"--token-auth-file=tokens.csv", "--authorization-mode=RBAC", "--allow-privileged=true",
		// No controller makes the accounts that this would want.
		"--disable-admission-plugins=ServiceAccount",
	}, more...)
	k.apiserver = k.start(t, exec.Command(filepath.Join(k.bin, "kube-apiserver"), arguments...))
	k.await(t, k.apiserver, "the API server to be ready", func() error {
		status, reply, err := k.request(http.MethodGet, "/readyz", "", "")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d: %s", status, reply)
		}
		return err
	})
}

// Down stops the API server; what it holds stays. Up starts it again at the same address and waits until it is ready.
func (k *Kube) Down(t testing.TB) {
	t.Helper()
	require.NoError(t, k.apiserver.Stop(context.Background()))
}

// Up is the other half of [Kube.Down]; more are arguments of the server.
func (k *Kube) Up(t testing.TB, more ...string) {
	t.Helper()
	k.client.CloseIdleConnections()
	k.startAPIServer(t, more...)
}

// Restart stops the API server and starts it again: every connection to it breaks, and it holds what it held.
func (k *Kube) Restart(t testing.TB) {
	t.Helper()
	k.Down(t)
	k.Up(t)
}

// Authenticate starts the API server again with an AuthenticationConfiguration, as YAML: it trusts others, too. When the
// test ends, it is started again without. No other test of the binary may use the server meanwhile.
func (k *Kube) Authenticate(t testing.TB, configuration string) {
	t.Helper()
	file := filepath.Join(k.dir, "authentication.yaml")
	require.NoError(t, os.WriteFile(file, []byte(configuration), 0o600))
	k.Down(t)
	t.Cleanup(func() { k.Restart(t) })
	k.Up(t, "--authentication-config="+file)
}

func (k *Kube) start(t testing.TB, cmd *exec.Cmd) *process.Process {
	t.Helper()
	cmd.Dir = k.dir
	// The API server would wait for its watchers to go, for a minute.
	p, err := process.Start(cmd, process.Options{Name: filepath.Base(cmd.Path), Tail: 4 << 10, Grace: time.Second / 2})
	require.NoError(t, err)
	k.processes = append(k.processes, p)
	return p
}

// await returns once ready does not fail any more. The programs do not report when that is, so this asks.
func (k *Kube) await(t testing.TB, p *process.Process, what string, ready func() error) {
	t.Helper()
	require.NoErrorf(t, awaitReady(p, kubeStartLimit, ready), "waited for %s", what)
}

// awaitReady returns once ready does not fail any more. An error is that the process has ended before, or that it took too long.
func awaitReady(p *process.Process, limit time.Duration, ready func() error) error {
	deadline := time.After(limit)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return fmt.Errorf("the process ended: %w", p.Exit())
		case <-deadline:
			return fmt.Errorf("in vain for %s: %w", limit, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// installTypes makes the resource types of Kueue and of the Gateway API known, and returns when they can be used.
func (k *Kube) installTypes(t testing.TB) {
	t.Helper()
	folder := filepath.Join(filepath.Dir(k.bin), "kube")
	var files []string
	for _, of := range []string{"kueue", "gateway", "inference"} {
		found, err := filepath.Glob(filepath.Join(folder, of, "*.yaml"))
		if err != nil || len(found) == 0 {
			t.Fatalf("no resource types in %s/%s: %v: remove the folder and run .ci/peers kube", folder, of, err)
		}
		files = append(files, found...)
	}
	failures := make([]error, len(files))
	var group sync.WaitGroup
	for i, file := range files {
		group.Go(func() { failures[i] = k.installType(file) })
	}
	group.Wait()
	for _, err := range failures {
		require.NoError(t, err)
	}
	k.await(t, k.apiserver, "the resource types to be served", k.typesServed)
}

const typesPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

func (k *Kube) installType(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	status, reply, err := k.request(http.MethodPost, typesPath, "application/yaml", string(text))
	if err == nil && status != http.StatusCreated {
		err = fmt.Errorf("status %d: %s", status, reply)
	}
	if err != nil {
		return fmt.Errorf("create the resource type of %s: %w", file, err)
	}
	return nil
}

// typesServed fails until the types that matter are listed and answer.
func (k *Kube) typesServed() error {
	for group, names := range map[string][]string{
		"kueue.x-k8s.io/v1beta2":         {"clusterqueues", "localqueues", "resourceflavors", "workloads"},
		"gateway.networking.k8s.io/v1":   {"httproutes"},
		"inference.networking.k8s.io/v1": {"inferencepools"},
	} {
		var list struct{ Resources []struct{ Name string } }
		status, reply, err := k.request(http.MethodGet, "/apis/"+group, "", "")
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("%s: status %d, %v", group, status, err)
		}
		if err := json.Unmarshal(reply, &list); err != nil {
			return err
		}
		served := map[string]bool{}
		for _, resource := range list.Resources {
			served[resource.Name] = true
		}
		for _, name := range names {
			status, _, err := k.request(http.MethodGet, "/apis/"+group+"/"+name, "", "")
			if err != nil || status != http.StatusOK || !served[name] {
				return fmt.Errorf("%s: listed %t, status %d, %v", name, served[name], status, err)
			}
		}
	}
	return nil
}

// newKubeClient trusts the authority of the server only.
func newKubeClient(caFile string) (*http.Client, error) {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	return &http.Client{Transport: transport}, nil
}

// A janitor removes a folder once this process has ended.
type janitor struct {
	cmd *exec.Cmd
	// pipe is closed by the end of this process, and must not be by the collector.
	pipe io.Closer
}

// processDir returns a new folder that is removed when this process has ended, however that happens.
// The path is short, as sockets lie in it.
func processDir(t testing.TB) (dir string, cleaner *janitor) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kube")
	require.NoError(t, err)
	// Those who write into the folder are killed at the moment in which the pipe closes.
	const script = `cat; for i in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$0" && break; sleep 0.5; done`
	arguments := []string{"sh", "-c", script, dir}
	// In a session of its own, as this process may be ended with its whole group.
	if setsid, err := exec.LookPath("setsid"); err == nil {
		arguments = append([]string{setsid}, arguments...)
	}
	cmd := exec.Command(arguments[0], arguments[1:]...)
	pipe, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return dir, &janitor{cmd: cmd, pipe: pipe}
}

// writeCertificates writes ca.crt, and server.crt with server.key for 127.0.0.1 and localhost.
func writeCertificates(dir string) error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "testenv"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "127.0.0.1"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, ca, &key.PublicKey, caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	for name, block := range map[string]*pem.Block{
		"ca.crt":     {Type: "CERTIFICATE", Bytes: caDER},
		"server.crt": {Type: "CERTIFICATE", Bytes: serverDER},
		"server.key": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
	}
	return nil
}
