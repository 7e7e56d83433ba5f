package pypi_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// answering is a client of a server that is a function, without a network.
type answering http.HandlerFunc

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	a(w, r)
	response := w.Result()
	response.Request = r
	return response, nil
}

func indexOf(answer http.HandlerFunc) *pypi.Index {
	return &pypi.Index{URL: "https://x/simple", HTTP: &http.Client{Transport: answering(answer)}}
}

// FuzzPage: whatever a page says, what is read of it can be named, ordered and asked for.
func FuzzPage(f *testing.F) {
	for _, name := range []string{"vllm.html", "nightly.html", "vllm.json"} {
		text, err := os.ReadFile("testdata/" + name)
		require.NoError(f, err)
		f.Add(strings.HasSuffix(name, ".json"), text)
	}
	f.Add(false, []byte(htmlPage(`<base href="//y/z/"><a data-yanked href="vllm-1.0.0+cpu-py3-none-any.whl#sha256=x">`)))
	f.Fuzz(func(t *testing.T, isJSON bool, body []byte) {
		x := indexOf(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			if isJSON {
				w.Header().Set("Content-Type", jsonType)
			}
			_, _ = w.Write(body)
		})
		releases, err := x.ReleasesAndBuilds(t.Context(), "vllm")
		if (err == nil) != (len(releases) > 0) {
			t.Fatalf("%d releases, %v", len(releases), err)
		}
		var last compat.Build
		for i, r := range releases {
			b, err := compat.ParseBuild(r.Version)
			require.True(t, err == nil && (i <= 0 || last.Compare(b) < 0), "%q after %s: %v", r.Version, last, err)
			last = b
			for _, file := range r.Files {
				if u, err := url.Parse(file.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
					t.Errorf("%s: URL %q, %v", r.Version, file.URL, err)
				}
			}
		}
	})
}

// FuzzWheel: whatever a wheel says, all of it is read, within the limit, or there is an error.
func FuzzWheel(f *testing.F) {
	for _, members := range []map[string]string{{}, {"a": "aa", "big/b": "bb", "c/": ""}, metadata("vllm", "0.33.0")} {
		var data bytes.Buffer
		writeWheel(f, &data, members)
		f.Add(data.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		const limit = 1000
		x := indexOf(func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		})
		wheel, err := x.OpenWheel(t.Context(), pypi.File{URL: "https://x/w.whl"})
		if err != nil {
			return
		}
		_, _ = wheel.Version()
		names := wheel.Names()
		files, err := wheel.ReadFiles(names, limit)
		if err == nil && len(files) != len(names) {
			t.Fatalf("%d of %d", len(files), len(names))
		}
		for name, data := range files {
			require.True(t, len(data) <= limit, "%q has %d bytes", name, len(data))
		}
	})
}
