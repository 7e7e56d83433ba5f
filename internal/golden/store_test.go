package golden

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestFetchLocal(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "c", "a.jsonl"), content)
	builtIn := fstest.MapFS{"c/a.jsonl": {Data: content}}
	tests := []struct {
		name, location string
		store          Store
	}{
		{name: "absolute", location: filepath.Join(dir, "c", "a.jsonl")},
		{name: "file URL", location: "file://" + dir + "/c/a.jsonl"},
		{name: "scheme in upper case", location: "FILE://" + dir + "/c/a.jsonl"},
		{name: "below Dir", location: "c/a.jsonl", store: Store{Dir: dir}},
		{name: "below Dir as there is a bucket", location: "c/a.jsonl", store: Store{Dir: dir, Bucket: "c", FS: fstest.MapFS{}}},
		{name: "built in", location: "c/a.jsonl", store: Store{FS: builtIn, Dir: "/nonexistent"}},
		{name: "built in, not clean", location: "./c//a.jsonl", store: Store{FS: builtIn}},
		{name: "absolute in spite of FS", location: filepath.Join(dir, "c", "a.jsonl"), store: Store{FS: fstest.MapFS{}}},
	}
	for i := range tests {
		test := &tests[i]
		t.Run(test.name, func(t *testing.T) {
			test.store.Cache = filepath.Join(t.TempDir(), "cache")
			wantContent(t, &test.store, test.location)
			if _, err := os.Stat(test.store.Cache); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a local golden went into the cache: %v", err)
			}
		})
	}
}

func TestFetchLocalFailures(t *testing.T) {
	dir := t.TempDir()
	tests := []struct {
		name, location string
		store          Store
		is             error // that errors.Is finds
		want           []string
	}{
		{
			name: "missing", location: dir + "/none.jsonl", is: fs.ErrNotExist,
			want: []string{"golden " + dir + "/none.jsonl: no such file", "check bucket_path"},
		},
		{
			name: "missing below Dir", location: "none.jsonl", store: Store{Dir: dir}, is: fs.ErrNotExist,
			want: []string{"golden none.jsonl: ", dir + "/none.jsonl: no such file"},
		},
		{
			name: "not built in", location: "none.jsonl", store: Store{FS: fstest.MapFS{}}, is: fs.ErrNotExist,
			want: []string{"golden none.jsonl: file does not exist", "check bucket_path"},
		},
		{name: "out of what is built in", location: "../a.jsonl", store: Store{FS: fstest.MapFS{}}, want: []string{"leads out"}},
		{name: "directory", location: dir, want: []string{"not a regular file"}},
		{name: "endless", location: "/dev/zero", want: []string{"not a regular file"}},
		{name: "empty", want: []string{"the location is empty"}},
		{name: "relative file URL", location: "file://a.jsonl", want: []string{"file:///dir/file"}},
		{name: "no key", location: "s3://bucket", want: []string{"s3://bucket/key"}},
		{name: "empty key", location: "s3://bucket/", want: []string{"s3://bucket/key"}},
		{name: "no bucket", location: "s3:///key", want: []string{"s3://bucket/key"}},
		{name: "unknown scheme", location: "ftp://host/a.jsonl", is: errors.ErrUnsupported, want: []string{`"ftp" is not one of s3, https, hf and file`}},
		{name: "in a bundle", location: "bundle://b.tar/a.jsonl", want: []string{"bundle://FILE"}},
		{name: "plain http", location: "http://127.0.0.1/a.jsonl", is: errors.ErrUnsupported, want: []string{`"http"`}},
		{name: "no host", location: "https:///a.jsonl", want: []string{"https://host/path"}},
		{name: "no URL", location: "https://%zz/a.jsonl", want: []string{"invalid URL escape"}},
	}
	for i := range tests {
		test := &tests[i]
		t.Run(test.name, func(t *testing.T) {
			_, err := fetchContent(t, &test.store, test.location)
			failed := wantFetchError(t, err, test.want...)
			require.True(t, test.is == nil || errors.Is(err, test.is), "%v is not %v", err, test.is)
			require.True(t, failed.Status == 0 && failed.Tries <= 1, "status %d after %d tries, want none", failed.Status, failed.Tries)
		})
	}
}

// The bytes of a golden are judged alike wherever they come from.
func TestFetchVerifies(t *testing.T) {
	other := append([]byte("x"), content[1:]...)
	size := int64(len(content))
	tests := []struct {
		name    string
		data    []byte
		size    int64
		gotSize int64
		same    bool // the digest is the registered one
		unread  bool // nothing was hashed
		want    string
	}{
		{name: "other bytes", data: other, size: size, gotSize: size, want: "sha256 of its 3500 bytes is " + digest(other) + ", want " + digest(content) + " of 3500 bytes"},
		{name: "other bytes, no size", data: other, gotSize: size, want: "of its 3500 bytes is " + digest(other) + ", want " + digest(content) + ": "},
		{name: "shorter", data: content[:size-1], size: size, gotSize: size - 1, want: "of its 3499 bytes"},
		{name: "nothing", data: nil, size: size, want: "of its 0 bytes"},
		{name: "longer", data: append(content[:size:size], 'x'), size: size, gotSize: size + 1, unread: true, want: "more than 3500 bytes"},
		{name: "much longer", data: make([]byte, 10*size), size: size, gotSize: size + 1, unread: true, want: "more than 3500 bytes"},
		{name: "size registered too large", data: content, size: size + 1, gotSize: size, same: true, want: "3500 bytes, want 3501, but sha256 is " + digest(content)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := newScript(t, true, serve(test.data))
			dir := t.TempDir()
			write(t, filepath.Join(dir, "a.jsonl"), test.data)
			for _, location := range []string{dir + "/a.jsonl", "a.jsonl", server.URL + "/a.jsonl"} {
				s := newStore(t)
				s.HTTP, s.FS = server.Client(), fstest.MapFS{"a.jsonl": {Data: test.data}}
				data, err := s.Fetch(t.Context(), Object{Location: location, SHA256: digest(content), Size: test.size})
				mismatch := wantMismatch(t, err)
				require.True(t, data == nil, "%s: %d bytes came with the error", location, len(data))
				require.True(t, strings.Contains(err.Error(), test.want) && strings.Contains(err.Error(), location), "%s: error lacks %q or the location: %v", location, test.want, err)
				want := MismatchError{Location: location, WantSHA256: digest(content), WantSize: test.size, GotSize: test.gotSize}
				switch {
				case test.same:
					want.GotSHA256 = want.WantSHA256
				case !test.unread:
					want.GotSHA256 = digest(test.data)
				}
				require.Equal(t, *mismatch, want, "%s", location)
				wantNoEntries(t, s)
			}
			require.Equal(t, server.Asked(), 1, "requests: wrong bytes do not become right")
		})
	}
}

func TestFetchSizeLimit(t *testing.T) {
	size := int64(len(content))
	tests := []struct {
		name            string
		maxSize, pinned int64
		want            string
	}{
		{name: "just fits", maxSize: size},
		{name: "one too many", maxSize: size - 1, want: "more than the 3499 bytes that a golden may have"},
		{name: "registered, and one too many", maxSize: size - 1, pinned: size, want: "registered size is 3500 bytes, but a golden may have 3499"},
		{name: "no limit to speak of", maxSize: 1<<63 - 1},
		{name: "default", maxSize: 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := &Store{MaxSize: test.maxSize, FS: fstest.MapFS{"a": {Data: content}}}
			data, err := s.Fetch(t.Context(), Object{Location: "a", SHA256: digest(content), Size: test.pinned})
			if test.want != "" {
				wantFetchError(t, err, "golden a: ", test.want)
			} else if err != nil || len(data) != len(content) {
				t.Errorf("got %d bytes, %v", len(data), err)
			}
		})
	}
}

// A digest names a file of the cache, so it must be one.
func TestFetchBadPin(t *testing.T) {
	good := digest(content)
	tests := []struct {
		name, sha256, want string
		size               int64
	}{
		{name: "none", want: "64 lowercase"},
		{name: "short", sha256: good[1:], want: "64 lowercase"},
		{name: "upper case", sha256: strings.ToUpper(good), want: "64 lowercase"},
		{name: "path", sha256: "../../../" + good[9:], want: "64 lowercase"},
		{name: "very long", sha256: strings.Repeat("a", 1<<20), want: "…"},
		{name: "negative size", sha256: good, size: -1, want: "-1 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := &Store{FS: fstest.MapFS{"a": {Data: content}}}
			_, err := s.Fetch(t.Context(), Object{Location: "a", SHA256: test.sha256, Size: test.size})
			wantFetchError(t, err, test.want)
			if len(err.Error()) > 300 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}
