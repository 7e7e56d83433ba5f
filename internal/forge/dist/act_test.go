//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestReleaseWorkflow runs the first job of the release workflow, as it is written, on a small product: whatever comes
// after needs it. It must be green for what was committed, and red for anything else.
func TestReleaseWorkflow(t *testing.T) {
	act := testenv.Act(t)
	standins := t.TempDir()
	for _, name := range []string{"setup-go", "upload-artifact"} {
		write(t, filepath.Join(standins, name), map[string]string{
			"action.yml": "name: " + name + "\ndescription: does nothing here\nruns:\n  using: composite\n  steps:\n" +
				"    - run: echo standing in for " + name + "\n      shell: bash\n",
		})
		git(t, filepath.Join(standins, name), "init", "--quiet", "--initial-branch", "main")
		commit(t, filepath.Join(standins, name))
	}
	tests := []struct {
		name, tag string
		change    map[string]string // of files, behind the back of those who made the release
		stale     bool              // release/TREE stays as it was
		unmerged  bool              // the commit is not on main
		want      string            // part of the log
		green     bool
	}{
		{name: "as committed", tag: "v1.2.3", want: "vllm-vcr 1.2.3: 4 files have the committed digests", green: true},
		{name: "another source", tag: "v1.2.3", change: map[string]string{"README.md": "# another\n"}, want: "vllm-vcr_1.2.3_linux_arm64.tar.gz: committed "},
		{name: "a later commit", tag: "v1.2.3", change: map[string]string{"README.md": "# later\n"}, stale: true, want: "this commit is not that release"},
		{name: "a commit that nobody merged", tag: "v1.2.3", unmerged: true, want: "the tag v1.2.3 is not on main"},
		{name: "another tag", tag: "v1.2.4", want: `the tag is "v1.2.4", but release/VERSION says 1.2.3`},
		{name: "no notes", tag: "v1.2.3", change: map[string]string{"CHANGELOG.md": "# Changelog\n"}, want: `no section "## 1.2.3"`},
	}
	released := releasedFixture(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "conformance")
			git(t, released, "clone", "--quiet", released, dir)
			git(t, dir, "remote", "set-url", "origin", "https://github.com/vllm-vcr/conformance")
			write(t, dir, test.change)
			if test.change != nil && !test.stale {
				tree, err := (&product{root: dir}).tree(t.Context())
				require.NoError(t, err)
				write(t, dir, map[string]string{"release/" + treeName: tree + "\n"})
			}
			if git(t, dir, "status", "--porcelain") != "" {
				commit(t, dir)
			}
			if test.unmerged {
				git(t, dir, "commit", "--quiet", "--allow-empty", "--message", "not merged")
			}
			git(t, dir, "tag", test.tag)
			event := filepath.Join(t.TempDir(), "event.json")
			write(t, filepath.Dir(event), map[string]string{"event.json": `{"ref": "refs/tags/` + test.tag + `"}`})
			cmd := exec.Command(act, "push", "--job", "build", "--workflows", ".github/workflows/release.yml", "--eventpath", event,
				"--platform", "ubuntu-latest=-self-hosted", "--container-daemon-socket", "-", "--no-cache-server", "--action-cache-path", t.TempDir(),
				"--local-repository", pinned(t, "actions/setup-go")+"="+filepath.Join(standins, "setup-go"),
				"--local-repository", pinned(t, "actions/upload-artifact")+"="+filepath.Join(standins, "upload-artifact"))
			// Without its path, what was built of one clone of this program is good for the others.
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-trimpath")
			out, err := cmd.CombinedOutput()
			require.True(t, (err == nil) == test.green && strings.Contains(string(out), test.want), "%v, want green %v and %q:\n%s", err, test.green, test.want, out)
			require.Equal(t, strings.Contains(string(out), "standing in for upload-artifact"), test.green, "the archives went on to the next job")
		})
	}
}

// releasedFixture is a small product with this program, these tools and workflows, whose release 1.2.3 is committed.
func releasedFixture(t *testing.T) string {
	dir, root := fixture(t), repository(t)
	listed, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", ".").Output()
	require.NoError(t, err)
	for name := range strings.FieldsSeq(string(listed)) {
		folder, own := strings.CutPrefix(name, "github.com/vllm-vcr/conformance/internal/")
		if !own {
			continue
		}
		files, err := filepath.Glob(filepath.Join(root, "internal", folder, "*.go"))
		require.NoError(t, err)
		for _, path := range files {
			if !strings.HasSuffix(path, "_test.go") {
				text := strings.ReplaceAll(read(t, path), `"github.com/vllm-vcr/conformance/`, `"example.org/small/`)
				text = otherTargets.ReplaceAllString(text, "")
				write(t, dir, map[string]string{"internal/" + folder + "/" + filepath.Base(path): text})
			}
		}
	}
	for _, name := range []string{"Makefile", ".github/workflows/release.yml"} {
		write(t, dir, map[string]string{name: read(t, filepath.Join(root, name))})
	}
	commit(t, dir)
	onlyTargets(t, target{"linux", "amd64"}, target{"linux", "arm64"})
	mustDist(t, dir, "files", "-version", "1.2.3")
	commit(t, dir)
	t.Chdir(filepath.Join(root, "internal", "forge", "dist"))
	return dir
}

// otherTargets are the lines of the list of all targets that are not of Linux.
var otherTargets = regexp.MustCompile(`(?m)^\t\{"(darwin|windows)", "[a-z0-9]+"\},\n`)

// pinned is an action as the release workflow names it.
func pinned(t *testing.T, action string) string {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, filepath.Join(repository(t), ".github", "workflows", "release.yml")), "uses: "+action+"@")
	commit, _, _ := strings.Cut(rest, " ")
	if !ok || len(commit) != 40 {
		t.Fatalf("release.yml pins %s to %q", action, commit)
	}
	return action + "@" + commit
}
