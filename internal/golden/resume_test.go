package golden

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const half = 1750 // bytes of content

// A reply is how a server answers: what it says of the object, and how much it sends of it.
type reply struct {
	status   int
	etag     string
	from, to int // of content
	total    int // as Content-Range tells
	cut      bool
	data     []byte // instead of content
}

func (a reply) step(w http.ResponseWriter, _ *http.Request) {
	if a.etag != "" {
		w.Header().Set("ETag", a.etag)
	}
	if a.status >= 400 {
		http.Error(w, "no", a.status)
		return
	}
	data := content
	if a.data != nil {
		data = a.data
	}
	if a.status == http.StatusPartialContent {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", a.from, a.to-1, a.total))
	}
	length := a.to - a.from
	if a.cut {
		length = len(data) - a.from
	}
	w.Header().Set("Content-Length", fmt.Sprint(length))
	w.WriteHeader(a.status)
	w.Write(data[a.from:a.to])
	if a.cut {
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

func TestDownloadResumes(t *testing.T) {
	const whole = 3500
	other := append(bytes.Repeat([]byte("y"), half), content[half:]...)
	firstHalf := reply{status: 200, etag: `"a"`, to: half, cut: true}
	rest := reply{status: 206, etag: `"a"`, from: half, to: whole, total: whole}
	all := reply{status: 200, etag: `"a"`, to: whole}
	tests := []struct {
		name    string
		replies []reply
		asked   []string // Range and If-Match of each request
		fails   string
	}{
		{name: "the rest", replies: []reply{firstHalf, rest}, asked: []string{"", `bytes=1750- "a"`}},
		{
			name: "the rest in two parts", asked: []string{"", `bytes=1750- "a"`, `bytes=2000- "a"`},
			replies: []reply{firstHalf, {status: 206, etag: `"a"`, from: half, to: 2000, total: whole, cut: true}, {status: 206, etag: `"a"`, from: 2000, to: whole, total: whole}},
		},
		{
			name: "less than asked for", asked: []string{"", `bytes=1750- "a"`, `bytes=2000- "a"`},
			replies: []reply{firstHalf, {status: 206, etag: `"a"`, from: half, to: 2000, total: whole}, {status: 206, etag: `"a"`, from: 2000, to: whole, total: whole}},
		},
		{name: "overloaded meanwhile", replies: []reply{firstHalf, {status: 503}, rest}, asked: []string{"", `bytes=1750- "a"`, `bytes=1750- "a"`}},
		{name: "the server cannot", replies: []reply{firstHalf, all}, asked: []string{"", `bytes=1750- "a"`}},
		{name: "another object meanwhile", replies: []reply{firstHalf, {status: 412}, all}, asked: []string{"", `bytes=1750- "a"`, ""}},
		{name: "a shorter object meanwhile", replies: []reply{firstHalf, {status: 416}, all}, asked: []string{"", `bytes=1750- "a"`, ""}},
		{
			name: "another size, though it should match", asked: []string{"", `bytes=1750- "a"`, ""},
			replies: []reply{firstHalf, {status: 206, etag: `"a"`, from: half, to: whole, total: whole + 1}, all},
		},
		{
			name: "another ETag, though it should match", asked: []string{"", `bytes=1750- "a"`, ""},
			replies: []reply{{status: 200, etag: `"a"`, to: half, cut: true, data: other}, {status: 206, etag: `"b"`, from: half, to: whole, total: whole}, all},
		},
		{
			name: "another part than asked for", asked: []string{"", `bytes=1750- "a"`, ""},
			replies: []reply{firstHalf, {status: 206, etag: `"a"`, from: 1000, to: whole, total: whole}, all},
		},
		{name: "no ETag", replies: []reply{{status: 200, to: half, cut: true}, all}, asked: []string{"", ""}},
		{name: "weak ETag", replies: []reply{{status: 200, etag: `W/"a"`, to: half, cut: true}, all}, asked: []string{"", ""}},
		{name: "nothing came", replies: []reply{{status: 200, etag: `"a"`, cut: true}, all}, asked: []string{"", ""}},
		{
			name: "it changes all the time", asked: []string{"", `bytes=1750- "a"`, "", `bytes=1750- "a"`},
			replies: []reply{firstHalf, {status: 412}, firstHalf, {status: 412}}, fails: "the object changed while it was read: HTTP status 412",
		},
		{
			name: "it does not say which part", asked: []string{"", `bytes=1750- "a"`},
			replies: []reply{firstHalf, {status: 206, etag: `"a"`, from: -1, to: whole, total: whole}}, fails: "Content-Range",
		},
		{name: "denied meanwhile", replies: []reply{firstHalf, {status: 403}}, asked: []string{"", `bytes=1750- "a"`}, fails: "403 Forbidden (2 tries)"},
		{name: "refused for no reason", replies: []reply{{status: 412}}, asked: []string{""}, fails: "HTTP status 412"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var steps []step
			for _, r := range test.replies {
				if r.from < 0 {
					steps = append(steps, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusPartialContent) })
					continue
				}
				steps = append(steps, r.step)
			}
			server := newScript(t, true, steps...)
			s := newStore(t)
			s.HTTP = server.Client()
			if test.fails == "" {
				wantContent(t, s, server.URL)
				server.Close()
				wantContent(t, s, server.URL) // as it was kept
			} else {
				_, err := fetchContent(t, s, server.URL)
				wantFetchError(t, err, test.fails)
				wantNoEntries(t, s)
			}
			var asked []string
			for _, r := range server.Requests {
				asked = append(asked, strings.TrimSpace(r.Header.Get("Range")+" "+r.Header.Get("If-Match")))
			}
			require.True(t, slices.Equal(asked, test.asked), "asked for %q, want %q", asked, test.asked)
		})
	}
}

func wantNoEntries(t *testing.T, s *Store) {
	t.Helper()
	for _, pattern := range []string{"tmp/*", "sha256/*/*"} {
		if left, _ := glob(s.Cache, pattern); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// A server that says how long it wants to be left alone is, if that is not too long.
func TestDownloadWaitsAsAsked(t *testing.T) {
	tests := []struct {
		name, header string
		want         time.Duration
	}{
		{name: "seconds", header: "7", want: 7 * time.Second},
		{name: "the longest", header: "30", want: 30 * time.Second},
		{name: "too long", header: "31", want: time.Second},
		{name: "less than our own", header: "0", want: time.Second},
		{name: "a date", header: "Wed, 21 Oct 2026 07:28:00 GMT", want: time.Second},
		{name: "nonsense", header: "-5", want: time.Second},
		{name: "none", want: time.Second},
	}
	s := &Store{Backoff: func(int) time.Duration { return time.Second }}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			header := http.Header{}
			if test.header != "" {
				header.Set("Retry-After", test.header)
			}
			_, err := webBody(&http.Response{StatusCode: http.StatusServiceUnavailable, Header: header}, Span{})
			require.Equal(t, s.wait(1, err), test.want, "waits")
		})
	}
}
