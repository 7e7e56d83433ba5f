package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// onlyTargets makes these all that a release has. What holds of one or two holds of six.
func onlyTargets(t *testing.T, targets ...target) {
	t.Helper()
	six := allTargets
	t.Cleanup(func() { allTargets = six })
	allTargets = targets
}

// A release from its digests to the comparison on another machine.
func TestReleaseFiles(t *testing.T) {
	testenv.Slow(t, "compiles releases")
	onlyTargets(t, target{"linux", "amd64"})
	dir := fixture(t)
	write(t, dir, map[string]string{"README.md": "# smaller\n"})
	code, _, stderr := dist(t, dir, "files", "-version", "1.2.3")
	require.True(t, code == exitUsage && strings.Contains(stderr, "commit these first") && strings.Contains(stderr, " M README.md"), "uncommitted: exit code %d: %s", code, stderr)
	commit(t, dir)
	write(t, dir, map[string]string{"release/VERSION": "1.2.2\n"}) // its own files are not in its way
	mustDist(t, dir, "files", "-version", "1.2.3")
	require.Equal(t, read(t, filepath.Join(dir, "release", "VERSION")), "1.2.3\n", "VERSION")
	written := read(t, filepath.Join(dir, "release", "checksums.txt"))
	if listed := read(t, filepath.Join(dir, "dist", "checksums.txt")); written != listed {
		t.Errorf("release/checksums.txt:\n%swant that of dist/:\n%s", written, listed)
	}
	if got := strings.Count(written, "\n"); got != 2*len(allTargets) {
		t.Errorf("%d digests, want those of archives and wheels, %d:\n%s", got, 2*len(allTargets), written)
	}
	commit(t, dir)
	mustDist(t, dir, "tag", "v1.2.3")
	require.Equal(t, mustDist(t, dir, "check"), "release/ is vllm-vcr 1.2.3, of this tree\n", "check says")

	elsewhere := filepath.Join(t.TempDir(), "clone")
	git(t, dir, "clone", "--quiet", dir, elsewhere)
	mustDist(t, elsewhere, "build")
	require.Equal(t, mustDist(t, elsewhere, "compare"), "vllm-vcr 1.2.3: 2 files have the committed digests\n", "compare says")
	write(t, elsewhere, map[string]string{"README.md": "# another\n"})
	mustDist(t, elsewhere, "build")
	code, _, stderr = dist(t, elsewhere, "compare")
	if code != exitDiffers || strings.Count(stderr, ": committed ") != 2*len(allTargets) {
		t.Errorf("another source: exit code %d, want %d and a line for each archive and wheel: %s", code, exitDiffers, stderr)
	}
}

func TestCompare(t *testing.T) {
	const (
		amd, arm = "vllm-vcr_1.2.3_linux_amd64.tar.gz", "vllm-vcr_1.2.3_linux_arm64.tar.gz"
		sumA     = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb" // of "a"
		sumB     = "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d" // of "b"
	)
	both := sumA + "  " + amd + "\n" + sumB + "  " + arm + "\n"
	tests := []struct {
		name  string
		files map[string]string // "" removes one
		args  []string
		code  int
		want  []string // parts of what it says
	}{
		{name: "the same", want: []string{"2 files have the committed digests"}},
		{name: "other bytes", files: map[string]string{"dist/" + amd: "c"}, code: 1, want: []string{
			"dist: the bytes are others:\n  " + amd + ": committed " + sumA + ", built 2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6\n",
		}},
		{name: "one more", files: map[string]string{"dist/more.tar.gz": "c"}, code: 1, want: []string{"more.tar.gz: built has it, committed has not\n"}},
		{
			name: "one less", files: map[string]string{"release/checksums.txt": both + sumA + "  more.tar.gz\n"}, code: 1,
			want: []string{"more.tar.gz: committed has it, built has not\n"},
		},
		{
			name: "all that differ", files: map[string]string{"release/checksums.txt": sumB + "  " + amd + "\n" + sumA + "  " + arm + "\n"},
			code: 1, want: []string{amd + ": committed ", arm + ": committed "},
		},
		{
			name: "its own list", files: map[string]string{"dist/checksums.txt": sumB + "  " + amd + "\n" + sumB + "  " + arm + "\n"}, code: 1,
			want: []string{amd + ": built " + sumA + ", listed " + sumB},
		},
		{
			name: "some targets", args: []string{"-targets", "linux/arm64"}, code: 1,
			want: []string{amd + ": built has it, committed has not"},
		},
		{
			name: "not so targets", args: []string{"-targets", "linux/amd64,linux/arm64"},
			files: map[string]string{"release/checksums.txt": both + sumA + "  vllm-vcr_1.2.3_windows_amd64.tar.gz\n"},
			want:  []string{"2 files have the committed digests"},
		},
		{name: "not a digest", files: map[string]string{"release/checksums.txt": both + "abc  x\n"}, code: 2, want: []string{"release/checksums.txt:3: want 64 lower-case hex digits"}},
		{name: "a path", files: map[string]string{"release/checksums.txt": sumA + "  ../x\n"}, code: 2, want: []string{"release/checksums.txt:1: want"}},
		{name: "twice", files: map[string]string{"release/checksums.txt": both + both}, code: 2, want: []string{"release/checksums.txt:3: " + amd + " is listed twice"}},
		{name: "empty", files: map[string]string{"release/checksums.txt": "\x00"}, code: 2, want: []string{"release/checksums.txt:1: want"}},
		{name: "not a version", files: map[string]string{"release/VERSION": "1.2\n"}, code: 2, want: []string{`release/VERSION: version "1.2": want`}},
		{name: "two versions", files: map[string]string{"release/VERSION": "1.2.3\n1.2.4\n"}, code: 2, want: []string{`release/VERSION: version`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{
				"go.mod": "module example.org/small\n", "release/VERSION": "1.2.3\n", "release/checksums.txt": both,
				"dist/checksums.txt": both, "dist/" + amd: "a", "dist/" + arm: "b", "dist/notes.md": "is no archive\n",
			})
			write(t, dir, test.files)
			code, stdout, stderr := dist(t, dir, append([]string{"compare"}, test.args...)...)
			require.Equal(t, code, test.code, "exit code")
			for _, want := range test.want {
				require.Contains(t, stdout+stderr, want)
			}
		})
	}
}

func TestTag(t *testing.T) {
	tests := []struct {
		name    string
		args    []string
		version string // in release/
		code    int
		want    string // part of what it says

		tags     []string          // besides
		unmerged bool              // the commit is not on main
		change   map[string]string // after release/ was written
	}{
		{name: "not on main", args: []string{"tag", "v1.2.3"}, version: "1.2.3\n", unmerged: true, code: 2, want: "the tag v1.2.3 is not on main"},
		{
			name: "of another tree", args: []string{"tag", "v1.2.3"}, version: "1.2.3\n", change: map[string]string{"README.md": "# later\n"},
			code: 1, want: "this commit is not that release",
		},
		{
			name: "image of another tree", args: []string{"image-version", "refs/tags/v1.2.3", strings.Repeat("a1", 20)}, version: "1.2.3\n",
			change: map[string]string{"README.md": "# later\n"}, code: 1, want: "this commit is not that release",
		},
		{name: "image not on main", args: []string{"image-version", "refs/tags/v1.2.3", strings.Repeat("a1", 20)}, version: "1.2.3\n", unmerged: true, code: 2, want: "is not on main"},
		{name: "of the version", args: []string{"tag", "v1.2.3"}, version: "1.2.3\n"},
		{name: "of another version", args: []string{"tag", "v1.2.4"}, version: "1.2.3\n", code: 2, want: `the tag is "v1.2.4", but release/VERSION says 1.2.3`},
		{name: "without a v", args: []string{"tag", "1.2.3"}, version: "1.2.3\n", code: 2, want: `the tag is "1.2.3", but`},
		{name: "not in the changelog", args: []string{"tag", "v1.2"}, version: "1.2.30\n", code: 2, want: `the tag is "v1.2"`},
		{name: "no section", args: []string{"tag", "v1.2.30"}, version: "1.2.30\n", code: 2, want: `CHANGELOG.md: no section "## 1.2.30"`},
		{name: "notes", args: []string{"notes", "1.2.3"}, want: "- it is small\n"},
		{name: "last notes", args: []string{"notes", "1.2.2"}, want: "- it was large\n"},
		{name: "main image", args: []string{"image-version", "refs/heads/main", strings.Repeat("a1", 20)}, want: "kind=main\nversion=0.0.0-main.ga1a1a1a1a1a1\n"},
		{name: "release image", args: []string{"image-version", "refs/tags/v1.2.3", strings.Repeat("a1", 20)}, version: "1.2.3\n", want: "kind=newest\nversion=1.2.3\n", tags: []string{"v1.2.2", "v1.2.3", "v1", "v1.3.0-rc.1"}},
		{name: "image of an older release", args: []string{"image-version", "refs/tags/v1.2.3", strings.Repeat("a1", 20)}, version: "1.2.3\n", want: "kind=release\nversion=1.2.3\n", tags: []string{"v1.2.3", "v1.3.0"}},
		{name: "image of a pre-release", args: []string{"image-version", "refs/tags/v1.3.0-rc.1", strings.Repeat("a1", 20)}, version: "1.3.0-rc.1\n", want: "kind=release\nversion=1.3.0-rc.1\n"},
		{name: "image of another tag", args: []string{"image-version", "refs/tags/v1", strings.Repeat("a1", 20)}, version: "1.2.3\n", code: 2, want: `the tag is "v1"`},
		{name: "image of a branch", args: []string{"image-version", "refs/heads/x\nkind=release", strings.Repeat("a1", 20)}, code: 2, want: `images are built of`},
		{name: "image of no commit", args: []string{"image-version", "refs/heads/main", "main"}, code: 2, want: `commit "main": want 40 hex digits`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := fixture(t)
			if test.version != "" {
				released(t, dir, test.version)
				commit(t, dir)
			}
			for _, tag := range test.tags {
				git(t, dir, "tag", tag)
			}
			if test.unmerged {
				git(t, dir, "commit", "--quiet", "--allow-empty", "--message", "not merged")
			}
			if test.change != nil {
				write(t, dir, test.change)
			}
			code, stdout, stderr := dist(t, dir, test.args...)
			require.True(t, code == test.code && strings.Contains(stdout+stderr, test.want), "exit code %d, want %d and %q: %s%s", code, test.code, test.want, stdout, stderr)
		})
	}
}

// released writes a release into a repository, without building it.
func released(t *testing.T, dir, version string) {
	t.Helper()
	tree, err := (&product{root: dir}).tree(t.Context())
	require.NoError(t, err)
	write(t, dir, map[string]string{
		"release/VERSION": version, "release/TREE": tree + "\n",
		"release/checksums.txt": strings.Repeat("ab", 32) + "  vllm-vcr_1.2.3_linux_amd64.tar.gz\n",
	})
}

// CI fails when release/ is of another tree than the one that it lies in.
func TestCheck(t *testing.T) {
	tests := []struct {
		name    string
		release bool
		change  func(dir string)
		code    int
		want    string
	}{
		{name: "no release", want: "no release/: this commit is not a release\n"},
		{name: "a release", release: true, want: "release/ is vllm-vcr 1.2.3, of this tree\n"},
		{name: "a later commit", release: true, change: func(dir string) { write(t, dir, map[string]string{"README.md": "# later\n"}) }, code: 1, want: "git rm -r release"},
		{name: "a file more", release: true, change: func(dir string) { write(t, dir, map[string]string{"more.go": ""}) }, code: 1, want: "git rm -r release"},
		{name: "a file less", release: true, change: func(dir string) { os.Remove(filepath.Join(dir, "LICENSE")) }, code: 1, want: "git rm -r release"},
		{name: "no tree", release: true, change: func(dir string) { os.Remove(filepath.Join(dir, "release", "TREE")) }, code: 2, want: "make release-files"},
		{name: "no version", release: true, change: func(dir string) { os.Remove(filepath.Join(dir, "release", "VERSION")) }, code: 2, want: "VERSION is missing"},
		{name: "no digests", release: true, change: func(dir string) { os.Remove(filepath.Join(dir, "release", "checksums.txt")) }, code: 2, want: "checksums.txt"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := fixture(t)
			if test.release {
				released(t, dir, "1.2.3\n")
				commit(t, dir)
			}
			if test.change != nil {
				test.change(dir)
				commit(t, dir)
			}
			code, stdout, stderr := dist(t, dir, "check")
			require.True(t, code == test.code && strings.Contains(stdout+stderr, test.want), "exit code %d, want %d and %q: %s%s", code, test.code, test.want, stdout, stderr)
		})
	}
}

func TestMovingTags(t *testing.T) {
	tests := []struct {
		name, version string
		tags          []string
		want          []string
	}{
		{name: "first", version: "1.0.0", tags: []string{"v1.0.0"}, want: []string{"v1", "v1.0"}},
		{name: "patch", version: "1.2.4", tags: []string{"v1", "v1.2", "v1.2.3", "v1.2.4"}, want: []string{"v1", "v1.2"}},
		{name: "patch of an older line", version: "1.2.4", tags: []string{"v1.2.3", "v1.10.0"}, want: []string{"v1.2"}},
		{name: "older patch", version: "1.2.4", tags: []string{"v1.2.10"}},
		{name: "another major", version: "1.2.4", tags: []string{"v2.0.0", "v10.0.0"}, want: []string{"v1", "v1.2"}},
		{name: "pre-release", version: "2.0.0-rc.1", tags: []string{"v1.2.3"}},
		{name: "before a pre-release", version: "1.2.3", tags: []string{"v1.3.0-rc.1"}, want: []string{"v1", "v1.2"}},
		{name: "other tags", version: "1.2.3", tags: []string{"1.9.9", "vllm-1.9.9", "v1.9", ""}, want: []string{"v1", "v1.2"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			v, err := parseVersion(test.version)
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(test.want, movingTags(v, test.tags)), "(-want +got)")
		})
	}
}

func TestParseVersion(t *testing.T) {
	for _, good := range []string{"0.0.0", "1.2.3", "10.20.30", "1.2.3-rc.1", "0.0.0-main.g0123456789ab"} {
		if _, err := parseVersion(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "1", "1.2", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3-rc..1", "1.2.3+x", "1.2.3\n", "1.2.3 ", "1.2.3-a/b", "1.2.9999999"} {
		if v, err := parseVersion(bad); err == nil {
			t.Errorf("%q is %v, want an error", bad, v)
		}
	}
}
