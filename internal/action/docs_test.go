package action_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// examples are the workflows of docs/action.md.
func examples(t *testing.T) []string {
	t.Helper()
	text := string(readFile(t, filepath.Join(root, "docs", "action.md")))
	var all []string
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(text, -1) {
		all = append(all, block[1])
	}
	if len(all) < 8 {
		t.Fatalf("docs/action.md has %d workflows, want one of each mode at least", len(all))
	}
	return all
}

// TestExamplesAreSound: actionlint knows the inputs and outputs of action.yml, so an example with a wrong one is found.
func TestExamplesAreSound(t *testing.T) {
	if testing.Short() {
		t.Skip("builds actionlint")
	}
	dir := t.TempDir()
	copyFile(t, "action.yml", dir)
	copyFile(t, "scripts/install.sh", dir)
	if err := os.Mkdir(filepath.Join(dir, ".git"), 0o755); err != nil {
		t.Fatal(err)
	}
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
	for _, example := range examples(t) {
		if out, err := lint(example); err != nil {
			t.Errorf("%v\n%s\n%s", err, out, example)
		}
	}
	for _, wrong := range []string{with("engine: x"), "        name: ${{ steps.vcr.outputs.result }}\n"} {
		if out, err := lint(job(wrong)); err == nil {
			t.Errorf("actionlint takes an example with %s: %s", wrong, out)
		}
	}
}

// TestFirstExampleRuns: what a stranger pastes is green.
func TestFirstExampleRuns(t *testing.T) {
	c := newConsumer(t)
	o := c.run(t, examples(t)[0])
	if len(o.jobs) != 1 || o.jobs["conformance/conformance"] != "success" || !strings.Contains(o.log, "PASS: every gate holds") {
		t.Errorf("jobs %v\n%s", o.jobs, o.log)
	}
}
