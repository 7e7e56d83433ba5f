package action_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// ofWorkflow is a key that a workflow has, and other YAML has not.
var ofWorkflow = regexp.MustCompile(`(?m)^(on|jobs):`)

// pinned is the action as the pages have it, with the commit of the last release once there is one.
var pinned = regexp.MustCompile(`vllm-vcr/conformance@([0-9a-f]{40} # v[0-9.]+)`)

// examples are the workflows of a page, with the action at v1.
func examples(t *testing.T, page string) []string {
	t.Helper()
	var all []string
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(readFile(t, page)), -1) {
		if ofWorkflow.MatchString(block[1]) {
			all = append(all, pinned.ReplaceAllString(block[1], "vllm-vcr/conformance@v1"))
		}
	}
	return all
}

// allExamples are those of all pages, by their place.
func allExamples(t *testing.T) map[string]string {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	all := map[string]string{}
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		for i, example := range examples(t, page) {
			all[fmt.Sprintf("%s, workflow %d", filepath.Base(page), i+1)] = example
		}
	}
	if all["README.md, workflow 1"] == "" || all["action.md, workflow 7"] == "" {
		t.Fatalf("%d workflows, want one of README.md, and seven of docs/action.md at least", len(all))
	}
	return all
}

// TestExamplesAreSound: actionlint knows the inputs and outputs of action.yml, so an example with a wrong one is found.
func TestExamplesAreSound(t *testing.T) {
	testenv.Slow(t, "builds actionlint")
	dir := t.TempDir()
	copyFile(t, "action.yml", dir)
	copyFile(t, "scripts/install.sh", dir)
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".git"), 0o755))
	tool := filepath.Join(dir, "actionlint")
	build := exec.Command("go", "build", "-modfile=tools/go.mod", "-o", tool, "github.com/rhysd/actionlint/cmd/actionlint")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build actionlint: %v\n%s", err, out)
	}
	lint := func(workflow string) (string, error) {
		local := strings.ReplaceAll(workflow, "vllm-vcr/conformance@v1", "./")
		writeFile(t, filepath.Join(dir, ".github", "workflows", "example.yml"), []byte(local))
		cmd := exec.Command(tool, "-shellcheck=", "-pyflakes=", "-no-color")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for place, example := range allExamples(t) {
		if out, err := lint(example); err != nil {
			t.Errorf("%s: %v\n%s\n%s", place, err, out, example)
		}
	}
	for _, wrong := range []string{with("engine: x"), "        name: ${{ steps.vcr.outputs.result }}\n"} {
		if out, err := lint(job(wrong)); err == nil {
			t.Errorf("actionlint takes an example with %s: %s", wrong, out)
		}
	}
}

// TestExamplesAreSafe: zizmor finds nothing in them with its default rules, once the release has pinned the action. Examples
// with an engine let it know the line and how it is to find records, without which half of the cases do not run.
func TestExamplesAreSafe(t *testing.T) {
	zizmor := testenv.Zizmor(t)
	const commit = "vllm-vcr/conformance@0123456789012345678901234567890123456789 # v1.0.0"
	for _, with := range []string{commit, "vllm-vcr/conformance@v1"} {
		dir := filepath.Join(t.TempDir(), ".github", "workflows")
		for place, example := range allExamples(t) {
			writeFile(t, filepath.Join(dir, strings.ReplaceAll(place, " ", "-")+".yml"), []byte(strings.ReplaceAll(example, "vllm-vcr/conformance@v1", with)))
			if command := regexp.MustCompile(`(?m)engine-command:.*`).FindString(example); command != "" && (!strings.Contains(command, "{line}") || !strings.Contains(command, "{match}")) {
				t.Errorf("%s: %s: want {line} and {match}", place, command)
			}
		}
		out, err := exec.Command(zizmor, "--offline", "--quiet", "--color=never", filepath.Dir(filepath.Dir(dir))).CombinedOutput()
		if pinned := with == commit; (err == nil) != pinned {
			t.Errorf("with %s: %v\n%s", with, err, out)
		}
	}
}

// TestFirstExamplesRun: what a stranger pastes is green, and red where the engine under test is wrong.
func TestFirstExamplesRun(t *testing.T) {
	testenv.Slow(t, "runs whole workflows")
	engine := "#!/bin/sh\nexec '" + binary(t) + "' play --frontend-handshake \"$2\""
	tests := []struct{ name, page, engine, job, says string }{
		{"action", "docs/action.md", "", "success", "PASS: every gate holds"},
		{"readme", "README.md", engine + ` --trace "$4" --replay-match "$8"`, "success", "PASS: every gate holds"},
		{"readme, an engine that invents", "README.md", engine, "failure", "FAIL: does not conform"},
		{"readme, no engine", "README.md", "", "failure", "start my-engine: fork/exec ./my-engine: no such file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newConsumer(t)
			c.env = append(c.env, "VLLM_VCR_GOLDEN=edge-s1") // one golden of each line will do
			if test.engine != "" {
				writeFile(t, filepath.Join(c.dir, "my-engine"), []byte(test.engine+"\n"))
			}
			o := c.run(t, examples(t, filepath.Join(root, test.page))[0])
			require.True(t, len(o.jobs) == 1 && o.jobs["conformance/conformance"] == test.job && strings.Contains(o.log, test.says), "jobs %v, want %s\n%s", o.jobs, test.job, o.log)
		})
	}
}
