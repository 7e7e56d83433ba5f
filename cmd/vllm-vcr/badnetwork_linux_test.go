package main

import (
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// secure is a server that the runs of a consumer trust.
func (c *consumer) secure(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(answer)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	authority := filepath.Join(t.TempDir(), "ca.pem")
	c.store(t, authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	c.env["SSL_CERT_FILE"] = authority // all of these servers have the same certificate
	return server
}

// A counter is a server that counts who comes, and knows nothing.
type counter struct {
	*httptest.Server
	came atomic.Int64
}

func newCounter(t *testing.T) *counter {
	t.Helper()
	k := &counter{}
	k.Server = httptest.NewUnstartedServer(http.NotFoundHandler())
	k.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			k.came.Add(1)
		}
	}
	k.Start()
	t.Cleanup(k.Close)
	return k
}

// TestBadRedirects: a server sends us to places where we must not go.
func TestBadRedirects(t *testing.T) {
	t.Parallel()
	c := newConsumer(t)
	elsewhere := newCounter(t)
	golden := c.bytes(t)
	good := c.secure(t, func(w http.ResponseWriter, _ *http.Request) { w.Write(golden) })
	tests := []struct {
		name, to string
		code     int
		says     []string
	}{
		{name: "another server", to: good.URL + "/moved", says: []string{`from https://|^PASS`}},
		{name: "without encryption", to: elsewhere.URL + "/moved", code: 3, says: []string{`golden https://.*it redirects to a http address, and only https is followed.*\[redirect\]`}},
		{name: "a file", to: "file:///etc/passwd", code: 3, says: []string{`it redirects to a file address.*\[redirect\]`}},
		{name: "the cloud's metadata", to: "http://169.254.169.254/latest/meta-data/?hunter2", code: 3, says: []string{`it redirects to a http address.*\[redirect\]`}},
		{name: "the cloud's metadata by https", to: "https://169.254.169.254/latest", code: 3, says: []string{`an address of this machine, its network or its cloud.*\[redirect\]`}},
		{name: "and in the other notation", to: "https://[::ffff:169.254.169.254]/latest", code: 3, says: []string{`an address of this machine, its network or its cloud.*\[redirect\]`}},
		{name: "itself", to: "?again", code: 3, says: []string{`stopped after 10 redirects.*\[redirect\]`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			asked := atomic.Int64{}
			server := c.secure(t, func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				http.Redirect(w, r, test.to, http.StatusFound)
			})
			c.pulls(t, test.code, []string{"--bucket", server.URL + "/goldens"}, test.says)
			if n := asked.Load(); test.name != "itself" && n != 2 {
				t.Errorf("%d requests in two runs: a redirect does not change by another try", n)
			}
		})
	}
	if n := elsewhere.came.Load(); n > 0 {
		t.Errorf("%d connections without encryption", n)
	}
}

// TestBadRedirectsOfS3: what is signed is for one server.
func TestBadRedirectsOfS3(t *testing.T) {
	c := newConsumer(t)
	c.env["AWS_SESSION_TOKEN"] = badToken
	for _, status := range []int{301, 302, 307, 308} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			elsewhere := newCounter(t)
			c.before(t, func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, elsewhere.URL+"/x?X-Amz-Signature=hunter2", status)
			})
			c.pulls(t, 3, []string{"--bucket", "s3://goldens"}, []string{`golden s3://goldens/.*HTTP status 30`, `\[(redirect|wrong-region)\]`})
			if n := elsewhere.came.Load(); n > 0 {
				t.Errorf("%d connections to a server that the request was not signed for", n)
			}
		})
	}
}

// TestBadServers: servers that take their time. The deadline is the golden's.
func TestBadServers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		answer http.HandlerFunc
	}{
		{"never answers", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"a byte now and then", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "22242")
			for tick := time.NewTicker(20 * time.Millisecond); r.Context().Err() == nil; <-tick.C {
				w.Write([]byte{0})
				w.(http.Flusher).Flush()
			}
		}},
		{"an endless answer", func(w http.ResponseWriter, _ *http.Request) {
			for part := make([]byte, 1<<20); ; {
				if _, err := w.Write(part); err != nil {
					return
				}
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newConsumer(t)
			c.before(t, test.answer)
			code, says := 3, []string{`golden s3://goldens/.*the fetch of the golden took longer than 1s: check the network and the proxy \[network\]`}
			if test.name == "an endless answer" {
				code, says = 1, []string{`golden s3://goldens/.*more than 22242 bytes`}
			}
			c.pulls(t, code, []string{"--bucket", "s3://goldens", "--golden-timeout", "1s"}, says)
		})
	}
}

// TestBadMoment: ^C in the middle of a download leaves nothing but an exit code.
func TestBadMoment(t *testing.T) {
	for _, args := range [][]string{
		{"golden", "pull"}, {"golden", "verify"}, {"golden", "bundle", "--output", "goldens.tar"}, {"conform"},
	} {
		t.Run(args[len(args)-1], func(t *testing.T) {
			c := newConsumer(t)
			golden := c.bytes(t)
			half := make(chan struct{}, 10)
			c.before(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", "22242")
				w.Write(golden[:len(golden)/2])
				w.(http.Flusher).Flush()
				half <- struct{}{}
				<-r.Context().Done()
			})
			s := c.start(t, append(append(args, one...), "--bucket", "s3://goldens")...)
			require.NoError(t, s.Start())
			select {
			case <-half:
			case <-time.After(patience):
				t.Fatal("it asks for nothing")
			}
			s.Process.Signal(syscall.SIGINT)
			c.ended(t, s).wants(t, 3, `interrupt`)
			for _, left := range []string{"goldens.tar", "*.tar*", ".vllm-vcr*"} {
				if files, _ := filepath.Glob(filepath.Join(c.dir, left)); len(files) > 0 {
					t.Errorf("left behind: %v", files)
				}
			}
		})
	}
}

// TestBadOffline: without a network nobody is asked, whatever the environment offers.
func TestBadOffline(t *testing.T) {
	for _, bucket := range []string{"s3://goldens", "https://goldens.invalid/x", "hf://org/repo"} {
		t.Run(bucket, func(t *testing.T) {
			c := newConsumer(t)
			k := newCounter(t)
			for _, name := range []string{
				"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS",
				"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "ACTIONS_ID_TOKEN_REQUEST_URL",
			} {
				c.env[name] = k.URL
			}
			c.env["ACTIONS_ID_TOKEN_REQUEST_TOKEN"] = badToken
			c.env["GITHUB_ACTIONS"], c.env["AWS_EC2_METADATA_DISABLED"] = "true", ""
			c.env["AWS_ACCESS_KEY_ID"], c.env["AWS_SECRET_ACCESS_KEY"] = "", ""
			args := []string{"--bucket", bucket, "--role-to-assume", badRole}
			c.pulls(t, 3, append(args, "--offline"), []string{`it is not in the cache, and --offline allows no network: sha256 fc27abf14a41.*vllm-vcr golden pull`, `\[offline\]`})
			if n := k.came.Load(); n > 0 {
				t.Errorf("%d connections in spite of --offline", n)
			}
			o := c.run(t, append(append([]string{"golden", "pull"}, one...), args...)...)
			o.wants(t, 3, `the proxy answers HTTP status 404 Not Found: .*\[proxy\]|the identity token of GitHub: HTTP status 404`)
			if k.came.Load() == 0 {
				t.Error("no connection without --offline either: this counts nothing")
			}
		})
	}
}
