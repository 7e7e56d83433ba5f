package golden

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestCacheLayout(t *testing.T) {
	server := newScript(t, true, serve(content))
	s := newStore(t)
	s.HTTP = server.Client()
	wantContent(t, s, server.URL)
	name := filepath.Join(s.Cache, "sha256", digest(content)[:2], digest(content))
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
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
			if err := test.damage(entry(s.Cache, digest(content))); err != nil {
				t.Fatal(err)
			}
			wantContent(t, s, server.URL)
			wantContent(t, s, server.URL)
			if got := server.asked(); got != 2 {
				t.Errorf("%d requests, want 2: one for each of the first two fetches", got)
			}
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

// A corrupt entry whose golden cannot be had any more is an error of fetching, not one of the golden.
func TestCacheCorruptAndServerGone(t *testing.T) {
	server := newScript(t, true, serve(content), status(http.StatusNotFound))
	s := newStore(t)
	s.HTTP = server.Client()
	wantContent(t, s, server.URL)
	if err := rewrite(nil)(entry(s.Cache, digest(content))); err != nil {
		t.Fatal(err)
	}
	_, err := fetchContent(t, s, server.URL)
	wantFetchError(t, err, "404")
}

// A cache that does not work costs a download each time.
func TestCacheThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, nil)
	occupied := t.TempDir()
	if err := os.MkdirAll(filepath.Join(entry(occupied, digest(content)), "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, dir, home, want string }{
		{name: "below a file", dir: file, want: "not a directory"},
		{name: "a directory where the entry goes", dir: occupied, want: "golden not cached"},
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
			if got := server.asked(); got != 2 {
				t.Errorf("%d requests, want 2", got)
			}
			if !strings.Contains(out.String(), test.want) {
				t.Errorf("log lacks %q:\n%s", test.want, out)
			}
			if left, _ := filepath.Glob(filepath.Join(occupied, "tmp", "*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
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
			if err != nil || dir != test.want {
				t.Errorf("got %s, %v; want %s", dir, err, test.want)
			}
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
			if got, err := s.Fetch(t.Context(), server.URL, digest(content), 0); err != nil || len(got) != len(content) {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
		})
	}
	wg.Wait()
	if got := server.asked(); got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
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
				if got, err := s.Fetch(t.Context(), server.URL, digest(content), 0); err != nil || len(got) != len(content) {
					t.Errorf("got %d bytes, %v", len(got), err)
				}
				// Another process finds a corrupt entry.
				_ = rewrite([]byte("corrupt"))(entry(dir, digest(content)))
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
		_, err := s.Fetch(first, server.URL, digest(content), 0)
		fail <- err
	}()
	<-asked

	second, cancelSecond := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Fetch(second, server.URL, digest(content), 0)
		done <- err
	}()
	cancelSecond()
	wantFetchError(t, <-done, "canceled")

	third := make(chan error, 1)
	go func() {
		_, err := s.Fetch(t.Context(), server.URL, digest(content), 0)
		third <- err
	}()
	cancelFirst()
	wantFetchError(t, <-fail, "canceled")
	if err := <-third; err != nil {
		t.Errorf("the one who waited got %v", err)
	}
}
