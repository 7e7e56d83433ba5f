package action_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/vllm-vcr/conformance/internal/forge/action"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// root is the top of the repository, where action.yml is.
const root = "../../.."

// actionFile is action.yml, as far as the tests look at it.
type actionFile struct {
	Inputs  names
	Outputs map[string]struct{ Description, Value string }
	Runs    struct {
		Using string
		Steps []step
	}
}

type step struct {
	ID, If, Uses, Shell, Run string
	Env, With                map[string]string
}

// names are the keys of a mapping in their order.
type names []string

func (n *names) UnmarshalYAML(node *yaml.Node) error {
	for i := 0; i < len(node.Content); i += 2 {
		*n = append(*n, node.Content[i].Value)
	}
	return nil
}

func readAction(t *testing.T) (actionFile, string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "action.yml"))
	require.NoError(t, err)
	var file actionFile
	require.NoError(t, yaml.Unmarshal(text, &file))
	if len(file.Inputs) < 40 || len(file.Outputs) < 20 || len(file.Runs.Steps) < 6 {
		t.Fatalf("action.yml was not read: %d inputs, %d outputs, %d steps", len(file.Inputs), len(file.Outputs), len(file.Runs.Steps))
	}
	return file, string(text)
}

func (f actionFile) step(t *testing.T, id string) step {
	t.Helper()
	at := slices.IndexFunc(f.Runs.Steps, func(s step) bool { return s.ID == id })
	if at < 0 {
		t.Fatalf("action.yml has no step %s", id)
	}
	return f.Runs.Steps[at]
}

// forInstaller are the inputs that scripts/install.sh reads.
var forInstaller = []string{"verify", "version", "checksum", "binary", "github-token"}

// TestInputsAreRead: an input that nobody reads is one that nobody misses, until somebody does.
func TestInputsAreRead(t *testing.T) {
	file, _ := readAction(t)
	ours := slices.DeleteFunc(slices.Clone(file.Inputs), func(name string) bool { return slices.Contains(forInstaller, name) })
	slices.Sort(ours)
	known := action.Names()
	slices.Sort(known)
	require.NoDiff(t, cmp.Diff(known, []string(ours)), "inputs that Go reads (-) and that action.yml has (+)")
	wantEnv(t, file.step(t, "run"), ours)
	wantEnv(t, file.step(t, "install"), forInstaller)
	script, err := os.ReadFile(filepath.Join(root, "scripts", "install.sh"))
	require.NoError(t, err)
	for _, name := range forInstaller {
		if !regexp.MustCompile(`\$\{?` + action.Variable(name) + `\b`).Match(script) {
			t.Errorf("scripts/install.sh does not read %s", action.Variable(name))
		}
	}
}

// wantEnv: a step gets exactly these inputs, each by its variable.
func wantEnv(t *testing.T, s step, inputs []string) {
	t.Helper()
	got, want := map[string]string{}, map[string]string{}
	for name, value := range s.Env {
		if strings.HasPrefix(name, "INPUT_") {
			got[name] = value
		}
	}
	for _, name := range inputs {
		want[action.Variable(name)] = "${{ inputs." + name + " }}"
	}
	require.NoDiff(t, cmp.Diff(want, got), "env of the step %s (-want +got)", s.ID)
}

// TestPlanSeesWhatDecidesTheKey: the step that names the cache must not look at other inputs than the run does.
func TestPlanSeesWhatDecidesTheKey(t *testing.T) {
	file, _ := readAction(t)
	env := file.step(t, "plan").Env
	all := map[string]string{}
	for _, name := range action.Names() {
		all[action.Variable(name)] = "${{ inputs." + name + " }}"
	}
	for name, value := range env {
		require.True(t, !strings.HasPrefix(name, "INPUT_") || all[name] == value, "the step plan has %s: %s", name, value)
	}
	for _, name := range action.KeyInputs() {
		require.True(t, env[action.Variable(name)] != "", "the step plan does not get the input %s, which decides the key", name)
	}
}

// TestOutputsAreSet: each output comes from a step that sets it.
func TestOutputsAreSet(t *testing.T) {
	file, _ := readAction(t)
	sources := readAll(t, "scripts/install.sh", "cmd/vllm-vcr/*.go", "internal/upstream/*/*.go")
	reference := regexp.MustCompile(`steps\.([a-z]+)\.outputs\.([a-z-]+)`)
	external := []string{"restore.cache-hit", "upload.artifact-url"}
	for name, out := range file.Outputs {
		found := reference.FindAllStringSubmatch(out.Value, -1)
		require.True(t, found != nil, "output %s: %s is of no step", name, out.Value)
		for _, ref := range found {
			file.step(t, ref[1])
			set := regexp.MustCompile(`(output\{"` + ref[2] + `",|\{"` + ref[2] + `", |output ` + ref[2] + ` )`)
			computed := strings.HasPrefix(ref[2], "report-") && strings.Contains(sources, `"report-" + string(format)`) ||
				ref[2] == "pr" && strings.Contains(sources, `"pull request", "pr", func(`)
			if !slices.Contains(external, ref[1]+"."+ref[2]) && !set.MatchString(sources) && !computed {
				t.Errorf("output %s is %s of the step %s, which sets no such output", name, ref[2], ref[1])
			}
		}
	}
}

func readAll(t *testing.T, patterns ...string) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range patterns {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no files %s: %v", pattern, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			all.Write(text)
		}
	}
	return all.String()
}

// TestStepsAreSafe: actions are pinned, scripts hold no expression and run in bash on every system.
func TestStepsAreSafe(t *testing.T) {
	file, text := readAction(t)
	require.Equal(t, file.Runs.Using, "composite", "kind of action")
	pinned := regexp.MustCompile(`^[a-z-]+/[a-z/-]+@[0-9a-f]{40}$`)
	for i, s := range file.Runs.Steps {
		switch {
		case s.Uses != "" && !pinned.MatchString(s.Uses):
			t.Errorf("step %d uses %s: want a commit", i, s.Uses)
		case s.Uses != "" && !regexp.MustCompile(regexp.QuoteMeta("uses: "+s.Uses)+` # v\d+\.\d+\.\d+\n`).MatchString(text):
			t.Errorf("step %d uses %s without a comment that says the version", i, s.Uses)
		case strings.Contains(s.Run, "${{"):
			t.Errorf("step %d has an expression in its script: %s", i, s.Run)
		case s.Run != "" && s.Shell != "bash":
			t.Errorf("step %d runs in %q, not in bash", i, s.Shell)
		}
	}
}

var update = flag.Bool("update", false, "rewrite the tables of docs/action.md")

// TestDocumentationIsCurrent: docs/action.md has the tables that action.yml gives.
func TestDocumentationIsCurrent(t *testing.T) {
	var file struct{ Inputs, Outputs yaml.Node }
	require.NoError(t, yaml.Unmarshal(readFile(t, filepath.Join(root, "action.yml")), &file))
	inputs, err := inputTable(file.Inputs)
	require.NoError(t, err)
	outputs, err := outputTable(file.Outputs)
	require.NoError(t, err)
	page := filepath.Join(root, "docs", "action.md")
	before := string(readFile(t, page))
	after, err := replace(before, "inputs", inputs)
	if err == nil {
		after, err = replace(after, "outputs", outputs)
	}
	require.NoErrorf(t, err, "%s", page)
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(after), 0o644))
	} else if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("docs/action.md is not what go generate ./internal/forge/action writes:\n%s", diff)
	}
}

// replace puts a table between the marks of its name.
func replace(page, name, table string) (string, error) {
	begin, end := "<!-- "+name+": written by go generate ./internal/forge/action from action.yml -->\n", "<!-- end of "+name+" -->"
	before, rest, found := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", errors.New("it lacks the lines " + strings.TrimSpace(begin) + " and " + end)
	}
	return before + begin + table + end + after, nil
}

func inputTable(inputs yaml.Node) (string, error) {
	var b strings.Builder
	b.WriteString("| input | default | |\n|---|---|---|\n")
	err := each(inputs, func(name string, fields map[string]string) {
		value := ""
		if fields["default"] != "" {
			value = "`" + fields["default"] + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, value, cell(fields["description"]))
	})
	return b.String(), err
}

func outputTable(outputs yaml.Node) (string, error) {
	var b strings.Builder
	b.WriteString("| output | |\n|---|---|\n")
	err := each(outputs, func(name string, fields map[string]string) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, cell(fields["description"]))
	})
	return b.String(), err
}

// each calls f for each entry of a mapping, in its order.
func each(mapping yaml.Node, f func(name string, fields map[string]string)) error {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		name, fields := mapping.Content[i].Value, map[string]string{}
		if err := mapping.Content[i+1].Decode(&fields); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		f(name, fields)
	}
	return nil
}

// cell is a text for a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// A workflow is a file of .github/workflows, as far as the tests look at it.
type workflow struct {
	Permissions map[string]string
	Jobs        map[string]struct {
		Permissions map[string]string
		Environment string
		Steps       []step
	}
}

// TestRights: no job has rights to the repository and an identity, and none with rights to it replays what another has left. What is
// published, people approve.
func TestRights(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yml"))
	if err != nil || len(files) < 8 {
		t.Fatalf("%d workflows, %v", len(files), err)
	}
	replays := regexp.MustCompile(`vllm-vcr"? (conform|golden|play|record|drift (check|adopt)|capture|compat check)|replay-captured|make `)
	writing, downloads := 0, 0
	for _, path := range files {
		var file workflow
		require.NoError(t, yaml.Unmarshal(readFile(t, path), &file))
		require.True(t, file.Permissions != nil && len(file.Permissions) == 0, "%s: permissions %v, want {}", path, file.Permissions)
		for name, job := range file.Jobs {
			where := filepath.Base(path) + ": " + name
			writes := job.Permissions["contents"] == "write" || job.Permissions["pull-requests"] == "write"
			require.True(t, job.Permissions != nil, "%s: it does not name its permissions", where)
			require.True(t, !writes || job.Permissions["id-token"] == "", "%s: it may write to the repository and has an identity", where)
			if filepath.Base(path) == "release.yml" && (job.Permissions["attestations"] != "" || name == "publish" || name == "pypi") && job.Environment != "release" {
				t.Errorf("%s: nobody approves it", where)
			}
			if !writes {
				continue
			}
			writing++
			for _, step := range job.Steps {
				require.Equal(t, replays.FindString(step.Run), "", "%s: with rights it runs", where)
				if !strings.HasPrefix(step.Uses, "actions/download-artifact@") {
					continue
				}
				downloads++
				if filepath.Base(path) != "release.yml" && !strings.HasPrefix(step.With["artifact-ids"], "${{ needs.replay.outputs.") {
					t.Errorf("%s: it takes an artifact by a name, which a job that runs engines may have used: %v", where, step.With)
				}
			}
		}
	}
	require.True(t, writing >= 4 && downloads >= 3, "%d jobs may write, with %d downloads: the files are not read as they are", writing, downloads)
}
