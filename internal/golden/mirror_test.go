package golden

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestMirrors(t *testing.T) {
	right := newScript(t, true, serve(content))
	wrong := newScript(t, true, serve(content[1:]))
	missing := newScript(t, true, status(404))
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), content)
	tests := []struct {
		name      string
		locations []string
		fails     []string // all of it in the error; nil: content is had
		mismatch  bool
		warns     string
	}{
		{name: "the first has it", locations: []string{right.URL, wrong.URL}},
		{name: "missing", locations: []string{missing.URL, right.URL}, warns: "404"},
		{name: "wrong bytes", locations: []string{wrong.URL, right.URL}, warns: "sha256 of its 3499 bytes"},
		{name: "the last of four", locations: []string{missing.URL, wrong.URL, "s3://no-key", right.URL}, warns: "s3://bucket/key"},
		{name: "a file has it", locations: []string{missing.URL, "file://" + dir + "/a"}, warns: "404"},
		{name: "a file has it not", locations: []string{filepath.Join(dir, "none"), right.URL}, warns: "no such file"},
		{name: "none has it", locations: []string{missing.URL + "/a", missing.URL + "/b"}, fails: []string{missing.URL + "/a: HTTP status 404", missing.URL + "/b: HTTP status 404"}},
		{name: "wrong and missing", locations: []string{missing.URL, wrong.URL}, mismatch: true, fails: []string{missing.URL + ": HTTP status 404", wrong.URL + ": sha256"}},
		{name: "missing and wrong", locations: []string{wrong.URL, missing.URL}, mismatch: true, fails: []string{missing.URL + ": HTTP status 404", wrong.URL + ": sha256"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newStore(t)
			s.HTTP = right.Client()
			s.HTTP.Transport = anyCertificate()
			out := logTo(s)
			data, err := s.Fetch(t.Context(), contentAt(test.locations[0], test.locations[1:]...))
			if test.fails == nil {
				if err != nil || digest(data) != digest(content) {
					t.Fatalf("got %d bytes, %v", len(data), err)
				}
			} else {
				for _, part := range test.fails {
					require.True(t, strings.Contains(err.Error(), part), "error lacks %q: %v", part, err)
				}
				// Whoever asks for the one kind must not be told the other.
				require.Equal(t, errors.As(err, new(*MismatchError)), test.mismatch, "a MismatchError: %v", err)
				if got := errors.As(err, new(*FetchError)); got == test.mismatch {
					t.Errorf("a FetchError: %v: %v", got, err)
				}
			}
			warned := strings.Contains(out.String(), "fetched from another one")
			if warned != (test.warns != "") || warned && !strings.Contains(out.String(), test.locations[0]) || !strings.Contains(out.String(), test.warns) {
				t.Errorf("log: want a warning of %q that names %s:\n%s", test.warns, test.locations[0], out)
			}
		})
	}
}

func TestOffline(t *testing.T) {
	server := newScript(t, true, serve(content))
	s := newStore(t)
	s.HTTP, s.Offline = server.Client(), true
	o := contentAt(server.URL+"/a", "s3://bucket/key", "hf://o/r/a")

	_, err := s.Fetch(t.Context(), o)
	if err == nil {
		t.Fatal("got a golden from nowhere")
	}
	for _, want := range []string{server.URL + "/a: it is not in the cache", "s3://bucket/key: ", digest(content), "`vllm-vcr golden pull` while online", "[offline]"} {
		require.True(t, strings.Contains(err.Error(), want), "error lacks %q: %v", want, err)
	}
	file := filepath.Join(t.TempDir(), "a")
	write(t, file, content)
	wantContent(t, s, file)
	require.Equal(t, server.Asked(), 0, "requests")

	s.Offline = false
	wantContent(t, s, server.URL)
	s.Offline = true
	wantContent(t, s, "s3://bucket/key")
	require.Equal(t, server.Asked(), 1, "requests: the one that was allowed")

	// Everything that is missing is told of.
	missing := []Object{contentAt("s3://bucket/key"), {Location: "s3://bucket/b", SHA256: digest([]byte("b"))}, {Location: server.URL, SHA256: digest([]byte("c"))}}
	for i, p := range s.Pull(t.Context(), missing) {
		require.True(t, (p.Err == nil) == (i == 0) && p.Location == missing[i].Location, "%s: %v", p.Location, p.Err)
		require.True(t, i <= 0 || strings.Contains(p.Err.Error(), missing[i].SHA256), "error lacks the digest: %v", p.Err)
	}
}
