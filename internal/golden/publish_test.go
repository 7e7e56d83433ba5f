package golden

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func wantPublished(t *testing.T, s *Store, location, file string, existed bool) {
	t.Helper()
	got, err := s.Publish(t.Context(), location, file)
	require.NoError(t, err)
	want := Published{Location: location, SHA256: digest(content), Size: int64(len(content)), Existed: existed}
	require.NoDiff(t, cmp.Diff(want, got), "-want +got")
}

func TestPublishToFile(t *testing.T) {
	dir := t.TempDir()
	file := contentFile(t)
	s := &Store{Dir: dir}
	for _, location := range []string{
		filepath.Join(dir, "absolute", "a.jsonl"), "relative/a.jsonl", "FILE://" + filepath.ToSlash(dir) + "/url/a b%20.jsonl",
	} {
		if runtime.GOOS == "windows" && strings.Contains(location, "://") {
			continue
		}
		wantPublished(t, s, location, file, false)
		wantPublished(t, s, location, file, true)
	}
	name := filepath.Join(dir, "relative", "a.jsonl")
	if info, err := os.Stat(name); err != nil || info.Mode().Perm()&0o444 != 0o444 {
		t.Errorf("%v, %v: want a file that all can read", info, err)
	}
	for _, sub := range []string{"absolute", "relative"} {
		if entries, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(entries) != 1 {
			t.Errorf("%v, %v: want the file and nothing else", entries, err)
		}
	}
}

func TestPublishOverwritesNoFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a.jsonl")
	other := append([]byte("x"), content[1:]...)
	write(t, name, other)
	_, err := new(Store).Publish(t.Context(), name, contentFile(t))
	failed := wantPublishError(t, err, "publish to "+name+": file already exists with other bytes: their sha256 is "+digest(other),
		"not "+digest(content), "nothing is ever overwritten")
	require.True(t, errors.Is(failed, fs.ErrExist), "%v is not fs.ErrExist", err)
	if got, err := os.ReadFile(name); err != nil || string(got) != string(other) {
		t.Errorf("the file was changed, %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left over: %v", entries)
	}
}

func TestPublishRefusals(t *testing.T) {
	withoutAWS(t)
	dir, file := t.TempDir(), contentFile(t)
	write(t, filepath.Join(dir, "blocked"), content)
	tests := []struct {
		name, location, file string
		want                 string
		is                   error
	}{
		{name: "no location", file: file, want: "the location is empty"},
		{name: "scheme", location: "https://host/a", file: file, want: `scheme "https" is not one of s3 and file`, is: errors.ErrUnsupported},
		{name: "relative file", location: "file://a", file: file, want: "file:///dir/file"},
		{name: "no key", location: "s3://bucket", file: file, want: "s3://bucket/key"},
		{name: "no key after the slash", location: "s3://bucket/", file: file, want: "s3://bucket/key"},
		{name: "no file", location: filepath.Join(dir, "a"), file: filepath.Join(dir, "none"), want: "none", is: fs.ErrNotExist},
		{name: "no file for S3", location: "s3://bucket/a", file: filepath.Join(dir, "none"), want: "none", is: fs.ErrNotExist},
		{name: "a folder", location: filepath.Join(dir, "a"), file: dir, want: "not a regular file"},
		{name: "to a folder", location: dir, file: file, want: "not a regular file"},
		{name: "below a file", location: filepath.Join(dir, "blocked", "a"), file: file, want: "publish to "},
		{name: "secret", location: "ftp://user:topsecret@host/a?X-Amz-Signature=topsecret", file: file, want: "publish to ftp://host/a"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := new(Store).Publish(t.Context(), test.location, test.file)
			wantPublishError(t, err, test.want)
			require.True(t, test.is == nil || errors.Is(err, test.is), "%v is not %v", err, test.is)
			require.True(t, !strings.Contains(err.Error(), "topsecret"), "a secret is told: %v", err)
		})
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left over: %v", entries)
	}
}

func TestPublishWithoutPermission(t *testing.T) {
	if os.Geteuid() == 0 || runtime.GOOS == "windows" {
		t.Skip("this user may write everywhere")
	}
	dir := filepath.Join(t.TempDir(), "readonly")
	require.NoError(t, os.Mkdir(dir, 0o500))
	_, err := new(Store).Publish(t.Context(), filepath.Join(dir, "a"), contentFile(t))
	if wantPublishError(t, err, "permission denied"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v is not fs.ErrPermission", err)
	}
}

// Of many at once, one creates the file; the others find it, however far the first one is.
func TestPublishAtOnce(t *testing.T) {
	dir, file := t.TempDir(), contentFile(t)
	for round := range 50 {
		name := filepath.Join(dir, strconv.Itoa(round), "a")
		var group sync.WaitGroup
		var created atomic.Int32
		for range 16 {
			group.Go(func() {
				p, err := new(Store).Publish(t.Context(), name, file)
				if err != nil {
					t.Error(err)
				} else if !p.Existed {
					created.Add(1)
				}
			})
		}
		group.Wait()
		require.Equal(t, created.Load(), 1, "round %d: created times", round)
	}
}
