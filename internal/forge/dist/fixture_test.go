package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

var (
	sharedOnce sync.Once
	shared     string
	errShared  error
)

// sharedDir is a folder for what several tests use, of which none changes it.
func sharedDir(t *testing.T) string {
	t.Helper()
	sharedOnce.Do(func() { shared, errShared = os.MkdirTemp("", "dist-test-") })
	if errShared != nil {
		t.Fatal(errShared)
	}
	return shared
}

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(shared)
	os.Exit(code)
}

// fixture is a repository of a small program under the product's name, in its own folder, all of it committed.
func fixture(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	const library = "github.com/BurntSushi/toml " // that this program, which is a part of the product, needs
	write(t, dir, map[string]string{
		"go.mod": "module example.org/small\n\ngo 1.26.0\n\ntoolchain " + runtime.Version() + "\n\nrequire " +
			linesWith(t, "go.mod", library),
		"go.sum":                       linesWith(t, "go.sum", library),
		"cmd/vllm-vcr/say.go":          "package main\n\nimport \"os\"\n\nvar version string\n\nfunc main() { os.Stdout.WriteString(version + extra) }\n",
		"cmd/vllm-vcr/no.go":           "//go:build !evil\n\npackage main\n\nconst extra = \"\"\n",
		"cmd/vllm-vcr/yes.go":          "//go:build evil\n\npackage main\n\nconst extra = \" with what the environment says\"\n",
		"cmd/vllm-vcr-cluster/main.go": "package main\n\nfunc main() {}\n",
		"cmd/vllm-vcr-dataset/main.go": "package main\n\nfunc main() {}\n",
		"LICENSE":                      "free\n",
		"README.md":                    "# small\n",
		"docs/cli.md":                  "# vllm-vcr\n\nsmall\n\n## vllm-vcr say\n\nSay it.\n",
		"CHANGELOG.md":                 "# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-11-21\n\n- it is small\n\n## 1.2.2\n\n- it was large\n",
		".gitignore":                   "/dist/\n",
		"python/pyproject.toml": "[project]\nname = \"vllm-vcr\"\nreadme = \"../README.md\"\nlicense = \"free\"\n\n[project.scripts]\n" +
			"vllm-vcr = \"vllm_vcr:main\"\n\n[project.entry-points.pytest11]\nvllm_vcr = \"vllm_vcr.plugin\"\n",
		"vectors/kvevents/a.json":         "{}",
		"python/vllm_vcr/__init__.py":     "main = None\n",
		"python/vllm_vcr/py.typed":        "",
		"python/vllm_vcr/left/behind.pyc": "",
		"tools/go.mod":                    read(t, filepath.Join("..", "..", "..", "tools", "go.mod")),
		"tools/go.sum":                    read(t, filepath.Join("..", "..", "..", "tools", "go.sum")),
	})
	git(t, dir, "init", "--quiet", "--initial-branch", "main")
	commit(t, dir)
	return dir
}

// linesWith are the lines of a file of this repository that have a text.
func linesWith(t *testing.T, file, text string) string {
	var found string
	for line := range strings.Lines(read(t, filepath.Join("..", "..", "..", file))) {
		if strings.Contains(line, text) {
			found += strings.TrimSpace(line) + "\n"
		}
	}
	return found
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	require.NoErrorf(t, err, "git %v\n%s", args, out)
	return string(out)
}

// commit makes a commit, which is that of main at the origin too.
func commit(t *testing.T, dir string) {
	t.Helper()
	git(t, dir, "add", "--all")
	git(t, dir, "commit", "--quiet", "--message", "all")
	git(t, dir, "update-ref", "refs/remotes/origin/main", "HEAD")
}

// dist runs a command in a folder, and returns its exit code and what it printed.
func dist(t *testing.T, dir string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Chdir(dir)
	var out, errs bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

// mustDist runs a command that has to succeed.
func mustDist(t *testing.T, dir string, args ...string) string {
	t.Helper()
	code, stdout, stderr := dist(t, dir, args...)
	if code != exitOK {
		t.Fatalf("dist %v: exit code %d: %s", args, code, stderr)
	}
	return stdout
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

// files are the names in a folder and the digests of their contents.
func files(t *testing.T, dir string) checksums {
	t.Helper()
	sums, err := sumFiles(dir, func(string) bool { return true })
	require.NoError(t, err)
	return sums
}

// members lists an archive, a line each: mode, owner, time, size, name. The contents are by name.
func members(t *testing.T, path string) (list []string, contents map[string][]byte) {
	t.Helper()
	zr, err := gzip.NewReader(strings.NewReader(read(t, path)))
	require.NoError(t, err)
	contents = map[string][]byte{}
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return list, contents
		} else if err != nil {
			t.Fatal(err)
		}
		if contents[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprintf("%o %d:%d %q:%q %d %s", h.Mode, h.Uid, h.Gid, h.Uname, h.Gname, h.ModTime.Unix(), h.Name))
	}
}
