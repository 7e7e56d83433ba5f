package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

var fromBucket = []string{"--bucket", "s3://goldens"}

// pull runs golden pull for the golden.
func (c *consumer) pull(t *testing.T, args ...string) outcome {
	t.Helper()
	return c.run(t, append(append(append([]string{"golden", "pull"}, one...), fromBucket...), args...)...)
}

// entry is the file of the golden in the cache.
func (c *consumer) entry() string {
	return filepath.Join(c.cache, "sha256", c.golden.SHA256[:2], c.golden.SHA256)
}

// TestBadCache: whatever somebody has put into the cache is not used, not followed, and not waited for; and is replaced
// where that can be.
func TestBadCache(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	tests := []struct {
		name string
		put  func(c *consumer) error
		code int // of a pull with the bucket at hand
		says string
	}{
		{name: "other bytes", put: func(c *consumer) error { return os.WriteFile(c.entry(), []byte("other bytes"), 0o444) }, says: `cached golden is corrupt`},
		{name: "as many other bytes", put: func(c *consumer) error { return os.WriteFile(c.entry(), make([]byte, c.golden.Size), 0o444) }, says: `cached golden is corrupt`},
		{name: "more bytes", put: func(c *consumer) error { return os.WriteFile(c.entry(), make([]byte, 1<<20), 0o444) }, says: `cached golden is corrupt`},
		{name: "a link to a file", put: func(c *consumer) error { return os.Symlink("/etc/passwd", c.entry()) }, says: `cached golden not read.*not a regular file`},
		{name: "a link to itself", put: func(c *consumer) error { return os.Symlink(c.entry(), c.entry()) }, says: `cached golden not read.*not a regular file`},
		{name: "a directory", put: func(c *consumer) error { return os.MkdirAll(filepath.Join(c.entry(), "x"), 0o755) }, says: `cached golden not read.*not a regular file`},
		{name: "a pipe", put: func(c *consumer) error { return syscall.Mkfifo(c.entry(), 0o644) }, says: `cached golden not read.*not a regular file`},
		{name: "a huge file", says: `cached golden is corrupt`, put: func(c *consumer) error {
			if err := os.WriteFile(c.entry(), nil, 0o644); err != nil {
				return err
			}
			return os.Truncate(c.entry(), 1<<40) // takes no room
		}},
		{name: "a link out of it", code: 3, says: `error: golden s3://.*: cache .*: .*path escapes from parent`, put: func(c *consumer) error {
			return os.Symlink(outside, filepath.Dir(c.entry()))
		}},
		{name: "drafts that are elsewhere", code: 3, says: `error: golden s3://.*: cache .*: .*path escapes from parent`, put: func(c *consumer) error {
			return os.Symlink(outside, filepath.Join(c.cache, "tmp"))
		}},
		{name: "a file in its place", code: 3, says: `error: golden s3://.*: cache .*cache: not a directory.*\[cache\]`, put: func(c *consumer) error {
			return os.WriteFile(c.cache, []byte("x"), 0o644)
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newConsumer(t)
			c.poisoned = true
			folder := filepath.Dir(c.entry())
			switch test.name {
			case "a link out of it":
				folder = filepath.Dir(folder)
			case "a file in its place":
				folder = filepath.Dir(c.cache)
			}
			require.NoError(t, os.MkdirAll(folder, 0o755))
			require.NoError(t, test.put(c))
			c.pull(t, "--offline").wants(t, 3, `^vllm-vcr: error: golden s3://.*it is not in the cache.*\[offline\]`)
			o := c.run(t, append(append([]string{"conform", "--assertion", "integrity"}, one...), fromBucket...)...)
			o.wants(t, 0, `^PASS: `)
			if test.code == 0 {
				o.wants(t, 0, test.says)
				c.poisoned = false
			}
			o = c.pull(t)
			o.wants(t, test.code)
			if test.code == 0 {
				o.wants(t, 0, `cached$`)
			} else {
				o.wants(t, test.code, test.says)
			}
			if files, _ := os.ReadDir(outside); len(files) > 0 {
				t.Errorf("written outside: %v", files)
			}
		})
	}
}

// disk is a file system of its own with so much room.
func disk(t *testing.T, room int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+strconv.Itoa(room)); err != nil {
		t.Skipf("mounting a tmpfs needs rights that this user has not: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// replace registers other bytes as the golden, and stores them.
func (c *consumer) replace(t *testing.T, data []byte) {
	t.Helper()
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	c.register(t, "size", strconv.Itoa(len(data)))
	c.register(t, "sha256", strconv.Quote(digest))
	c.golden.SHA256, c.golden.Size = digest, int64(len(data))
	c.store(t, c.object, data)
}

// noise is a golden as far as its digest goes.
func noise(size int) []byte {
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}

// TestBadDisk: the disk is full in the middle of a download, of a bundle, of a report.
func TestBadDisk(t *testing.T) {
	c := newConsumer(t)
	c.replace(t, noise(1<<20))
	c.cache = disk(t, 256<<10)
	room := disk(t, 8<<10)
	c.pull(t).wants(t, 3, `^vllm-vcr: error: golden s3://goldens/.*: cache `+c.cache+`: .*no space left on device: make room, .*\[cache\]$`)
	conform := append(append([]string{"conform", "--assertion", "integrity"}, one...), fromBucket...)
	c.run(t, conform...).wants(t, 0, `golden not cached.*no space left on device`)

	// A report that has no room is an error, but one whose files are whole or not there.
	report := filepath.Join(room, "report")
	c.run(t, append(conform, "--report-dir", report)...).wants(t, 3, `^vllm-vcr: error: write report: .*no space left on device`)
	c.out = room // is looked at for what is half-written

	c.cache = filepath.Join(t.TempDir(), "cache")
	bundle := append(append([]string{"golden", "bundle", "--output", filepath.Join(room, "goldens.tar")}, one...), fromBucket...)
	c.run(t, bundle...).wants(t, 3, `^vllm-vcr: error: write .*goldens.tar: no space left on device`)
	if _, err := os.Stat(filepath.Join(room, "goldens.tar")); err == nil {
		t.Error("there is half a bundle")
	}
}

// TestBadCacheThatCannotBeWritten: what is in it is used; what is not costs conform a warning.
func TestBadCacheThatCannotBeWritten(t *testing.T) {
	c := newConsumer(t)
	dir := disk(t, 1<<20)
	c.cache = dir
	readOnly := func(flags uintptr) {
		t.Helper()
		require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, ""))
	}
	conform := append(append([]string{"conform", "--assertion", "integrity"}, one...), fromBucket...)
	readOnly(syscall.MS_RDONLY)
	c.pull(t).wants(t, 3, `^vllm-vcr: error: golden s3://goldens/.*: cache `+dir+`: .*read-only file system: make room, correct its permissions, or name another directory in VLLM_VCR_CACHE \[cache\]$`)
	c.run(t, conform...).wants(t, 0, `golden not cached.*read-only file system`)
	readOnly(0)
	c.pull(t).wants(t, 0, `from s3://`)
	readOnly(syscall.MS_RDONLY)
	c.pull(t, "--offline").wants(t, 0, `cached$`)
	c.run(t, append(conform, "--offline")...).wants(t, 0, `^PASS: `)
	readOnly(0)
}

// TestBadHome: nobody says where the cache is.
func TestBadHome(t *testing.T) {
	c := newConsumer(t)
	c.env["HOME"], c.env["VLLM_VCR_CACHE"], c.env["XDG_CACHE_HOME"] = "", "", ""
	c.pull(t).wants(t, 3, `^vllm-vcr: error: golden s3://goldens/.*: cache: find the cache directory: .*: set VLLM_VCR_CACHE \[cache\]$`)
	conform := append(append([]string{"conform", "--assertion", "integrity"}, one...), fromBucket...)
	c.run(t, conform...).wants(t, 0, `golden not cached.*set VLLM_VCR_CACHE`)
	c.run(t, append(conform, "--cache", c.cache)...).wants(t, 0, `^PASS: `)
}

// TestBadNeighbours: several processes pull the same goldens into one cache at once.
func TestBadNeighbours(t *testing.T) {
	c := newConsumer(t)
	mf, _ := manifest.Load(filepath.Join(c.dir, vcr.ManifestPath))
	goldens := mf.ForLine("0.33")
	for _, g := range goldens {
		data, err := vcr.Files.ReadFile(vcr.GoldensPath + "/" + g.BucketPath)
		require.NoError(t, err)
		c.store(t, filepath.Join(c.server.Dir, "goldens", g.BucketPath), data)
	}
	var all []*started
	for range 4 {
		s := c.start(t, append([]string{"golden", "pull", "--line", "0.33"}, fromBucket...)...)
		require.NoError(t, s.Start())
		all = append(all, s)
	}
	c.poisoned = true // as long as one of them may be writing
	for i, s := range all {
		c.poisoned = i < len(all)-1
		c.ended(t, s).wants(t, 0, fmt.Sprintf(`^%d goldens: `, len(goldens)))
	}
	entries, _ := filepath.Glob(filepath.Join(c.cache, "sha256", "*", "*"))
	if len(entries) != len(goldens) {
		t.Errorf("%d goldens in the cache, want %d: %s", len(entries), len(goldens), strings.Join(entries, " "))
	}
}
