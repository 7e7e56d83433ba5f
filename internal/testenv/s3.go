package testenv

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// Credentials and region of every S3 server. Signatures are checked.
const (
	S3AccessKey = "testenv-access-key"
	S3SecretKey = "testenv-secret-key"
	S3Region    = "us-east-1"
)

// An S3Server is a running versitygw that belongs to one test.
type S3Server struct {
	*Peer
	// Endpoint is its base URL, such as "http://127.0.0.1:15321"; buckets go into the path.
	Endpoint string
	// Dir holds what is stored: a folder in it is a bucket, and a file below that an object, whoever wrote it.
	Dir string
	// IAM, with [S3Config.IAM], is the URL of the service that answers IAM and STS requests, and IAMFile the JSON file
	// that it keeps users, roles and sessions in, and reads anew for each request.
	IAM, IAMFile string
}

// S3Config says what an S3 server can do beside the usual.
type S3Config struct {
	// IAM gives it users, roles and sessions, beside the root user. What is stored under a session is checked as AWS does,
	// but there is no way to have GitHub's signature of a token accepted: its STS wants to fetch the issuer's keys.
	IAM bool
	// Versions lets buckets keep versions, once that is enabled.
	Versions bool
	// CertFile and KeyFile make it use https.
	CertFile, KeyFile string
	// Domain lets it also take a bucket from the host's name, below this domain.
	Domain string
}

// S3 starts an S3 server without buckets, and stops it when the test ends. It checks signatures, and conditions and
// checksums of uploads. One difference to AWS is known: an access key that does not exist is a 404 XAdminUserNotFound,
// not a 403.
func S3(t testing.TB) *S3Server {
	t.Helper()
	return S3With(t, S3Config{})
}

// S3With starts an S3 server like [S3], with more of its features switched on.
func S3With(t testing.TB, config S3Config) *S3Server {
	t.Helper()
	path, err := findInstalled(PeersDir(t), "versitygw", "s3")
	settle(t, err)
	server := &S3Server{Dir: t.TempDir()}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePort(t)))
	server.Endpoint = "http://" + address
	global := []string{"--port", address, "--region", S3Region, "--quiet"}
	if config.CertFile != "" {
		server.Endpoint = "https://" + address
		global = append(global, "--cert", config.CertFile, "--key", config.KeyFile)
	}
	if config.Domain != "" {
		global = append(global, "--virtual-domain", config.Domain)
	}
	if config.IAM {
		global = append(global, "--iam-standalone-endpoint", server.startIAM(t, path))
	}
	// What else it stores of an object lies beside the files, as not every file system has extended attributes.
	posix := []string{"posix", "--sidecar", t.TempDir()}
	if config.Versions {
		posix = append(posix, "--versioning-dir", t.TempDir())
	}
	server.Peer = startGateway(t, "versitygw", path, append(append(global, posix...), server.Dir))
	server.awaitAccept(t, "tcp", address)
	return server
}

func startGateway(t testing.TB, name, path string, args []string) *Peer {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+S3AccessKey, "ROOT_SECRET_KEY="+S3SecretKey)
	return Process(t, name, cmd)
}

// startIAM starts the service for users, roles and sessions, and returns the socket on which the gateway asks it.
func (s *S3Server) startIAM(t testing.TB, path string) (socket string) {
	t.Helper()
	// The path of a socket must be short, which that of a test's own directory may not be.
	private, err := os.MkdirTemp("", "iam")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(private) })
	socket = filepath.Join(private, "s")
	dir := t.TempDir()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePort(t)))
	s.IAM, s.IAMFile = "http://"+address, filepath.Join(dir, "iam.json")
	service := startGateway(t, "versitygw iam", path, []string{
		"--port", address, "--region", S3Region, "--quiet", "iam", "--dir", dir, "--private-ports", socket,
	})
	service.awaitAccept(t, "tcp", address)
	service.awaitAccept(t, "unix", socket)
	return socket
}

// Env returns the environment in which AWS tools use the server, with its root credentials and nothing else from this
// machine.
func (s *S3Server) Env() map[string]string {
	return map[string]string{
		"AWS_ENDPOINT_URL_S3":         s.Endpoint,
		"AWS_ACCESS_KEY_ID":           S3AccessKey,
		"AWS_SECRET_ACCESS_KEY":       S3SecretKey,
		"AWS_SESSION_TOKEN":           "",
		"AWS_REGION":                  S3Region,
		"AWS_PROFILE":                 "",
		"AWS_CONFIG_FILE":             os.DevNull,
		"AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
		"AWS_EC2_METADATA_DISABLED":   "true",
	}
}

// awaitAccept returns when the peer accepts connections. It does not tell when it begins to, so this asks.
func (p *Peer) awaitAccept(t testing.TB, network, address string) {
	t.Helper()
	err := awaitReady(p.process, 30*time.Second, func() error {
		conn, err := net.Dial(network, address)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err != nil {
		t.Fatalf("versitygw does not listen at %s: %v", address, err)
	}
}
