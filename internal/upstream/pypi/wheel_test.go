package pypi_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// A wheelServer serves a wheel with the ranges and conditions of net/http, and faults on top.
type wheelServer struct {
	data []byte
	etag string
	// before may answer a request itself, or change what is served; may be nil.
	before func(w http.ResponseWriter, r *http.Request, number int) (answered bool)

	mu     sync.Mutex
	number int
	ranges []string
}

func (s *wheelServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number++
	s.ranges = append(s.ranges, r.Header.Get("Range"))
	if s.before != nil && s.before(w, r, s.number) {
		return
	}
	if s.etag != "" {
		w.Header().Set("Etag", s.etag)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(s.data))
}

// wheelOf makes a wheel of members in the order of their names; "big" is stored, others are compressed.
func wheelOf(t *testing.T, members map[string]string) *wheelServer {
	t.Helper()
	var data bytes.Buffer
	writeWheel(t, &data, members)
	return &wheelServer{data: data.Bytes(), etag: `"one"`}
}

func writeWheel(t testing.TB, to io.Writer, members map[string]string) {
	t.Helper()
	archive := zip.NewWriter(to)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		method := zip.Deflate
		if strings.HasPrefix(name, "big") {
			method = zip.Store
		}
		w, err := archive.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		require.NoError(t, err)
		if _, err := io.WriteString(w, members[name]); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, archive.Close())
}

func noise(size int) string {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(data)
	return string(data)
}

// file starts the server, and is what an index says of its wheel.
func (s *wheelServer) file(t *testing.T) pypi.File {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	sum := sha256.Sum256(s.data)
	return pypi.File{
		Name: "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl", URL: server.URL + "/w.whl?signature=hunter2",
		Size: int64(len(s.data)), SHA256: hex.EncodeToString(sum[:]),
	}
}

// TestWheelRanges: of a large wheel only the directory and the members that are asked for are downloaded, in few
// requests.
func TestWheelRanges(t *testing.T) {
	big := noise(10 << 20)
	server := wheelOf(t, map[string]string{"big/0": noise(12 << 20), "big/1": big, "big/2": noise(2 << 20), "small": "x"})
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("size known %v", known), func(t *testing.T) {
			server.number, server.ranges = 0, nil
			f := server.file(t)
			if !known {
				f.Size = 0
			}
			wheel, err := at("http://x").OpenWheel(t.Context(), f)
			require.NoError(t, err)
			if text, err := wheel.ReadFile("small", 1); err != nil || string(text) != "x" {
				t.Errorf("small: %q, %v", text, err)
			}
			if server.number != 1 || wheel.Downloaded() != 1<<20 {
				t.Errorf("%d requests, %d bytes for the directory, want 1 and 1 MiB", server.number, wheel.Downloaded())
			}
			if got, err := wheel.ReadFile("big/1", 10<<20); err != nil || string(got) != big {
				t.Errorf("big/1: %d bytes, %v", len(got), err)
			}
			// From a quarter of a MiB to four, each part twice the one before.
			if server.number != 7 || wheel.Downloaded() > 13<<20 {
				t.Errorf("%d requests, %d bytes: %q", server.number, wheel.Downloaded(), server.ranges)
			}
			if _, err := wheel.ReadFile("big/1", 1000); err == nil || !strings.Contains(err.Error(), "big/1 has more than 1000 bytes") {
				t.Errorf("beyond the limit: %v", err)
			}
			if _, err := wheel.Open("none"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "/w.whl holds no none") {
				t.Errorf("absent member: %v", err)
			}
		})
	}
}

// TestWheelFaults: what goes wrong on the way ends in the right bytes or in an error, never in others.
func TestWheelFaults(t *testing.T) {
	// The third request is in the middle of the member.
	big := noise(9 << 20)
	whole := wheelOf(t, map[string]string{"big": big, "small": strings.Repeat("small", 100), "z/filler": noise(2 << 20)})
	type fault func(s *wheelServer, w http.ResponseWriter, r *http.Request, n int) (answered bool)
	status := func(code, from, to int) fault {
		return func(_ *wheelServer, w http.ResponseWriter, _ *http.Request, n int) bool {
			if from <= n && n <= to {
				w.WriteHeader(code)
			}
			return from <= n && n <= to
		}
	}
	third := func(change func(s *wheelServer, r *http.Request)) fault { // of the third request
		return func(s *wheelServer, _ http.ResponseWriter, r *http.Request, n int) bool {
			if n == 3 {
				change(s, r)
			}
			return false
		}
	}
	noise := bytes.Repeat([]byte("x"), len(whole.data))
	tests := []struct {
		name   string
		etag   string
		before fault
		file   func(f *pypi.File)
		want   string // of the error
	}{
		{name: "none"},
		{name: "no ETag", etag: "-"},
		{name: "weak ETag", etag: `W/"1"`},
		{name: "503 three times", before: status(503, 3, 5)},
		{name: "503 for ever", before: status(503, 3, 99), want: "4 tries: status 503 Service Unavailable"},
		{name: "404 in between", before: status(404, 3, 99), want: "status 404 Not Found: it is not there (any more)"},
		{name: "403 at once", before: status(403, 1, 99), want: "status 403 Forbidden"},
		{name: "cut once", before: func(s *wheelServer, w http.ResponseWriter, _ *http.Request, n int) bool {
			if n == 3 {
				w.Header().Set("Content-Length", "8388608")
				w.WriteHeader(http.StatusPartialContent)
				_, _ = w.Write(s.data[:1000])
			}
			return n == 3
		}},
		{name: "replaced, ETag", before: third(func(s *wheelServer, _ *http.Request) { s.etag, s.data = `"two"`, noise }), want: "status 412 Precondition Failed: the file was replaced"},
		{name: "replaced, conditions ignored", before: func(s *wheelServer, _ http.ResponseWriter, r *http.Request, n int) bool {
			r.Header.Del("If-Match")
			return third(func(s *wheelServer, _ *http.Request) { s.etag, s.data = `"two"`, noise })(s, nil, r, n)
		}, want: "the file was replaced while it was read"},
		{name: "replaced by a longer one, no ETag", etag: "-", before: third(func(s *wheelServer, _ *http.Request) { s.data = append(s.data, 0) }), want: fmt.Sprintf("want %d", len(whole.data))},
		// The place is named; the cause is that of zip.
		{name: "replaced by one as long, no ETag", etag: "-", before: third(func(s *wheelServer, _ *http.Request) { s.data = noise }), want: "big: http://"},
		{name: "another range", before: third(func(_ *wheelServer, r *http.Request) { r.Header.Set("Range", "bytes=0-99") }), want: `the answer to a range request is "bytes 0-99/`},
		{name: "ranges no more", before: third(func(_ *wheelServer, r *http.Request) { r.Header.Del("Range") }), want: "status 200 OK: it does not mind the range"},
		{name: "no ranges", before: noRanges},
		{name: "no ranges, other bytes", before: noRanges, file: func(f *pypi.File) { f.SHA256 = strings.Repeat("0", 64) }, want: "the index says 0000"},
		{name: "no ranges, no digest", before: noRanges, file: func(f *pypi.File) { f.SHA256 = "" }},
		{name: "no ranges, too large", before: noRanges, file: func(f *pypi.File) { f.Size = 1 << 30 }, want: "too large to download whole: it has 1073741824 bytes, the limit is 67108864"},
		{name: "shorter than the index says", file: func(f *pypi.File) { f.Size += 5 << 20 }, want: "status 416"},
		{name: "longer than the index says", file: func(f *pypi.File) { f.Size -= 5 }, want: "it is another than that of the index"},
		{name: "no wheel", before: func(s *wheelServer, _ http.ResponseWriter, _ *http.Request, _ int) bool {
			s.data = noise
			return false
		}, want: "cannot be read as a wheel: zip: not a valid zip file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := &wheelServer{data: slices.Clip(whole.data), etag: whole.etag}
			if test.etag != "" {
				server.etag = strings.TrimPrefix(test.etag, "-")
			}
			if test.before != nil {
				server.before = func(w http.ResponseWriter, r *http.Request, n int) bool { return test.before(server, w, r, n) }
			}
			f := server.file(t)
			if test.file != nil {
				test.file(&f)
			}
			var got []byte
			wheel, err := at("http://x").OpenWheel(t.Context(), f)
			if err == nil {
				got, err = wheel.ReadFile("big", 64<<20)
			}
			if test.want != "" {
				where, _, _ := strings.Cut(f.URL, "?")
				checkError(t, err, test.want, where)
			} else if err != nil || string(got) != big {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
		})
	}
}

// TestSave: the whole wheel is written, and it counts only with the sha256 that the index lists.
func TestSave(t *testing.T) {
	server := wheelOf(t, map[string]string{"big": strings.Repeat("b", 12<<20), "c": "d"})
	sum := sha256.Sum256(server.data)
	for _, test := range []struct{ name, sha256, want string }{
		{name: "as listed", sha256: hex.EncodeToString(sum[:])},
		{name: "another", sha256: strings.Repeat("ab", 32), want: "the index lists abab"},
		{name: "none listed", want: "no index lists a sha256 of it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := server.file(t)
			f.SHA256 = test.sha256
			wheel, err := at("").OpenWheel(t.Context(), f)
			require.NoError(t, err)
			var got bytes.Buffer
			err = wheel.Save(&got)
			if test.want != "" {
				checkError(t, err, test.want)
			} else if err != nil || !bytes.Equal(got.Bytes(), server.data) {
				t.Errorf("got %d of %d bytes, %v", got.Len(), len(server.data), err)
			}
		})
	}
}

// noRanges is the fault of a server that answers every request with the whole file.
func noRanges(_ *wheelServer, _ http.ResponseWriter, r *http.Request, _ int) bool {
	r.Header.Del("Range")
	return false
}

// TestCommit reads what wheels really say, and what they may say.
func TestCommit(t *testing.T) {
	// As in the wheel of 0.33.0.
	const real = "version: str\n__version__: str\ncommit_id: str | None\n__commit_id__: str | None\n\n" +
		"__version__ = version = '0.33.0'\n__version_tuple__ = version_tuple = (0, 33, 0)\n\n__commit_id__ = commit_id = 'g4ba787ec9'\n"
	tests := []struct{ name, text, want string }{
		{name: "real", text: real, want: "4ba787ec9"},
		{name: "longer", text: `__commit_id__ = "g4ba787ec9aabb"`, want: "4ba787ec9"},
		{name: "none", text: "__commit_id__ = commit_id = None", want: "error: commit of w-1.0.0-py3-none-any.whl: vllm/_version.py names no commit"},
		{name: "short", text: "__commit_id__ = commit_id = 'g4ba787e'", want: "error: names no commit of 9 digits"},
		{name: "no file", want: "error: holds no vllm/_version.py"},
		{name: "large", text: real + strings.Repeat("# x\n", 1<<16), want: "error: vllm/_version.py has more than 65536 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			members := map[string]string{"other": "x"}
			if test.text != "" {
				members["vllm/_version.py"] = test.text
			}
			f := wheelOf(t, members).file(t)
			f.Name = "w-1.0.0-py3-none-any.whl"
			r := pypi.Release{Version: "1.0.0", Files: []pypi.File{{Name: "w-1.0.0.tar.gz"}, f}}
			got, err := at("http://x").Commit(t.Context(), r)
			checkText(t, got, err, test.want, "1.0.0")
		})
	}
}
