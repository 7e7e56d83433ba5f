package golden

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestCacheLayout(t *testing.T) {
	server := newScript(t, true, serve(content))
	s := newStore(t)
	s.HTTP = server.Client()
	wantContent(t, s, server.URL)
	name := filepath.Join(s.Cache, "sha256", digest(content)[:2], digest(content))
	info, err := os.Stat(name)
	require.NoError(t, err)
	if info.Mode() != 0o444 || info.Size() != int64(len(content)) {
		t.Errorf("entry is %v of %d bytes, want read-only and %d", info.Mode(), info.Size(), len(content))
	}
	if left, _ := filepath.Glob(filepath.Join(s.Cache, "tmp", "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	// The digest is the key: whoever wants the same bytes from elsewhere has them.
	server.Close()
	wantContent(t, s, server.URL)
	wantContent(t, &Store{Cache: s.Cache}, "s3://other/key")
}

func TestCacheHeals(t *testing.T) {
	tests := []struct {
		name   string
		damage func(entry string) error
	}{
		{name: "other bytes", damage: rewrite(append([]byte("x"), content[1:]...))},
		{name: "cut", damage: rewrite(content[:100])},
		{name: "empty", damage: rewrite(nil)},
		{name: "longer", damage: rewrite(append(content[:len(content):len(content)], "more"...))},
		{name: "gone", damage: os.Remove},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := newScript(t, true, serve(content))
			s := newStore(t)
			s.HTTP = server.Client()
			out := logTo(s)
			wantContent(t, s, server.URL)
			require.NoError(t, test.damage(filepath.Join(s.Cache, entryName(digest(content)))))
			wantContent(t, s, server.URL)
			wantContent(t, s, server.URL)
			require.Equal(t, server.Asked(), 2, "requests: one for each of the first two fetches")
			if got, want := strings.Contains(out.String(), "corrupt"), test.name != "gone"; got != want {
				t.Errorf("log tells of corruption: %v, want %v:\n%s", got, want, out)
			}
		})
	}
}

// rewrite replaces an entry, which cannot be written to.
func rewrite(data []byte) func(string) error {
	return func(name string) error {
		if err := os.Remove(name); err != nil {
			return err
		}
		return os.WriteFile(name, data, 0o444)
	}
}

// What killed processes left does not fill the disk for ever; what others are writing is theirs.
func TestCacheRemovesAbandonedDrafts(t *testing.T) {
	server := newScript(t, true, serve(content))
	s := newStore(t)
	s.HTTP = server.Client()
	old, fresh := filepath.Join(s.Cache, tmpDir, "old"), filepath.Join(s.Cache, tmpDir, "fresh")
	write(t, old, content)
	write(t, fresh, content)
	before := time.Now().Add(-25 * time.Hour)
	require.NoError(t, os.Chtimes(old, before, before))
	wantContent(t, s, server.URL)
	if left, _ := glob(s.Cache, "tmp/*"); len(left) != 1 || left[0] != fresh {
		t.Errorf("left are %v, want %s", left, fresh)
	}
}

// A cache that does not work costs a download each time.
func TestCacheThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, nil)
	led := t.TempDir()
	elsewhere := t.TempDir()
	link(t, elsewhere, filepath.Join(led, "sha256"))
	ledTmp := t.TempDir()
	link(t, elsewhere, filepath.Join(ledTmp, "tmp"))
	tests := []struct{ name, dir, want string }{
		{name: "below a file", dir: file, want: "not a directory"},
		{name: "entries lie elsewhere", dir: led, want: "golden not cached"},
		{name: "new files lie elsewhere", dir: ledTmp, want: "golden not cached"},
		{name: "nowhere", want: envCache},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("HOME", "")
			t.Setenv("XDG_CACHE_HOME", "")
			t.Setenv(envCache, "")
			server := newScript(t, true, serve(content))
			s := &Store{Cache: test.dir, HTTP: server.Client()}
			out := logTo(s)
			wantContent(t, s, server.URL)
			wantContent(t, s, server.URL)
			require.Equal(t, server.Asked(), 2, "requests")
			require.Contains(t, out.String(), test.want)
			for _, pattern := range []string{filepath.Join(led, "tmp", "*"), filepath.Join(elsewhere, "*")} {
				if left, _ := filepath.Glob(pattern); len(left) > 0 {
					t.Errorf("left behind: %v", left)
				}
			}
			// What is nowhere but in the cache needs one.
			for _, p := range s.Pull(t.Context(), []Object{contentAt(server.URL)}) {
				if wantFetchError(t, p.Err, "cache", envCache, "["+causeCache+"]"); !errors.As(p.Err, new(*CacheError)) {
					t.Errorf("%v is no CacheError", p.Err)
				}
			}
			require.Equal(t, server.Asked(), 2, "requests: it was clear before")
		})
	}
}

func link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Skipf("no symbolic links here: %v", err)
	}
}

// What lies where an entry goes, and is none, is neither read nor waited for, and gives way.
func TestCacheReplacesWhatIsNoEntry(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "right")
	write(t, elsewhere, content)
	tests := []struct {
		name string
		put  func(t *testing.T, name string)
	}{
		{name: "link to the right bytes", put: func(t *testing.T, name string) { link(t, elsewhere, name) }},
		{name: "link to nothing", put: func(t *testing.T, name string) { link(t, elsewhere+"-none", name) }},
		{name: "link to the endless", put: func(t *testing.T, name string) { link(t, "/dev/zero", name) }},
		{name: "pipe", put: pipe},
		{name: "directory", put: func(t *testing.T, name string) { write(t, filepath.Join(name, "x"), content) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := newScript(t, true, serve(content))
			s := newStore(t)
			s.HTTP = server.Client()
			out := logTo(s)
			name := filepath.Join(s.Cache, entryName(digest(content)))
			require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
			test.put(t, name)
			wantContent(t, s, server.URL)
			wantContent(t, s, server.URL)
			if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() {
				t.Errorf("the entry is %v, %v", info, err)
			}
			require.Equal(t, server.Asked(), 1, "requests")
			require.Contains(t, out.String(), "not a regular file")
			if got, err := os.ReadFile(elsewhere); err != nil || !bytes.Equal(got, content) {
				t.Errorf("what the link led to was changed: %v", err)
			}
		})
	}
}

func TestCacheDirectory(t *testing.T) {
	tests := []struct{ name, field, env, xdg, want string }{
		{name: "field", field: "/a", env: "/b", xdg: "/c", want: "/a"},
		{name: "environment", env: "/b", xdg: "/c", want: "/b"},
		{name: "user's cache", xdg: "/c", want: "/c/vllm-vcr/goldens"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(envCache, test.env)
			t.Setenv("XDG_CACHE_HOME", test.xdg)
			dir, err := (&Store{Cache: test.field}).cacheDir()
			if test.xdg == "/c" && test.want == "/c/vllm-vcr/goldens" {
				// On macOS the user's cache is elsewhere.
				if home, err := os.UserCacheDir(); err == nil {
					test.want = filepath.Join(home, "vllm-vcr", "goldens")
				}
			}
			require.True(t, err == nil && dir == test.want, "got %s, %v; want %s", dir, err, test.want)
		})
	}
}

func TestConcurrentFetchesDownloadOnce(t *testing.T) {
	server := newScript(t, true, serve(content))
	s := newStore(t)
	s.HTTP = server.Client()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if got, err := s.Fetch(t.Context(), Object{Location: server.URL, SHA256: digest(content)}); err != nil || len(got) != len(content) {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, server.Asked(), 1, "requests")
}

// Several processes share a cache without a lock between them.
func TestConcurrentStoresShareACache(t *testing.T) {
	server := newScript(t, true, serve(content))
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				s := &Store{Cache: dir, HTTP: server.Client()}
				if got, err := s.Fetch(t.Context(), Object{Location: server.URL, SHA256: digest(content)}); err != nil || len(got) != len(content) {
					t.Errorf("got %d bytes, %v", len(got), err)
				}
				// Another process finds a corrupt entry.
				_ = rewrite([]byte("corrupt"))(filepath.Join(dir, entryName(digest(content))))
			}
		})
	}
	wg.Wait()
}

// Who waits for another's download can leave, and goes on by itself if the other one fails.
func TestConcurrentFetchesAreIndependent(t *testing.T) {
	asked := make(chan struct{})
	server := newScript(t, true, func(w http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}, serve(content))
	s := newStore(t)
	s.HTTP = server.Client()
	first, cancelFirst := context.WithCancel(t.Context())
	fail := make(chan error, 2)
	go func() {
		_, err := s.Fetch(first, Object{Location: server.URL, SHA256: digest(content)})
		fail <- err
	}()
	<-asked

	second, cancelSecond := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Fetch(second, Object{Location: server.URL, SHA256: digest(content)})
		done <- err
	}()
	cancelSecond()
	wantFetchError(t, <-done, "canceled")

	third := make(chan error, 1)
	go func() {
		_, err := s.Fetch(t.Context(), Object{Location: server.URL, SHA256: digest(content)})
		third <- err
	}()
	cancelFirst()
	wantFetchError(t, <-fail, "canceled")
	require.NoErrorf(t, <-third, "the one who waited got")
}
