package s3store

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/testenv"
)

// A fault is what happens to the answer to a request on its way. A nil fault is none.
type fault func(*http.Response)

// A faultyWay lies between a store and a real S3 server, and does the n-th fault to the answer to the n-th GET.
type faultyWay struct {
	*httptest.Server
	mu     sync.Mutex
	faults []fault
	asked  []string // Range of each GET
}

func newFaultyWay(t *testing.T, server *testenv.S3Server, faults ...fault) *faultyWay {
	t.Helper()
	target, err := url.Parse(server.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	way := &faultyWay{faults: faults}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is signed
		},
		ModifyResponse: func(r *http.Response) error {
			if f := way.next(r.Request); f != nil {
				f(r)
			}
			return nil
		},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	way.Server = httptest.NewUnstartedServer(proxy)
	way.Config.ErrorLog = proxy.ErrorLog
	way.Start()
	t.Cleanup(way.Close)
	t.Setenv("AWS_ENDPOINT_URL_S3", way.URL)
	return way
}

func (w *faultyWay) next(r *http.Request) fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Method != http.MethodGet {
		return nil
	}
	w.asked = append(w.asked, r.Header.Get("Range"))
	if n := len(w.asked); n <= len(w.faults) {
		return w.faults[n-1]
	}
	return nil
}

// cutAfter ends the connection after some bytes of the answer.
func cutAfter(n int64) fault {
	return func(r *http.Response) { r.Body = &tamperedBody{rest: r.Body, pass: n, then: io.ErrUnexpectedEOF} }
}

// stallAfter sends no more after some bytes, until the client has gone.
func stallAfter(n int64) fault {
	return func(r *http.Response) {
		r.Body = &tamperedBody{rest: r.Body, pass: n, then: context.Canceled, wait: r.Request.Context().Done()}
	}
}

// flipAt changes a byte.
func flipAt(n int64) fault {
	return func(r *http.Response) { r.Body = &tamperedBody{rest: r.Body, pass: n, flip: true} }
}

// refuseWith replaces the answer by that of an overloaded server.
func refuseWith(status int, code string) fault {
	return func(r *http.Response) {
		r.Body.Close()
		text := `<?xml version="1.0"?><Error><Code>` + code + `</Code><Message>no</Message></Error>`
		r.StatusCode, r.Body, r.ContentLength = status, io.NopCloser(strings.NewReader(text)), int64(len(text))
		r.Header = http.Header{"Content-Type": {"application/xml"}}
	}
}

// A tamperedBody passes some bytes, and then fails, waits, or goes on after a changed one.
type tamperedBody struct {
	rest io.ReadCloser
	pass int64
	then error
	wait <-chan struct{}
	flip bool
}

func (b *tamperedBody) Read(p []byte) (int, error) {
	if b.pass > 0 {
		n, err := b.rest.Read(p[:min(int64(len(p)), b.pass)])
		b.pass -= int64(n)
		return n, err
	}
	if b.wait != nil {
		<-b.wait
	}
	if b.then != nil {
		return 0, b.then
	}
	n, err := b.rest.Read(p)
	if n > 0 && b.flip {
		p[0] ^= 1
		b.flip = false
	}
	return n, err
}

func (b *tamperedBody) Close() error { return b.rest.Close() }

// Every fault on the way to a real server ends in the right bytes, or in an error and nothing kept.
func TestFaultsBeforeRealS3(t *testing.T) {
	server, client := startS3(t)
	data := noise(3 << 20)
	put(t, client, "key", data)
	const mega = 1 << 20
	slow := refuseWith(http.StatusServiceUnavailable, "SlowDown")
	tests := []struct {
		name     string
		faults   []fault
		asked    []string
		mismatch bool
		fails    string
	}{
		{name: "none", asked: []string{""}},
		{name: "cut", faults: []fault{cutAfter(mega)}, asked: []string{"", "bytes=1048576-"}},
		{name: "cut thrice", faults: []fault{cutAfter(mega), cutAfter(mega), cutAfter(10)}, asked: []string{"", "bytes=1048576-", "bytes=2097152-", "bytes=2097162-"}},
		{name: "cut at once", faults: []fault{cutAfter(0)}, asked: []string{"", ""}},
		{name: "cut for good", faults: slices.Repeat([]fault{cutAfter(10)}, 4), asked: []string{"", "bytes=10-", "bytes=20-", "bytes=30-"}, fails: "after 40 bytes: unexpected EOF (4 tries)"},
		{name: "overloaded", faults: []fault{slow, cutAfter(mega), slow}, asked: []string{"", "", "bytes=1048576-", "bytes=1048576-"}},
		{name: "too many requests", faults: []fault{refuseWith(429, "TooManyRequests")}, asked: []string{"", ""}},
		{name: "an error within", faults: []fault{refuseWith(500, "InternalError")}, asked: []string{"", ""}},
		{name: "overloaded for good", faults: slices.Repeat([]fault{slow}, 4), asked: []string{"", "", "", ""}, fails: "503 Service Unavailable: SlowDown: no (4 tries)"},
		{name: "stalled", faults: []fault{stallAfter(mega)}, asked: []string{"", "bytes=1048576-"}},
		{name: "a changed byte", faults: []fault{flipAt(mega)}, asked: []string{""}, mismatch: true},
		{name: "a changed byte of the rest", faults: []fault{cutAfter(mega), flipAt(10)}, asked: []string{"", "bytes=1048576-"}, mismatch: true},
		{name: "denied", faults: []fault{cutAfter(mega), refuseWith(403, "AccessDenied")}, asked: []string{"", "bytes=1048576-"}, fails: "403 Forbidden: AccessDenied"},
		{name: "gone", faults: []fault{cutAfter(mega), refuseWith(404, "NoSuchKey")}, asked: []string{"", "bytes=1048576-"}, fails: "404 Not Found: NoSuchKey"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			way := newFaultyWay(t, server, test.faults...)
			s := newStore(t)
			if test.name == "stalled" {
				s.Stall = patience
			}
			got, err := s.Fetch(t.Context(), golden.Object{Location: "s3://" + bucket + "/key", SHA256: digest(data), Size: int64(len(data))})
			switch {
			case test.mismatch:
				if m := wantMismatch(t, err); m.ETag == "" || m.Modified.IsZero() {
					t.Errorf("it is not told what is there: %+v", m)
				}
			case test.fails != "":
				wantFetchError(t, err, test.fails)
			case err != nil || !bytes.Equal(got, data):
				t.Errorf("got %d bytes, %v", len(got), err)
			}
			if !slices.Equal(way.asked, test.asked) {
				t.Errorf("asked for %q, want %q", way.asked, test.asked)
			}
			if test.mismatch || test.fails != "" {
				wantNoEntries(t, s)
			}
		})
	}
}

// An object that is overwritten while it is read is never put together of two, here or in the cache.
func TestRealS3ChangesMeanwhile(t *testing.T) {
	server, client := startS3(t)
	for name, newer := range map[string][]byte{"same size": bytes.Repeat([]byte("n"), 2<<20), "shorter": content} {
		t.Run(name, func(t *testing.T) {
			put(t, client, "key", noise(2<<20))
			way := newFaultyWay(t, server, func(r *http.Response) {
				cutAfter(1 << 20)(r)
				put(t, client, "key", newer)
			})
			s := newStore(t)
			for range 2 {
				got, err := s.Fetch(t.Context(), golden.Object{Location: "s3://" + bucket + "/key", SHA256: digest(newer)})
				if err != nil || !bytes.Equal(got, newer) {
					t.Errorf("got %d bytes, %v; want what is there now", len(got), err)
				}
				s.Offline = true
			}
			if want := []string{"", "bytes=1048576-", ""}; !slices.Equal(way.asked, want) {
				t.Errorf("asked for %q, want %q", way.asked, want)
			}
		})
	}
}

// A mirror helps out where the first server fails.
func TestRealS3MirrorOfAnotherBucket(t *testing.T) {
	server, client := startS3(t)
	put(t, client, "key", content)
	damaged := filepath.Join(server.Dir, bucket, "damaged")
	write(t, damaged, content[1:])
	if _, err := os.Stat(damaged); err != nil {
		t.Fatal(err)
	}
	newFaultyWay(t, server)
	s := newStore(t)
	out := logTo(s)
	data, err := s.Fetch(t.Context(), contentAt("s3://"+bucket+"/damaged", "s3://none-such/key", "s3://"+bucket+"/key"))
	if err != nil || !bytes.Equal(data, content) {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
	if !strings.Contains(out.String(), "s3://goldens/damaged: sha256") {
		t.Errorf("log does not tell of the first location:\n%s", out)
	}
}
