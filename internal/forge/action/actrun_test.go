package action_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A consumer is a repository that uses the action, and a runner of its own: act, without containers.
type consumer struct {
	dir      string // the repository
	standins string // what the stand-ins of other actions have done
	act      string
	action   string // the checkout of the action
	cache    string // of act; the tool cache is below
	env      []string
}

// newConsumer makes a repository whose action comes with a released binary, which is this checkout's.
func newConsumer(t *testing.T) *consumer {
	t.Helper()
	c := &consumer{act: testenv.Act(t), dir: t.TempDir(), standins: t.TempDir(), action: t.TempDir(), cache: t.TempDir()}
	copyFile(t, "action.yml", c.action)
	copyFile(t, "scripts/install.sh", c.action)
	releases, asset := release(t)
	packed := readFile(t, filepath.Join(releases, "v"+builtVersion, asset))
	writeFile(t, filepath.Join(c.action, "release", "VERSION"), []byte(builtVersion+"\n"))
	writeFile(t, filepath.Join(c.action, "release", "checksums.txt"), []byte(digest(packed)+"  "+asset+"\n"))
	writeFile(t, filepath.Join(c.action, "release", "TREE"), []byte(treeOf(t, c.action)+"\n"))
	// What is set for these tests must not reach the workflow, and what is set in a workflow is a runner's.
	c.env = []string{"VLLM_VCR_RELEASES=file://" + releases, "STANDIN_DIR=" + c.standins}
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); !regexp.MustCompile(`^(VLLM_VCR_|CONFORMANCE_|AWS_|GITHUB_|RUNNER_|INPUT_)`).MatchString(name) {
			c.env = append(c.env, variable)
		}
	}
	return c
}

func copyFile(t *testing.T, path, to string) {
	t.Helper()
	writeFile(t, filepath.Join(to, path), readFile(t, filepath.Join(root, path)))
}

// addGoldens puts compat.toml, the manifest and the goldens of this project into the repository.
func (c *consumer) addGoldens(t *testing.T) {
	t.Helper()
	require.NoError(t, os.CopyFS(c.dir, vcr.Files))
	err := filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Chmod(path, 0o644) // embedded files are read-only
	})
	require.NoError(t, err)
}

// edit changes a file of the repository, which must have the pattern.
func (c *consumer) edit(t *testing.T, path, pattern, replacement string) {
	t.Helper()
	before := readFile(t, filepath.Join(c.dir, path))
	after := regexp.MustCompile(pattern).ReplaceAll(before, []byte(replacement))
	if bytes.Equal(before, after) {
		t.Fatalf("%s has no %s", path, pattern)
	}
	writeFile(t, filepath.Join(c.dir, path), after)
}

// An outcome is what a workflow run did.
type outcome struct {
	log         string
	jobs        map[string]string            // name to success or failure
	outputs     map[string]map[string]string // that the steps named show- wrote, by the job's name
	annotations []annotation
}

type annotation struct{ level, file, line, text string }

// actLine is a line of act's log.
type actLine struct {
	Job, JobResult, Level, Msg, Command, Arg string
	RawOutput                                bool `json:"raw_output"`
	KvPairs                                  map[string]string
}

// showOutputs are the steps that write the outputs of the step vcr to the log, whatever its outcome.
const showOutputs = `
      - if: always()
        env:
          OUTPUTS: ${{ toJSON(steps.vcr.outputs) }}
        run: printf 'OUTPUTS %s\n' "$(tr -d '\n' <<<"$OUTPUTS")"
`

// run commits the repository with a workflow and runs that.
func (c *consumer) run(t *testing.T, workflow string) outcome {
	t.Helper()
	writeFile(t, filepath.Join(c.dir, ".github", "workflows", "conformance.yml"), []byte(workflow))
	c.commit(t)
	return c.workflow(t, "conformance.yml", "push")
}

// workflow runs a workflow of the committed repository. Stand-ins take the place of other actions that it uses.
func (c *consumer) workflow(t *testing.T, name, event string, more ...string) outcome {
	t.Helper()
	path := filepath.Join(".github", "workflows", name)
	args := append([]string{
		event, "--json", "--rm", "-W", path, "-P", "ubuntu-latest=-self-hosted", "--container-daemon-socket", "-", "--no-cache-server",
		"--action-cache-path", c.cache, "--local-repository", "vllm-vcr/conformance@v1=" + c.action,
	}, more...)
	used := string(readFile(t, filepath.Join(root, "action.yml"))) + string(readFile(t, filepath.Join(c.dir, path)))
	for _, found := range regexp.MustCompile(`uses: (actions/([a-z-]+))(?:/[a-z]+)?(@[0-9a-f]{40}) `).FindAllStringSubmatch(used, -1) {
		standin, err := filepath.Abs(filepath.Join("testdata", "act", found[2]))
		require.NoError(t, err)
		if _, err := os.Stat(standin); err == nil { // act itself stands in for the checkout
			args = append(args, "--local-repository", found[1]+found[3]+"="+standin)
		}
	}
	cmd := exec.CommandContext(t.Context(), c.act, args...)
	cmd.Dir, cmd.Env = c.dir, c.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	o := readOutcome(t, &stdout)
	if len(o.jobs) == 0 {
		t.Fatalf("act ran no job: %v\n%s", err, stderr.String())
	}
	return o
}

func (c *consumer) commit(t *testing.T) {
	t.Helper()
	commands := [][]string{{"add", "--all"}, {"-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "--allow-empty", "-m", "t"}}
	if _, err := os.Stat(filepath.Join(c.dir, ".git")); err != nil {
		c.own(t, "example/consumer")
	}
	c.git(t, commands...)
}

// own makes the folder a repository of GitHub's.
func (c *consumer) own(t *testing.T, name string) {
	t.Helper()
	c.git(t, []string{"init", "-q", "-b", "main"}, []string{"remote", "add", "origin", "https://github.com/" + name})
}

func (c *consumer) git(t *testing.T, commands ...[]string) {
	t.Helper()
	for _, args := range commands {
		cmd := exec.Command("git", args...)
		cmd.Dir = c.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
}

func readOutcome(t *testing.T, log *bytes.Buffer) outcome {
	t.Helper()
	o := outcome{jobs: map[string]string{}, outputs: map[string]map[string]string{}}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var line actLine
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}
		o.log += line.Msg + "\n"
		if line.JobResult != "" {
			o.jobs[line.Job] = line.JobResult
		}
		if line.Command == "error" || line.Command == "warning" {
			o.annotations = append(o.annotations, annotation{line.Command, line.KvPairs["file"], line.KvPairs["line"], line.Arg})
		}
		if text, found := strings.CutPrefix(strings.TrimSpace(line.Msg), "OUTPUTS "); found && line.RawOutput {
			outputs := map[string]string{}
			require.NoErrorf(t, json.Unmarshal([]byte(text), &outputs), "outputs %s", text)
			o.outputs[line.Job] = outputs
		}
	}
	return o
}

// only returns the outputs of a run that has shown them once.
func (o outcome) only(t *testing.T) map[string]string {
	t.Helper()
	if len(o.outputs) != 1 {
		t.Fatalf("outputs of %d jobs, want one:\n%s", len(o.outputs), o.log)
	}
	return slices.Collect(maps.Values(o.outputs))[0]
}

// want checks outputs, each by a pattern that is to match all of it.
func (o outcome) want(t *testing.T, want map[string]string) {
	t.Helper()
	got := o.only(t)
	for name, pattern := range want {
		if !regexp.MustCompile(`^(?s:` + pattern + `)$`).MatchString(got[name]) {
			t.Errorf("output %s is %q, want %s", name, got[name], pattern)
		}
	}
	if t.Failed() {
		t.Log(o.log[strings.LastIndex(o.log[:max(len(o.log)-20000, 0)], "\n")+1:]) // the end of it
	}
}

// calls are what the stand-ins were called for, in order.
func (c *consumer) calls(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.standins, "calls"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var kinds []string
	for line := range strings.Lines(string(text)) {
		kind, _, _ := strings.Cut(line, " ")
		kinds = append(kinds, kind)
	}
	return kinds
}
