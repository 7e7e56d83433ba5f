package testenv

import (
	"net"
	"os"
	"os/exec"
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
	// Dir holds what is stored: a folder in it is a bucket, and a file below that an object, also one that others wrote.
	Dir string
}

// S3Config switches features of an S3 server on.
type S3Config struct {
	// Versions lets buckets keep versions, once that is enabled.
	Versions bool
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
	if config.Domain != "" {
		global = append(global, "--virtual-domain", config.Domain)
	}
	// What else it stores of an object lies beside the files, as not every file system has extended attributes.
	posix := []string{"posix", "--sidecar", t.TempDir()}
	if config.Versions {
		posix = append(posix, "--versioning-dir", t.TempDir())
	}
	cmd := exec.Command(path, append(append(global, posix...), server.Dir)...)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+S3AccessKey, "ROOT_SECRET_KEY="+S3SecretKey)
	server.Peer = Process(t, "versitygw", cmd)
	server.awaitAccept(t, address)
	return server
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
func (p *Peer) awaitAccept(t testing.TB, address string) {
	t.Helper()
	err := awaitReady(p.process, 30*time.Second, func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	})
	require.NoErrorf(t, err, "versitygw does not listen at %s", address)
}
