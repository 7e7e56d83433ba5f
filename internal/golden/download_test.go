package golden

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestDownloadTriesAgain(t *testing.T) {
	ok := serve(content)
	tests := []struct {
		name  string
		steps []step
		stall time.Duration
		asked int    // 0: as many as arrived before the stall, in 4 tries
		fails string // empty: content is had in the end
	}{
		{name: "at once", steps: []step{ok}, asked: 1},
		{name: "overloaded once", steps: []step{status(503), ok}, asked: 2},
		{name: "each kind of outage", steps: []step{status(500), status(502), status(504), ok}, asked: 4},
		{name: "cut", steps: []step{cut, ok}, asked: 2},
		{name: "cut thrice", steps: []step{cut, cut, cut, ok}, asked: 4},
		{name: "no answer", steps: []step{drop, ok}, asked: 2},
		{name: "reset", steps: []step{reset, ok}, asked: 2},
		{name: "stalled", steps: []step{hang, ok}, stall: patience, asked: 2},
		{name: "overloaded for good", steps: []step{status(503)}, asked: 4, fails: "HTTP status 503 Service Unavailable (4 tries)"},
		{name: "cut for good", steps: []step{cut}, asked: 4, fails: "after 1750 bytes: unexpected EOF (4 tries)"},
		{name: "no answer for good", steps: []step{drop}, asked: 4, fails: "EOF (4 tries)"},
		{name: "stalled for good", steps: []step{hang}, stall: 20 * time.Millisecond, fails: "sent nothing for too long (20ms) (4 tries): check the network"},
		{name: "unauthorized", steps: []step{status(401)}, asked: 1, fails: "HTTP status 401 Unauthorized: the server wants credentials"},
		{name: "forbidden", steps: []step{status(403)}, asked: 1, fails: "HTTP status 403 Forbidden: the server wants credentials"},
		{name: "missing", steps: []step{status(404)}, asked: 1, fails: "HTTP status 404 Not Found: check the location"},
		{name: "nothing in it", steps: []step{status(204)}, asked: 1, fails: "HTTP status 204 No Content"},
		{name: "forbidden after an outage", steps: []step{status(503), status(403)}, asked: 2, fails: "403 Forbidden (2 tries)"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := newScript(t, true, test.steps...)
			s := newStore(t)
			s.HTTP, s.Stall = server.Client(), test.stall
			var waits []int
			s.Backoff = func(try int) time.Duration { waits = append(waits, try); return 0 }
			if test.fails == "" {
				wantContent(t, s, server.URL+"/a.jsonl")
			} else {
				_, err := fetchContent(t, s, server.URL+"/a.jsonl")
				failed := wantFetchError(t, err, "golden "+server.URL+"/a.jsonl: ", test.fails)
				if want := cmp.Or(test.asked, retry.Tries); failed.Tries != want {
					t.Errorf("error tells of %d tries, want %d", failed.Tries, want)
				}
			}
			if got := server.Asked(); test.asked != 0 && got != test.asked {
				t.Errorf("%d requests, want %d", got, test.asked)
			}
			if want := []int{1, 2, 3}[:cmp.Or(test.asked, retry.Tries)-1]; !slices.Equal(waits, want) {
				t.Errorf("waits after tries %v, want %v", waits, want)
			}
		})
	}
}

// A drip is a body of which a part comes each second, of the clock of the test.
type drip struct {
	ctx  context.Context
	left []byte
	part int
}

func (d *drip) Read(p []byte) (int, error) {
	if len(d.left) == 0 {
		return 0, io.EOF
	}
	if err := retry.Pause(d.ctx, time.Second); err != nil {
		return 0, err
	}
	n := copy(p, d.left[:min(d.part, len(d.left))])
	d.left = d.left[n:]
	return n, nil
}

func (d *drip) Close() error { return nil }

// A server that sends a little all the time holds nobody for long, and a slow link is none.
func TestDownloadOfDrips(t *testing.T) {
	large := bytes.Repeat(content, 300) // 1 MB
	for _, test := range []struct {
		name      string
		data      []byte
		part      int // bytes a second
		most      time.Duration
		fails     string
		requested int
	}{
		{name: "a byte a second", data: content, part: 1, most: 5 * time.Minute, fails: "too slowly", requested: retry.Tries},
		{name: "a slow link", data: content, part: 100, most: time.Minute, requested: 1},
		{name: "a slow link, and much", data: large, part: 2000, most: 10 * time.Minute, requested: 1},
		{name: "just fast enough for each minute", data: large, part: 1100, most: 11 * time.Minute, fails: "takes too long", requested: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requested := 0
				s := newStore(t)
				s.HTTP = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
					requested++
					return &http.Response{
						StatusCode: 200, Header: http.Header{}, ContentLength: -1, Request: r,
						Body: &drip{ctx: r.Context(), left: test.data, part: test.part},
					}, nil
				})}
				start := time.Now()
				_, err := s.Fetch(t.Context(), Object{Location: "https://slow.test/a", SHA256: digest(test.data), Size: int64(len(test.data))})
				if test.fails != "" {
					wantFetchError(t, err, test.fails, "check the network")
				} else if err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took > test.most || requested != test.requested {
					t.Errorf("%d requests in %v, want %d in %v", requested, took, test.requested, test.most)
				}
			})
		})
	}
}

func TestDownloadKeepsDeadline(t *testing.T) {
	server := newScript(t, true, hang)
	s := newStore(t)
	s.HTTP = server.Client()
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	_, err := s.Fetch(ctx, Object{Location: server.URL, SHA256: digest(content)})
	wantFetchError(t, err, "deadline exceeded", "check the network")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	if got := server.Asked(); got > 1 {
		t.Errorf("%d requests, want no second one", got)
	}
}

// An endless body is left as soon as it is too long.
func TestDownloadStopsReading(t *testing.T) {
	for _, pinned := range []int64{0, 1000} {
		left := make(chan int, 1)
		server := newScript(t, true, func(w http.ResponseWriter, _ *http.Request) {
			sent, chunk := 0, make([]byte, 32<<10)
			for {
				n, err := w.Write(chunk)
				if sent += n; err != nil {
					left <- sent
					return
				}
			}
		})
		s := newStore(t)
		s.HTTP, s.MaxSize = server.Client(), 2000
		_, err := s.Fetch(t.Context(), Object{Location: server.URL, SHA256: digest(content), Size: pinned})
		if pinned == 0 {
			wantFetchError(t, err, "more than the 2000 bytes")
		} else if got := wantMismatch(t, err).GotSize; got != 1001 {
			t.Errorf("read %d bytes, want 1001", got)
		}
		<-left // or the test never ends
	}
}

// A golden is the bytes that are stored, even if their server thinks of gzip as a way to transfer them.
func TestDownloadDoesNotUndoGzip(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	w.Write(content)
	w.Close()
	server := newScript(t, true, func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, r.Header.Get("Accept-Encoding"), "identity", "Accept-Encoding")
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(packed.Bytes())
	})
	s := newStore(t)
	s.HTTP = server.Client()
	got, err := s.Fetch(t.Context(), Object{Location: server.URL + "/a.jsonl.gz", SHA256: digest(packed.Bytes()), Size: int64(packed.Len())})
	if err != nil || !bytes.Equal(got, packed.Bytes()) {
		t.Errorf("got %d bytes, %v; want the %d that are stored", len(got), err, packed.Len())
	}
}

func TestDownloadWhereRetryIsNoUse(t *testing.T) {
	plain := newScript(t, false, serve(content))
	unknown := newScript(t, true, serve(content))
	tests := []struct{ name, location, want string }{
		{name: "no TLS", location: strings.Replace(plain.URL, "http:", "https:", 1), want: "HTTP response to HTTPS client"},
		{name: "unknown certificate", location: unknown.URL, want: "certificate"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newStore(t)
			s.HTTP = &http.Client{Transport: &http.Transport{}}
			_, err := fetchContent(t, s, test.location)
			if failed := wantFetchError(t, err, test.want); failed.Tries != 1 {
				t.Errorf("%d tries, want 1: %v", failed.Tries, err)
			}
		})
	}
}

// A redirect leads to a signed URL, as those of release assets do, and that to nowhere.
func TestErrorsHideSignedRedirects(t *testing.T) {
	gone := newScript(t, true, serve(content))
	gone.Close()
	server := newScript(t, true, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, gone.URL+"/a?X-Amz-Signature=secret&X-Amz-Credential=alsosecret", http.StatusFound)
	})
	s := newStore(t)
	s.HTTP = server.Client()
	out := logTo(s)
	_, err := fetchContent(t, s, strings.Replace(server.URL, "https://", "https://user:secret@", 1))
	wantFetchError(t, err, "golden "+server.URL+": ", "connection refused")
	require.True(t, !strings.Contains(err.Error()+out.String(), "secret"), "a secret is told: %v\n%s", err, out)
}

// An elsewhere is a connection whose other end says that it is on the internet.
type elsewhere struct{ net.Conn }

func (elsewhere) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7), Port: 443} }

// Redirects do not lead from the internet to the machine, its network or its cloud, by whatever name.
func TestRedirectsInside(t *testing.T) {
	target := newScript(t, true, serve(content))
	port := target.URL[strings.LastIndexByte(target.URL, ':'):]
	tests := []struct {
		name, from, to string
		inside         func(netip.Addr) bool
		fails          string // empty: content is had
	}{
		{name: "to the internet", from: "internet.test", to: target.URL, inside: func(netip.Addr) bool { return false }},
		{name: "to the machine", from: "internet.test", to: target.URL, fails: "it redirects to 127.0.0.1, an address of this machine"},
		{name: "to a name of the machine", from: "internet.test", to: "https://localhost" + port, fails: ", an address of this machine"},
		{name: "to the network", from: "internet.test", to: "https://10.1.2.3" + port, fails: "10.1.2.3"},
		{name: "to an address in another", from: "internet.test", to: "https://[::ffff:10.1.2.3]" + port, fails: "10.1.2.3"},
		{name: "to nowhere, which is the machine", from: "internet.test", to: "https://0.0.0.0" + port, fails: "0.0.0.0"},
		{name: "to a shared network", from: "internet.test", to: "https://100.64.0.1" + port, fails: "100.64.0.1"},
		{name: "to the cloud", from: "internet.test", to: "https://169.254.169.254/latest", fails: "169.254.169.254"},
		{name: "from the machine to itself", from: "127.0.0.1", to: target.URL},
		{name: "from the machine to its name", from: "127.0.0.1", to: "https://localhost" + port},
		{name: "from a name of the machine", from: "localhost", to: target.URL},
		{name: "from the machine to the cloud", from: "127.0.0.1", to: "https://169.254.169.254/latest", fails: "169.254.169.254"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := newScript(t, true, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, test.to, http.StatusFound) })
			transport := anyCertificate().(*http.Transport)
			transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				if !strings.HasPrefix(address, "internet.test:") {
					return new(net.Dialer).DialContext(ctx, network, address)
				}
				conn, err := new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
				return elsewhere{conn}, err
			}
			s := newStore(t)
			s.HTTP, s.inside = &http.Client{Transport: transport}, test.inside
			own := strings.Replace(server.URL, "127.0.0.1", test.from, 1)
			if test.fails == "" {
				wantContent(t, s, own)
				return
			}
			// Another golden has left connections to where this one is sent.
			for _, host := range []string{"127.0.0.1", "localhost"} {
				_, _ = s.Fetch(t.Context(), Object{Location: "https://" + host + port, SHA256: digest(nil)})
			}
			requests := target.Asked()
			_, err := fetchContent(t, s, own)
			if failed := wantFetchError(t, err, test.fails, "is not followed"); failed.Tries != 1 {
				t.Errorf("%d tries, want 1", failed.Tries)
			}
			require.Equal(t, target.Asked(), requests, "the server inside got the request")
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestParseContentRange(t *testing.T) {
	tests := []struct {
		name, text   string
		offset, size int64
		fails        bool
	}{
		{name: "whole", text: "bytes 0-9/10", size: 10},
		{name: "end", text: "bytes 5-9/10", offset: 5, size: 10},
		{name: "size not known", text: "bytes 5-9/*", offset: 5, size: -1},
		{name: "nothing", fails: true},
		{name: "not satisfied", text: "bytes */10", fails: true},
		{name: "negative", text: "bytes -5-9/10", fails: true},
		{name: "no size", text: "bytes 5-9", fails: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			offset, size, err := ParseContentRange(test.text)
			require.True(t, offset == test.offset && size == test.size && (err != nil) == test.fails, "got %d, %d, %v", offset, size, err)
		})
	}
}
