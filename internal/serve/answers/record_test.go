package answers

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// send sends a request through a recorder, as the edge does: with a body that can be read again.
func send(c *Recorder, body string) (status int, text string) {
	r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer sk-secret")
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(body)), nil }
	w := httptest.NewRecorder()
	c.Wrap(http.NotFoundHandler()).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestRecorder(t *testing.T) {
	asked := 0
	real := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; r.Header.Get("Authorization") != "Bearer sk-secret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "fail") {
			w.WriteHeader(http.StatusInternalServerError)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, part := range []string{"data: one\n\n", "data: two\n\n"} {
			fmt.Fprintf(w, "%s: %d", part, asked)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	defer real.Close()
	upstream, err := url.Parse(real.URL)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "answers.jsonl")
	recorder := func(mode string, to *url.URL) *Recorder {
		c, err := NewRecorder(RecorderOptions{Path: path, Mode: mode, Upstream: to, Scrub: []*regexp.Regexp{regexp.MustCompile("[a-z]+@example.org")}})
		require.NoError(t, err)
		return c
	}
	const first, second = `{"messages": [{"role": "user", "content": "I am bob@example.org"}]}`, `{"messages": [{"content": "Hi", "role": "user"}, {"role": "assistant", "content": "x"}, {"role": "tool", "content": "one two"}]}`
	c := recorder("once", upstream)
	var want []string
	for _, body := range []string{first, first, second} { // equal requests have answers of their own only if all are asked anew
		_, text := send(c, body)
		want = append(want, text)
	}
	if _, text := send(c, "fail"); asked != 3 || want[0] != want[1] || !strings.Contains(text, "one") {
		t.Errorf("%d requests reached the real server, answers %q", asked, want)
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	if strings.Contains(string(text), "secret") || strings.Contains(string(text), "bob@") || strings.Count(string(text), "\n") != 2 {
		t.Errorf("the file has a key, what was to be scrubbed, or an error: %s", text)
	}
	c = recorder("none", nil)
	for i, body := range []string{first, strings.ReplaceAll(first, "bob@", "eve@"), second} {
		if status, text := send(c, body); status != http.StatusOK || text != want[i] {
			t.Errorf("answer %d: status %d, %q, want %q", i+1, status, text, want[i])
		}
	}
	for _, tt := range []struct{ name, body, want string }{
		{"another result of a tool", strings.Replace(second, "one two", "one three", 1), `turn 2 is not recorded: message 3 differs from character 6 on; recorded: \"one two\"; now: \"one three\"`},
		{"one more message", strings.Replace(first, "]", `, {"role": "user", "content": "and?"}]`, 1), "the recorded session has no message 2"},
		{"fewer messages", `{"messages": [{"content": "Hi", "role": "user"}]}`, "the recorded request has 3 messages, this one 1"},
		{"another parameter", strings.Replace(first, "{", `{"temperature": 1, `, 1), "with other parameters or tools"},
	} {
		if status, text := send(c, tt.body); status != http.StatusBadRequest || !strings.Contains(text, tt.want) {
			t.Errorf("%s: status %d, %s, want %s", tt.name, status, text, tt.want)
		}
	}
	before := asked
	if send(recorder("all", upstream), first); asked != before+1 {
		t.Error("mode all did not ask the real server")
	}
	_, err = NewRecorder(RecorderOptions{Path: path + "x", Mode: "none"})
	require.ErrorContains(t, err, "does not exist")
	_, err = NewRecorder(RecorderOptions{Path: path, Mode: "new"})
	require.ErrorContains(t, err, "--upstream URL")
	require.NoError(t, os.WriteFile(path, []byte("{}\n{"), 0o600))
	_, err = NewRecorder(RecorderOptions{Path: path, Mode: "none"})
	require.ErrorContains(t, err, "answers.jsonl:2: ")
}
