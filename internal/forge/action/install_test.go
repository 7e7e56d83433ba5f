//go:build unix

package action_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// says is a program that tells a version as vllm-vcr does.
const says = "#!/bin/sh\necho 1.2.3\n"

// A runner is a machine that installs vllm-vcr: folders, tools and releases of its own.
type runner struct {
	dir      string // all else is below
	env      map[string]string
	releases *httptest.Server
	requests atomic.Int32
	answer   func(w http.ResponseWriter, r *http.Request) bool // true when it has answered
	assets   map[string][]byte
}

// installerTools are what the script may use besides bash; others are absent from its PATH.
var installerTools = []string{
	"bash", "sh", "awk", "cat", "chmod", "cp", "curl", "dirname", "find", "gzip", "mkdir", "mktemp", "mv", "rm", "rmdir", "sed",
	"sha256sum", "sort", "tail", "tar", "tr", "uname", "xargs",
}

func newRunner(t *testing.T, platform, program string) *runner {
	t.Helper()
	r := &runner{dir: t.TempDir(), assets: map[string][]byte{}}
	for _, tool := range installerTools {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Skipf("the installer needs %s, which is not on this machine", tool)
		}
		r.link(t, path, tool)
	}
	r.releases = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.releases.Close)
	asset := "vllm-vcr_1.2.3_" + platform + ".tar.gz"
	r.assets["/v1.2.3/"+asset] = archive(t, program, []byte(says))
	checksums := "" // among others
	for name, content := range map[string][]byte{asset: r.assets["/v1.2.3/"+asset], "vllm-vcr_1.2.3_plan9_arm.tar.gz": []byte("x")} {
		checksums += digest(content) + "  " + name + "\n"
	}
	writeFile(t, r.path("action/release/VERSION"), []byte("1.2.3\n"))
	writeFile(t, r.path("action/release/checksums.txt"), []byte(checksums))
	writeFile(t, r.path("action/scripts/install.sh"), readFile(t, filepath.Join(root, "scripts", "install.sh")))
	writeFile(t, r.path("action/release/TREE"), []byte(treeOf(t, r.path("action"))+"\n"))
	for _, folder := range []string{"temp", "tools", "work"} {
		require.NoError(t, os.MkdirAll(r.path(folder), 0o755))
	}
	r.env = map[string]string{
		"PATH": r.path("bin"), "HOME": r.path("work"), "GITHUB_ACTIONS": "true", "RUNNER_OS": "Linux", "RUNNER_ARCH": "X64",
		"RUNNER_TEMP": r.path("temp"), "RUNNER_TOOL_CACHE": r.path("tools"), "GITHUB_OUTPUT": r.path("output"),
		"GITHUB_ACTION_PATH": r.path("action"), "VLLM_VCR_RELEASES": r.releases.URL,
	}
	return r
}

// treeOf is the digest of the files below a folder but those of its release, as release/TREE has it.
func treeOf(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if name = filepath.ToSlash(name); err != nil || d.IsDir() || strings.HasPrefix(name, "release/") {
			return err
		}
		lines = append(lines, digest(readFile(t, path))+"  "+name+"\n")
		return nil
	})
	require.NoError(t, err)
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[64:], b[64:]) })
	return digest([]byte(strings.Join(lines, "")))
}

func (r *runner) path(name string) string { return filepath.Join(r.dir, filepath.FromSlash(name)) }

func (r *runner) link(t *testing.T, path, tool string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(r.path("bin"), 0o755))
	require.NoError(t, os.Symlink(path, r.path("bin/"+tool)))
}

// stub puts a program before the real one of that name, if there is one.
func (r *runner) stub(t *testing.T, tool, script string) {
	t.Helper()
	os.Remove(r.path("bin/" + tool))
	writeFile(t, r.path("bin/"+tool), []byte("#!"+r.path("bin/bash")+"\n"+script))
}

func (r *runner) serve(w http.ResponseWriter, req *http.Request) {
	r.requests.Add(1)
	if r.answer != nil && r.answer(w, req) {
		return
	}
	content, found := r.assets[req.URL.Path]
	if !found {
		http.NotFound(w, req)
		return
	}
	w.Write(content)
}

// An installed is how an installation ended.
type installed struct {
	code    int
	log     string
	outputs map[string]string
}

func (r *runner) install(t *testing.T) installed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), r.path("bin/bash"), r.path("action/scripts/install.sh"))
	cmd.Dir = r.path("work")
	for _, name := range slices.Sorted(maps.Keys(r.env)) {
		cmd.Env = append(cmd.Env, name+"="+r.env[name])
	}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	done := installed{code: cmd.ProcessState.ExitCode(), log: log.String(), outputs: map[string]string{}}
	text, err := os.ReadFile(r.path("output"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		done.outputs[name] = value
	}
	return done
}

// works checks that the outputs name a vllm-vcr that runs.
func (r *runner) works(t *testing.T, done installed) {
	t.Helper()
	if done.code != 0 || done.outputs["version"] != "1.2.3" || done.outputs["binary"] == "" {
		t.Fatalf("exit code %d, outputs %v\n%s", done.code, done.outputs, done.log)
	}
	out, err := exec.Command(done.outputs["binary"], "version", "--short").Output()
	if err != nil || string(out) != "1.2.3\n" {
		t.Errorf("%s says %q, %v", done.outputs["binary"], out, err)
	}
}

// left lists files below a folder.
func (r *runner) left(t *testing.T, folder string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(r.path(folder), func(path string, d os.DirEntry, err error) error {
		if err == nil && (!d.IsDir() || strings.Contains(d.Name(), "vllm-vcr.") || strings.HasPrefix(d.Name(), ".new")) {
			files = append(files, strings.TrimPrefix(path, r.dir+"/"))
		}
		return err
	})
	require.NoError(t, err)
	return files
}

func TestInstall(t *testing.T) {
	r := newRunner(t, "linux_amd64", "vllm-vcr")
	done := r.install(t)
	r.works(t, done)
	if left := r.left(t, "temp"); !slices.Equal(left, r.only(done)) {
		t.Errorf("left in the temporary folder: %v", left)
	}
	r.works(t, r.install(t))
	require.Equal(t, r.requests.Load(), 1, "downloads for two installations")
}

// only lists what an installation leaves in the temporary folder: the binary and what it calls, in a folder of their own.
func (r *runner) only(done installed) []string {
	binary := strings.TrimPrefix(done.outputs["binary"], r.dir+"/")
	return append([]string{path.Dir(binary), binary}, helpers(binary)...)
}

// kept is the archive in the tool cache.
func (r *runner) kept(t *testing.T) string {
	t.Helper()
	left := r.left(t, "tools")
	if len(left) != 1 {
		t.Fatalf("in the tool cache: %v, want one archive", left)
	}
	return r.path(left[0])
}

// TestInstallOverDamage: what an earlier job has left is used only when it is what the action pins, whatever else lies
// beside it.
func TestInstallOverDamage(t *testing.T) {
	tests := []struct {
		name   string
		damage func(kept string) error
	}{
		{"half", func(kept string) error { return os.Truncate(kept, 3) }},
		{"no archive", os.Remove},
		{"another program", func(kept string) error {
			evil := archive(t, "vllm-vcr", []byte("#!/bin/sh\necho 6.6.6\n"))
			if err := os.WriteFile(kept+".sha256", []byte(digest(evil)), 0o600); err != nil {
				return err
			}
			return os.WriteFile(kept, evil, 0o600)
		}},
		{"a link to another program", func(kept string) error {
			evil := filepath.Join(t.TempDir(), "evil")
			if err := os.WriteFile(evil, archive(t, "vllm-vcr", []byte("#!/bin/sh\necho 6.6.6\n")), 0o600); err != nil {
				return err
			}
			return errors.Join(os.Remove(kept), os.Symlink(evil, kept))
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRunner(t, "linux_amd64", "vllm-vcr")
			r.works(t, r.install(t))
			kept := r.kept(t)
			require.NoError(t, test.damage(kept))
			r.works(t, r.install(t))
			require.Equal(t, r.requests.Load(), 2, "downloads")
			require.Equal(t, digest(readFile(t, kept)), digest(r.assets["/v1.2.3/vllm-vcr_1.2.3_linux_amd64.tar.gz"]), "the tool cache still has")
		})
	}
}

// TestInstallKeepsTheToken: no program but gh is given the token.
func TestInstallKeepsTheToken(t *testing.T) {
	r := newRunner(t, "linux_amd64", "vllm-vcr")
	r.env["INPUT_GITHUB_TOKEN"] = "secret"
	for _, tool := range []string{"curl", "tar"} {
		real, err := exec.LookPath(tool)
		require.NoError(t, err)
		r.stub(t, tool, `set | "`+r.path("bin/sed")+`" -n '/secret/w '"`+r.path("seen")+`"; exec `+real+` "$@"`+"\n")
	}
	r.works(t, r.install(t))
	if seen := readFile(t, r.path("seen")); len(seen) > 0 {
		t.Errorf("a program was given: %s", seen)
	}
}

// sums are those of the archive of a runner, and of a page that comes in its place.
const notAnArchive = "<html>log in, please</html>"

func TestInstallRefuses(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	tests := []struct {
		name    string
		prepare func(*testing.T, *runner)
		env     []string // NAME=VALUE
		code    int
		want    []string // in the annotation
	}{
		{
			name: "wrong checksum", prepare: func(_ *testing.T, r *runner) {
				r.assets["/v1.2.3/vllm-vcr_1.2.3_linux_amd64.tar.gz"] = []byte(notAnArchive)
			},
			code: 3, want: []string{"wrong checksum", digest([]byte(notAnArchive)), "the action pins "},
		},
		{
			name: "cut archive", prepare: func(_ *testing.T, r *runner) {
				whole := r.assets["/v1.2.3/vllm-vcr_1.2.3_linux_amd64.tar.gz"]
				r.assets["/v1.2.3/vllm-vcr_1.2.3_linux_amd64.tar.gz"] = whole[:len(whole)/2]
			},
			code: 3, want: []string{"wrong checksum"},
		},
		{
			name: "missing asset", prepare: func(_ *testing.T, r *runner) { clear(r.assets) },
			code: 3, want: []string{"release v1.2.3 has no vllm-vcr_1.2.3_linux_amd64.tar.gz: HTTP 404 at http://127.0.0.1:"},
		},
		{
			name: "forbidden", prepare: func(_ *testing.T, r *runner) {
				r.answer = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(403); return true }
			},
			code: 3, want: []string{"HTTP 403"},
		},
		{
			name: "redirected to a file", prepare: func(_ *testing.T, r *runner) {
				r.answer = func(w http.ResponseWriter, _ *http.Request) bool {
					w.Header().Set("Location", "file:///etc/passwd")
					w.WriteHeader(302)
					return true
				}
			},
			code: 3, want: []string{"download of vllm-vcr_1.2.3_linux_amd64.tar.gz failed: curl: (1)", "disabled"},
		},
		{name: "offline", env: []string{"VLLM_VCR_RELEASES=http://user:pass@127.0.0.1:1"}, code: 3, want: []string{"failed to connect", "give the input binary"}},
		{name: "no file", env: []string{"VLLM_VCR_RELEASES=file:///nowhere"}, code: 3, want: []string{"release v1.2.3 has no vllm-vcr_1.2.3_linux_amd64.tar.gz"}},
		{name: "system", env: []string{"RUNNER_OS=FreeBSD"}, code: 3, want: []string{"no vllm-vcr for the system FreeBSD"}},
		{name: "processor", env: []string{"RUNNER_ARCH=ARM"}, code: 3, want: []string{"no vllm-vcr for the processor ARM: X64"}},
		{
			name: "no release", prepare: func(_ *testing.T, r *runner) { os.RemoveAll(r.path("action/release")) },
			code: 3, want: []string{"is not released (it has no release/VERSION)", "verify: source"},
		},
		{
			name: "another file in the action", prepare: func(t *testing.T, r *runner) { writeFile(t, r.path("action/cmd/more.go"), nil) },
			code: 3, want: []string{"this commit of the action is not released: release/ is of the tree", "pin a release", "verify: source"},
		},
		{
			name: "a changed file in the action", prepare: func(t *testing.T, r *runner) {
				path := r.path("action/scripts/install.sh")
				writeFile(t, path, append(readFile(t, path), "# a later commit\n"...))
			},
			code: 3, want: []string{"this commit of the action is not released"},
		},
		{
			name: "a release without its tree", prepare: func(_ *testing.T, r *runner) { os.Remove(r.path("action/release/TREE")) },
			code: 3, want: []string{"this commit of the action is not released"},
		},
		{
			name: "no checksums", prepare: func(_ *testing.T, r *runner) { os.Remove(r.path("action/release/checksums.txt")) },
			code: 3, want: []string{"release/checksums.txt is missing"},
		},
		{name: "not among the checksums", env: []string{"RUNNER_ARCH=ARM64"}, code: 3, want: []string{"has no sha256 of vllm-vcr_1.2.3_linux_arm64.tar.gz"}},
		{name: "verify", env: []string{"INPUT_VERIFY=checksums"}, code: 2, want: []string{`input verify is "checksums": want checksum, attestation, source or none`}},
		{name: "none", env: []string{"INPUT_VERIFY=none"}, code: 2, want: []string{"for the input binary only"}},
		{name: "version without checksum", env: []string{"INPUT_VERSION=1.2.4"}, code: 2, want: []string{"version 1.2.4 is not 1.2.3", "its input checksum is needed"}},
		{name: "no version", env: []string{"INPUT_VERSION=../1", "INPUT_CHECKSUM=" + sum}, code: 2, want: []string{`version is "../1"`}},
		{name: "a command in the version", env: []string{"INPUT_VERSION=1\n::warning::x", "INPUT_CHECKSUM=" + sum}, code: 2, want: []string{`version is "1 ::warning::x"`}},
		{name: "checksum without version", env: []string{"INPUT_CHECKSUM=" + sum}, code: 2, want: []string{"without the version"}},
		{name: "short checksum", env: []string{"INPUT_VERSION=1.2.4", "INPUT_CHECKSUM=abc"}, code: 2, want: []string{`input checksum is "abc"`}},
		{name: "source of a version", env: []string{"INPUT_VERIFY=source", "INPUT_VERSION=1.2.4"}, code: 2, want: []string{"pin the action instead"}},
		{name: "source without Go", env: []string{"INPUT_VERIFY=source"}, code: 3, want: []string{"actions/setup-go"}},
		{name: "attestation without gh", env: []string{"INPUT_VERIFY=attestation"}, code: 3, want: []string{"needs the GitHub CLI"}},
		{
			name: "no attestation", prepare: func(t *testing.T, r *runner) { r.stub(t, "gh", "echo 'Error: no attestations found' >&2; exit 1\n") },
			env: []string{"INPUT_VERIFY=attestation"}, code: 3, want: []string{"does not attest this archive: Error: no attestations found"},
		},
		{name: "no binary", env: []string{"INPUT_BINARY=nowhere/vllm-vcr"}, code: 2, want: []string{"there is no file nowhere/vllm-vcr"}},
		{name: "binary and version", env: []string{"INPUT_BINARY=x", "INPUT_VERSION=1.2.3"}, code: 2, want: []string{"are for a download"}},
		{name: "binary and attestation", env: []string{"INPUT_BINARY=x", "INPUT_VERIFY=attestation"}, code: 2, want: []string{"nothing to verify"}},
		{
			name: "binary that cannot be run", prepare: func(t *testing.T, r *runner) {
				writeFile(t, r.path("work/x"), []byte(says))
				require.NoError(t, os.Chmod(r.path("work/x"), 0o644))
			},
			env: []string{"INPUT_BINARY=x"}, code: 2, want: []string{"chmod +x"},
		},
		{
			name: "another program", prepare: func(t *testing.T, r *runner) {
				writeFile(t, r.path("work/x"), []byte("#!/bin/sh\necho GNU coreutils\n"))
			},
			env: []string{"INPUT_BINARY=x"}, code: 3, want: []string{"is no vllm-vcr that runs here", "GNU coreutils"},
		},
		{
			name: "a program that fails", prepare: func(t *testing.T, r *runner) {
				writeFile(t, r.path("work/x"), []byte("#!/bin/sh\necho 1.2.3; exit 126\n"))
			},
			env: []string{"INPUT_BINARY=x"}, code: 3, want: []string{"exit code 126"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRunner(t, "linux_amd64", "vllm-vcr")
			if test.prepare != nil {
				test.prepare(t, r)
			}
			for _, variable := range test.env {
				name, value, _ := strings.Cut(variable, "=")
				r.env[name] = value
			}
			r.refuses(t, r.install(t), test.code, test.want...)
		})
	}
}

// refuses checks that an installation failed for a reason, told in one annotation, and left nothing behind.
func (r *runner) refuses(t *testing.T, done installed, code int, want ...string) {
	t.Helper()
	require.True(t, done.code == code && done.outputs["exit-code"] == fmt.Sprint(code) && done.outputs["binary"] == "", "exit code %d, outputs %v; want %d", done.code, done.outputs, code)
	var annotations []string
	for line := range strings.Lines(done.log) {
		if strings.HasPrefix(line, "::") {
			annotations = append(annotations, line)
		}
	}
	if len(annotations) != 1 || !strings.HasPrefix(annotations[0], "::error title=install vllm-vcr::") {
		t.Fatalf("annotations %q, want one error:\n%s", annotations, done.log)
	}
	for _, part := range want {
		if !strings.Contains(strings.ToLower(annotations[0]), strings.ToLower(part)) {
			t.Errorf("got %s want %q in it", annotations[0], part)
		}
	}
	require.True(t, !strings.Contains(done.log, "user:pass"), "a password is in the log: %s", done.log)
	if left := append(r.left(t, "temp"), r.left(t, "tools")...); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

func TestInstallRetries(t *testing.T) {
	r := newRunner(t, "linux_amd64", "vllm-vcr")
	r.answer = func(w http.ResponseWriter, _ *http.Request) bool {
		first := r.requests.Load() == 1
		if first {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return first
	}
	r.works(t, r.install(t))
}

func TestInstallVariants(t *testing.T) {
	tests := []struct {
		name    string
		prepare func(*testing.T, *runner)
	}{
		{"without a runner's variables", func(t *testing.T, r *runner) {
			r.stub(t, "uname", `case $1 in -s) echo Linux ;; -m) echo x86_64 ;; esac`)
			for _, name := range []string{"RUNNER_OS", "RUNNER_ARCH", "RUNNER_TOOL_CACHE", "GITHUB_ACTION_PATH"} {
				delete(r.env, name)
			}
		}},
		{"shasum of macOS", func(t *testing.T, r *runner) {
			real, err := exec.LookPath("sha256sum")
			require.NoError(t, err)
			os.Remove(r.path("bin/sha256sum"))
			r.stub(t, "shasum", `[[ $1 == -a && $2 == 256 ]] && shift 2 && exec `+real+` "$@"`+"\n")
		}},
		{"no tool cache to write to", func(t *testing.T, r *runner) {
			writeFile(t, r.path("file"), nil)
			r.env["RUNNER_TOOL_CACHE"] = r.path("file")
		}},
		{"another version, which has all in one binary", func(t *testing.T, r *runner) {
			content := packed(t, file{"vllm-vcr", []byte(says)})
			r.assets["/v2.0.0-rc.1/vllm-vcr_2.0.0-rc.1_linux_amd64.tar.gz"] = content
			r.env["INPUT_VERSION"], r.env["INPUT_CHECKSUM"] = "v2.0.0-rc.1", digest(content)
		}},
		{"attested", func(t *testing.T, r *runner) {
			r.stub(t, "gh", `[[ $GH_TOKEN == secret && "$*" == *"--repo vllm-vcr/conformance --signer-workflow vllm-vcr/conformance/.github/workflows/release.yml" ]]`)
			r.env["INPUT_VERIFY"], r.env["INPUT_GITHUB_TOKEN"] = "attestation", "secret"
		}},
		{"given", func(t *testing.T, r *runner) {
			writeFile(t, r.path("work/a b/vcr"), []byte(says))
			r.env["INPUT_BINARY"], r.env["INPUT_VERIFY"] = "a b/vcr", "none"
			r.releases.Close()
		}},
		{"another version, of an action that is not released", func(t *testing.T, r *runner) {
			content := archive(t, "vllm-vcr", []byte(says))
			os.RemoveAll(r.path("action/release"))
			r.assets["/v2.0.0/vllm-vcr_2.0.0_linux_amd64.tar.gz"] = content
			r.env["INPUT_VERSION"], r.env["INPUT_CHECKSUM"] = "2.0.0", digest(content)
		}},
		{"names in any order, with spaces, and a checkout's own folder", func(t *testing.T, r *runner) {
			for _, name := range []string{"a/b", "a-b", "a b", "aB", "Ab", "a.b", "ä"} {
				writeFile(t, r.path("action/"+name), []byte(name))
			}
			writeFile(t, r.path("action/release/TREE"), []byte(treeOf(t, r.path("action"))+"\n"))
			writeFile(t, r.path("action/.git/config"), nil)
		}},
		{"checksums with line ends of Windows", func(t *testing.T, r *runner) {
			for _, name := range []string{"VERSION", "TREE", "checksums.txt"} {
				path := r.path("action/release/" + name)
				writeFile(t, path, bytes.ReplaceAll(readFile(t, path), []byte("\n"), []byte("\r\n")))
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRunner(t, "linux_amd64", "vllm-vcr")
			test.prepare(t, r)
			r.works(t, r.install(t))
		})
	}
}

// TestInstallOnWindows: the bash of Git for Windows, as far as paths go. Its cygpath turns them around.
func TestInstallOnWindows(t *testing.T) {
	for _, variables := range []bool{true, false} {
		r := newRunner(t, "windows_amd64", "vllm-vcr.exe")
		for from, to := range map[string]string{"action": "d/a/_actions/my action", "temp": "d/a/_temp", "tools": "c/hosted tools"} {
			require.NoError(t, os.MkdirAll(filepath.Dir(r.path(to)), 0o755))
			require.NoError(t, os.Rename(r.path(from), r.path(to)))
		}
		r.stub(t, "uname", `case $1 in -s) echo MINGW64_NT-10.0-26100 ;; -m) echo x86_64 ;; esac`)
		r.stub(t, "cygpath", `root='`+r.dir+`'
path=${2//\\//}
case $1:$path in
  -u:[A-Z]:/*) drive=${path%%:*} path=${path#*:}; printf '%s\n' "$root/$(tr A-Z a-z <<<"$drive")$path" ;;
  -m:"$root"/[a-z]/*) path=${path#"$root"/}; printf '%s\n' "$(tr a-z A-Z <<<"${path%%/*}"):/${path#*/}" ;;
  *) printf '%s\n' "$path" ;;
esac
`)
		maps.Copy(r.env, map[string]string{
			"RUNNER_OS": "Windows", "RUNNER_TEMP": `D:\a\_temp`, "RUNNER_TOOL_CACHE": `C:\hosted tools`,
			"GITHUB_ACTION_PATH": `D:\a\_actions\my action`, "GITHUB_OUTPUT": `D:\a\_temp\output`,
		})
		if !variables {
			delete(r.env, "RUNNER_OS")
			delete(r.env, "RUNNER_ARCH")
		}
		// As action.yml calls it.
		call := exec.Command(r.path("bin/bash"), "-c", `script=$(cygpath -u "${GITHUB_ACTION_PATH//\\//}/scripts/install.sh") && bash "$script"`)
		call.Dir = r.path("work")
		for name, value := range r.env {
			call.Env = append(call.Env, name+"="+value)
		}
		if out, err := call.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		outputs := string(readFile(t, r.path("d/a/_temp/output")))
		binary, _, _ := strings.Cut(strings.TrimPrefix(outputs, "binary="), "\n")
		if below, ok := strings.CutPrefix(binary, "D:/a/_temp/"); !ok || !strings.HasSuffix(binary, "/vllm-vcr.exe") {
			t.Errorf("outputs %q, want a binary in D:/a/_temp", outputs)
		} else if string(readFile(t, r.path("d/a/_temp/"+below))) != says {
			t.Errorf("%s is not the released one", binary)
		}
	}
}

// TestInstallsAtOnce: jobs share the tool cache of a runner.
func TestInstallsAtOnce(t *testing.T) {
	r := newRunner(t, "linux_amd64", "vllm-vcr")
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if done := r.install(t); done.code != 0 {
				t.Errorf("exit code %d\n%s", done.code, done.log)
			}
		})
	}
	all.Wait()
	r.works(t, r.install(t))
	r.kept(t)
}
