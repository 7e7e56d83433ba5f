//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// repository is the folder of this product's source.
func repository(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", ".."))
	require.NoError(t, err)
	return dir
}

// script runs one of scripts/, and returns what it said and its exit code.
func script(t *testing.T, env []string, stdin, name string, args ...string) (string, int) {
	t.Helper()
	if !filepath.IsAbs(name) {
		name = filepath.Join(repository(t), "scripts", name)
	}
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stdin = append(os.Environ(), env...), strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// command runs a program that has to succeed, and returns its output.
func command(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoErrorf(t, err, "%s %v\n%s%s", name, args, out, stderr.String())
	return string(out)
}

// fakeGH is a gh that writes its arguments down, a line a call, and answers as the environment says.
const fakeGH = `#!/usr/bin/env bash
echo "$*" >>"$GH_LOG"
case "$1 $2" in
  'release view')
    [[ -n $RELEASE ]] || { echo 'release not found' >&2; exit 1; }
    [[ $RELEASE != down ]] || { echo 'error connecting to api.github.com' >&2; exit 1; }
    echo "$RELEASE" ;;
  'api --paginate') printf '%s\n' $TAGS ;;
esac
`

// withGH puts a fake gh before everything else, and returns the environment and what was asked of it.
func withGH(t *testing.T, env ...string) (environment []string, calls func() []string) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{"bin/gh": fakeGH, "log": ""})
	require.NoError(t, os.Chmod(filepath.Join(dir, "bin", "gh"), 0o755))
	log := filepath.Join(dir, "log")
	env = append(env, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"), "GH_LOG="+log)
	return env, func() []string { return strings.Split(strings.TrimSpace(read(t, log)), "\n") }
}

func TestPublishRelease(t *testing.T) {
	create := func(flags string) string {
		return "release create v" + flags + " DIST/vllm-vcr_1.tar.gz DIST/vllm_vcr-1.whl DIST/vllm-vcr_1.cdx.json DIST/checksums.txt"
	}
	tests := []struct {
		name, version, release string
		files                  map[string]string
		code                   int
		want                   string // part of what it says
		calls                  []string
	}{
		{name: "first", version: "1.2.3", calls: []string{create("1.2.3 --verify-tag --title v1.2.3 --notes-file DIST/notes.md")}},
		{name: "pre-release", version: "1.2.3-rc.1", calls: []string{create("1.2.3-rc.1 --verify-tag --title v1.2.3-rc.1 --notes-file DIST/notes.md --prerelease")}},
		{
			name: "after a draft", version: "1.2.3", release: "true",
			calls: []string{"release delete v1.2.3 --yes", create("1.2.3 --verify-tag --title v1.2.3 --notes-file DIST/notes.md")},
		},
		{name: "public already", version: "1.2.3", release: "false", code: 1, want: "v1.2.3 is public already"},
		{name: "no answer", version: "1.2.3", release: "down", code: 1, want: "error connecting to api.github.com"},
		{name: "other bytes", version: "1.2.3", files: map[string]string{"vllm-vcr_1.tar.gz": "b"}, code: 1, want: "is not what checksums.txt says"},
		{
			name: "others than were committed", version: "1.2.3", code: 1, want: "checksums.txt is not release/checksums.txt of this commit", files: map[string]string{
				"vllm-vcr_1.tar.gz": "b", "checksums.txt": "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d  vllm-vcr_1.tar.gz\n",
			},
		},
		{name: "one more wheel than was committed", version: "1.2.3", code: 1, want: "has other archives or wheels", files: map[string]string{"vllm_vcr-2.whl": "b"}},
		{name: "one more than was committed", version: "1.2.3", code: 1, want: "has other archives", files: map[string]string{"vllm-vcr_2.tar.gz": "b"}},
		{name: "no notes", version: "1.2.3", files: map[string]string{"notes.md": ""}, code: 1, want: "notes.md: want what dist notes prints"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			const sums = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  vllm-vcr_1.tar.gz\n" +
				"ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  vllm_vcr-1.whl\n"
			dir, checkout := t.TempDir(), t.TempDir()
			write(t, dir, map[string]string{"vllm-vcr_1.tar.gz": "a", "vllm_vcr-1.whl": "a", "vllm-vcr_1.cdx.json": "{}", "notes.md": "new\n", "checksums.txt": sums})
			write(t, dir, test.files)
			program := filepath.Join(checkout, "scripts", "publish-release")
			write(t, checkout, map[string]string{
				"release/checksums.txt": sums, "scripts/publish-release": read(t, filepath.Join(repository(t), "scripts", "publish-release")),
			})
			require.NoError(t, os.Chmod(program, 0o755))
			env, calls := withGH(t, "RELEASE="+test.release)
			out, code := script(t, env, "", program, test.version, dir)
			require.True(t, code == test.code && strings.Contains(out, test.want), "exit code %d, want %d and %q:\n%s", code, test.code, test.want, out)
			var changes []string
			for _, call := range calls() {
				if call != "" && !strings.HasPrefix(call, "release view v"+test.version+" ") {
					changes = append(changes, strings.ReplaceAll(call, dir, "DIST"))
				}
			}
			require.NoDiff(t, cmp.Diff(test.calls, changes), "gh (-want +got)")
		})
	}
}

// The installer, which has no git, finds the same digest as the one that a release writes, of what GitHub hands out of a commit.
func TestTreeOfTheInstaller(t *testing.T) {
	dir := fixture(t)
	write(t, dir, map[string]string{"scripts/install.sh": read(t, filepath.Join(repository(t), "scripts", "install.sh")), "a b/c-d": "", "a-b": "x", "A/b": "y"})
	commit(t, dir)
	released(t, dir, "1.2.3\n")
	commit(t, dir)
	handed := t.TempDir()
	git(t, dir, "archive", "--output", filepath.Join(handed, "tar"), "HEAD")
	command(t, nil, "tar", "-xf", filepath.Join(handed, "tar"), "-C", handed)
	os.Remove(filepath.Join(handed, "tar"))
	env := []string{
		"GITHUB_ACTION_PATH=" + handed, "GITHUB_ACTIONS=", "RUNNER_OS=Linux", "RUNNER_ARCH=X64", "RUNNER_TEMP=" + t.TempDir(), "RUNNER_TOOL_CACHE=",
		"GITHUB_OUTPUT=", "INPUT_VERIFY=", "VLLM_VCR_RELEASES=file:///nowhere",
	}
	if out, code := script(t, env, "", "install.sh"); code != 3 || !strings.Contains(out, "release v1.2.3 has no vllm-vcr_1.2.3_linux_amd64.tar.gz") {
		t.Errorf("exit code %d, want 3, as there is nothing to download: %s", code, out)
	}
	write(t, handed, map[string]string{"README.md": "# later\n"})
	if out, code := script(t, env, "", "install.sh"); code != 3 || !strings.Contains(out, "this commit of the action is not released") {
		t.Errorf("exit code %d, want 3, as this is not a release: %s", code, out)
	}
}

func TestMoveTags(t *testing.T) {
	const commit = "0123456789012345678901234567890123456789"
	tests := []struct {
		name, version, tags string
		code                int
		calls               []string // after the list
	}{
		{name: "first of a major", version: "1.0.0", tags: "v1.0.0", calls: []string{
			"api --silent --method POST repos/{owner}/{repo}/git/refs -f ref=refs/tags/v1 -f sha=" + commit,
			"api --silent --method POST repos/{owner}/{repo}/git/refs -f ref=refs/tags/v1.0 -f sha=" + commit,
		}},
		{name: "patch of an older line", version: "1.2.4", tags: "v1 v1.2 v1.2.3 v1.2.4 v1.3 v1.3.0", calls: []string{
			"api --silent --method PATCH repos/{owner}/{repo}/git/refs/tags/v1.2 -f sha=" + commit + " -F force=true",
		}},
		{name: "pre-release", version: "2.0.0-rc.1", tags: "v1 v2.0.0-rc.1"},
		{name: "no such tag", version: "1.2.4", tags: "v1 v1.2.3", code: 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			env, calls := withGH(t, "TAGS="+test.tags)
			out, code := script(t, env, "", "move-tags", test.version, commit)
			require.Equal(t, code, test.code, "exit code of:\n%s", out)
			asked := calls()
			if want := "api --paginate repos/{owner}/{repo}/git/matching-refs/tags/v "; !strings.HasPrefix(asked[0], want) {
				t.Errorf("gh %s, want %s", asked[0], want)
			}
			require.NoDiff(t, cmp.Diff(test.calls, append([]string(nil), asked[1:]...)), "gh (-want +got)")
		})
	}
}

// TestActionTestJudges holds scripts/action-test to its word.
func TestActionTestJudges(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		// As long as a real one: whoever stops reading at the first verdict must not end whoever still writes.
		"pass.json": "{\n\"verdict\": \"pass\"" + strings.Repeat(",\n\"verdict\": \"fail\"", 1e5) + "\n}\n",
		"fail.json": `{"verdict": "fail", "lines": [{"verdict": "pass"}]}`,
	})
	pass, fail := "REPORT="+filepath.Join(dir, "pass.json"), "REPORT="+filepath.Join(dir, "fail.json")
	green := []string{"OUTCOME=success", "VERDICT=pass", "EXIT_CODE=0", "PASSED=9", "FAILED=0", "EXPECTED=0", pass}
	red := []string{"OUTCOME=failure", "VERDICT=fail", "EXIT_CODE=1", "PASSED=0", "FAILED=1", fail}
	tests := []struct {
		name, judge string
		env, but    []string
		want        string // the complaint; "" for none
	}{
		{name: "green", judge: "green", env: green},
		{name: "green that failed", judge: "green", env: green, but: []string{"OUTCOME=failure"}, want: `OUTCOME is "failure": want success`},
		{name: "green without a verdict", judge: "green", env: green, but: []string{"VERDICT="}, want: `VERDICT is "": want pass`},
		{name: "green of nothing", judge: "green", env: green, but: []string{"PASSED=0"}, want: `PASSED is "0": want a number above 0`},
		{name: "green without a report", judge: "green", env: green, but: []string{"REPORT=" + dir + "/none"}, want: `want the path of a report`},
		{name: "green with a red report", judge: "green", env: green, but: []string{fail}, want: `fail.json has "verdict": "fail": want pass`},
		{name: "red", judge: "red", env: red},
		{name: "red that succeeded", judge: "red", env: red, but: []string{"OUTCOME=success"}, want: `OUTCOME is "success": want failure`},
		{name: "red for another reason", judge: "red", env: red, but: []string{"EXIT_CODE=3"}, want: `EXIT_CODE is "3": want 1`},
		{name: "expected", judge: "expected", env: green, but: []string{"EXPECTED=4"}},
		{name: "nothing expected", judge: "expected", env: green, want: `EXPECTED is "0": want a number above 0`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			out, code := script(t, append(append([]string(nil), test.env...), test.but...), "", "action-test", test.judge)
			require.True(t, (code == 0) == (test.want == "") && strings.Contains(out, test.want), "exit code %d, want the complaint %q:\n%s", code, test.want, out)
		})
	}
}

var productOnce sync.Once

// builtProduct is the product of this checkout as images have it, built once for all tests.
func builtProduct(t *testing.T) string {
	t.Helper()
	path := filepath.Join(sharedDir(t), "vllm-vcr")
	productOnce.Do(func() {
		command(t, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, filepath.Join(repository(t), "cmd", "vllm-vcr"))
	})
	return path
}

// TestActionTestInputs runs the product on what scripts/action-test prepares: each must end as the workflow demands.
func TestActionTestInputs(t *testing.T) {
	testenv.Slow(t, "compiles the product and judges with it")
	root, dir, binary := repository(t), t.TempDir(), builtProduct(t)
	outputs := filepath.Join(dir, "outputs")
	env := []string{"RUNNER_TEMP=" + strings.ReplaceAll(dir, "/", `\`), "BINARY=" + strings.ReplaceAll(binary, "/", `\`), "GITHUB_OUTPUT=" + outputs}
	if out, code := script(t, env, "", "action-test", "prepare"); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	value := map[string]string{}
	for line := range strings.Lines(read(t, outputs)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), "=")
		value[name] = text
	}
	tests := []struct {
		name string
		args []string
		code int
		want string
	}{
		{
			name: "corrupted", args: []string{"--line", "0.33", "--golden", "multiturn-s7", "--goldens", value["corrupted"]}, code: 1,
			want: "FAIL: ",
		},
		{
			name: "another golden", args: []string{"--line", "0.33", "--golden", "multiturn-s13", "--goldens", value["corrupted"]},
			want: "PASS: ",
		},
		{
			name: "known", args: []string{
				"--run", "0.33/multiturn-s7/**", "--manifest", value["manifest"], "--goldens", "testdata/goldens",
				"--expectations", value["expectations"],
			},
			want: "PASS: ",
		},
		{
			name: "not known", args: []string{"--run", "0.33/multiturn-s7/**", "--manifest", value["manifest"], "--goldens", "testdata/goldens"},
			code: 1, want: "FAIL: ",
		},
		{
			name: "engine", args: []string{"--line", "0.33", "--golden", "multiturn-s7", "--engine-command", value["engine"]},
			want: "PASS: ",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command(binary, append([]string{"conform"}, test.args...)...)
			cmd.Dir = root
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(out), test.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, test.code, test.want, out)
			}
		})
	}
}

// TestReplayCaptured: what jobs that ran engines have left goes on only if it holds, line by line.
func TestReplayCaptured(t *testing.T) {
	testenv.Slow(t, "compiles the product and judges with it")
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("the script needs jq, which is not on this machine")
	}
	root, dir, binary := repository(t), t.TempDir(), builtProduct(t)
	// One golden will do: those of all lines take long.
	narrow := filepath.Join(dir, "narrow")
	testenv.WriteProgram(t, narrow, "#!/bin/sh\ncase $1 in conform) set -- \"$@\" --line 0.33 --golden edge-s1 ;; esac\nexec '"+binary+"' \"$@\"\n")
	const row = `[{"line":"0.33","version":"0.33.0"}]`
	golden := func(from string) string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(from, "testdata", "goldens", "conformance", "v0.33.0", "cpu", "tiny", "edge-s1-*"))
		if err != nil || len(found) != 1 {
			t.Fatalf("%v, %v: want one golden", found, err)
		}
		return found[0]
	}
	edit := func(path, old, new string) {
		t.Helper()
		before := read(t, path)
		if !strings.Contains(before, old) {
			t.Fatalf("%s has no %q", path, old)
		}
		write(t, filepath.Dir(path), map[string]string{filepath.Base(path): strings.Replace(before, old, new, 1)})
	}
	tests := []struct {
		name, kind string
		rows       string // that above unless given
		change     func(from string)
		code       int
		stdout     string // the end of what it prints
		text       string // in the file for the pull request
	}{
		{name: "as it was", kind: "captured", stdout: row + "\n", text: "0 new or different"},
		{name: "in a bucket", kind: "captured", stdout: row + "\n", text: "0 new or different", change: func(from string) {
			command(t, nil, binary, "golden", "bundle", "--line", "0.33", "--output", filepath.Join(from, "goldens.tar"))
			os.Remove(golden(from))
		}},
		{name: "another byte", kind: "captured", change: func(from string) { edit(golden(from), "\x1f", "\x1e") }, code: 1, stdout: "[]\n"},
		{
			name: "another line", kind: "captured", code: 1, stdout: "[]\n",
			change: func(from string) {
				edit(filepath.Join(from, "conformance", "manifest.toml"), `line = "0.32"`, "line = \"0.32\"\nnotes = \"other\"")
			},
		},
		{name: "a link", kind: "captured", code: 1, stdout: "[]\n", change: func(from string) {
			path := golden(from)
			require.NoError(t, errors.Join(os.Rename(path, filepath.Join(dir, "elsewhere")), os.Symlink(filepath.Join(dir, "elsewhere"), path)))
		}},
		{name: "nothing", kind: "captured", rows: `[{"line":"0.32"}]`, code: 1, stdout: "[]\n"},
		{name: "not a line", kind: "captured", rows: `[{"line":"../0.33"}]`, code: 2},
		{name: "adopted", kind: "adopted", stdout: `[{"line":"0.33","version":"0.33.0","draft":false}]` + "\n", text: "Closes #1"},
		{
			name: "adopted, with something left", kind: "adopted", change: func(from string) { write(t, from, map[string]string{"adopted.txt": "adopt: to do\n"}) },
			stdout: `"draft":true}]` + "\n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			folder, names := "goldens-0.33", []string{"conformance/manifest.toml", "testdata/goldens"}
			if test.kind == "adopted" {
				folder, names = "adopted-0.33", append(names, "compat.toml", "capture/targets.toml", "internal/wire/protocol/profiles")
			}
			from, to := t.TempDir(), t.TempDir()
			for _, name := range names {
				left := filepath.Join(from, folder, name)
				require.NoError(t, os.MkdirAll(filepath.Dir(left), 0o755))
				command(t, nil, "cp", "-R", filepath.Join(root, name), left)
			}
			write(t, filepath.Join(from, folder), map[string]string{"adopted.txt": "Closes #1\nadopt: green: so it is\n"})
			if test.change != nil {
				test.change(filepath.Join(from, folder))
			}
			rows, program := row, narrow
			if test.kind == "adopted" {
				program = "true" // all lines take long
			}
			if test.rows != "" {
				rows = test.rows
			}
			cmd := exec.Command(filepath.Join(root, "scripts", "replay-captured"), test.kind, from, to)
			cmd.Dir, cmd.Env, cmd.Stdin = root, append(os.Environ(), "VCR="+program), strings.NewReader(rows)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			stdout, _ := cmd.Output()
			if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.HasSuffix(string(stdout), test.stdout) {
				t.Fatalf("exit code %d, want %d and %s: %s\n%s", code, test.code, test.stdout, stdout, stderr.String())
			}
			if test.text != "" {
				text, _ := os.ReadFile(filepath.Join(to, "0.33", map[string]string{"captured": "body.md", "adopted": "adopted.txt"}[test.kind]))
				require.Contains(t, string(text), test.text)
			}
			if left, _ := os.ReadDir(to); (len(left) > 0) != (test.code == 0) {
				t.Errorf("it left %v", left)
			}
		})
	}
}
