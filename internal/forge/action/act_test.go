package action_test

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/forge/github/githubtest"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// job is a workflow with one job that uses the action with these inputs, which are lines of YAML.
func job(with string) string {
	return `on: push
permissions:
  contents: read
jobs:
  conformance:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v5
      - id: vcr
        uses: vllm-vcr/conformance@v1
` + with + showOutputs
}

// with are the inputs of a step.
func with(lines ...string) string {
	return "        with:\n          " + strings.Join(lines, "\n          ") + "\n"
}

func TestActGreen(t *testing.T) {
	c := newConsumer(t)
	for _, again := range []bool{false, true} {
		o := c.run(t, job(with("line: 0.33")))
		o.want(t, map[string]string{
			"verdict": "pass", "exit-code": "0", "failed": "0", "errors": "0", "passed": "[1-9][0-9]+", "tokens": "[1-9][0-9]+",
			"lines": `\[.*"line":"0.33","tag":"v0.33.0","gating":true,"verdict":"pass".*\]`, "version": builtVersion,
			"binary": ".*/vllm-vcr.[A-Za-z0-9]+/vllm-vcr", "report-junit": "/.*/junit.xml", "cache-hit": "", "artifact-name": "vllm-vcr-.*",
			"reason": "every gate holds",
		})
		require.True(t, len(o.annotations) == 0 && o.jobs["conformance.yml/conformance"] == "success", "annotations %v, jobs %v", o.annotations, o.jobs)
		require.Equal(t, strings.Contains(o.log, "is already in"), again, "binary taken from the tool cache")
	}
	if calls := c.calls(t); calls != nil {
		t.Errorf("the run called %v, though nothing is remote and nothing is to be uploaded", calls)
	}
}

func TestActRed(t *testing.T) {
	c := newConsumer(t)
	c.addGoldens(t)
	flipGolden(t, c.dir, "0.33", "multiturn-s7")
	o := c.run(t, job(with("line: 0.33", "golden: multiturn-s7, edge-s1", "upload-reports: true")))
	o.want(t, map[string]string{
		"verdict": "fail", "exit-code": "1", "failed": "1", "reason": "does not conform on 0.33",
		"artifact-name": "vllm-vcr-conformance-0.33-Linux-[A-Z0-9]+-1-[a-z2-7]{8}", "artifact-url": "https://example.org/artifacts/vllm-vcr-.*",
	})
	require.Equal(t, o.jobs["conformance.yml/conformance"], "failure", "jobs %v", o.jobs)
	line := lineOf(t, filepath.Join(c.dir, "conformance", "manifest.toml"), `id = "multiturn-s7"`) - 2
	found := slices.ContainsFunc(o.annotations, func(a annotation) bool {
		return a.level == "error" && a.file == "conformance/manifest.toml" && a.line == strconv.Itoa(line) && strings.HasPrefix(a.text, "I001 ")
	})
	require.True(t, found && len(o.annotations) == 1, "annotations %+v, want one at conformance/manifest.toml:%d", o.annotations, line)
	var suites struct {
		Failures int `xml:"failures,attr"`
	}
	report := readFile(t, filepath.Join(c.standins, "artifacts", o.only(t)["artifact-name"], "junit.xml"))
	if err := xml.Unmarshal(report, &suites); err != nil || suites.Failures != 1 {
		t.Errorf("the uploaded report has %d failures, %v, want 1", suites.Failures, err)
	}
}

// lineOf is the number of the first line of a file that has the text.
func lineOf(t *testing.T, path, text string) int {
	t.Helper()
	before, _, found := strings.Cut(string(readFile(t, path)), text)
	if !found {
		t.Fatalf("%s has no %s", path, text)
	}
	return strings.Count(before, "\n") + 1
}

// flipGolden changes a bit of a golden.
func flipGolden(t *testing.T, dir, line, id string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "testdata", "goldens", "conformance", "v"+line+".*", "cpu", "tiny", id+"-*.jsonl.gz"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("goldens %v, %v, want one", paths, err)
	}
	content := readFile(t, paths[0])
	content[len(content)/2] ^= 1
	writeFile(t, paths[0], content)
}

func TestActMatrix(t *testing.T) {
	c := newConsumer(t)
	o := c.run(t, `on: push
permissions:
  contents: read
jobs:
  lines:
    runs-on: ubuntu-latest
    outputs:
      matrix: ${{ steps.vcr.outputs.matrix }}
    steps:
      - uses: actions/checkout@v5
      - id: vcr
        uses: vllm-vcr/conformance@v1
        with:
          mode: matrix
          line: 0.33, 0.32
  conformance:
    needs: lines
    strategy:
      matrix:
        include: ${{ fromJSON(needs.lines.outputs.matrix) }}
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v5
      - id: vcr
        uses: vllm-vcr/conformance@v1
        with:
          line: ${{ matrix.line }}
          golden: multiturn-s7
          upload-reports: true
`+showOutputs)
	if len(o.outputs) != 2 || len(o.jobs) != 3 {
		t.Fatalf("jobs %v and outputs of %d, want three and two:\n%s", o.jobs, len(o.outputs), o.log)
	}
	seen := map[string]bool{}
	for name, outputs := range o.outputs {
		seen[outputs["lines"]] = true
		if outputs["verdict"] != "pass" || strings.Contains(outputs["lines"], "},{") {
			t.Errorf("job %s: verdict %s of %s, want pass of one line", name, outputs["verdict"], outputs["lines"])
		}
	}
	artifacts, err := os.ReadDir(filepath.Join(c.standins, "artifacts"))
	require.True(t, err == nil && len(artifacts) == 2 && len(seen) == 2, "artifacts %v, %v, lines %v: want two", artifacts, err, seen)
}

func TestActExpectedFailure(t *testing.T) {
	c := newConsumer(t)
	c.addGoldens(t)
	c.edit(t, "conformance/manifest.toml", `tokens_sha256 = "[0-9a-f]+"`, `tokens_sha256 = "`+strings.Repeat("0", 64)+`"`)
	inputs := with("run: |", "  0.33/multiturn-s7/schema", "  0.33/multiturn-s7/fidelity-*")
	writeFile(t, filepath.Join(c.dir, "conformance.toml"), []byte(`[[expect]]
pattern = "0.33/multiturn-s7/fidelity-*"
outcome = "fail"
reason = "the digest is wrong"
issue = "#1"
`))
	c.run(t, job(inputs)).want(t, map[string]string{"verdict": "pass", "exit-code": "0", "passed": "1", "failed": "0", "expected": "4"})
}

// TestActEngineByCommand: the engine under test is judged, and sees neither the inputs nor the files of the step.
func TestActEngineByCommand(t *testing.T) {
	c := newConsumer(t)
	seen := filepath.Join(t.TempDir(), "seen")
	writeFile(t, filepath.Join(c.dir, "engine"), []byte("#!/bin/sh\nenv >'"+seen+"'\nexec '"+binary(t)+
		"' play --frontend-handshake \"$1\" --trace \"$2\" --replay-match \"$3\"\n"))
	c.run(t, job(with("line: 0.33", "golden: multiturn-s7", "engine-command: ./engine {handshake} {trace} {match}"))).want(t, map[string]string{
		"verdict": "pass", "passed": "8", "failed": "0", "report-json": "/.*/report.json",
	})
	env := string(readFile(t, seen))
	require.Contains(t, env, "\nGITHUB_WORKSPACE=")
	for line := range strings.Lines(env) {
		if name, _, _ := strings.Cut(line, "="); regexp.MustCompile(`^(INPUT_.*|GITHUB_(OUTPUT|ENV|PATH|STATE|STEP_SUMMARY))$`).MatchString(name) {
			t.Errorf("the engine sees %s", line)
		}
	}
}

// TestActBadInput: what the plan refuses and what the program refuses, each told in one annotation. TestPlan has every input.
func TestActBadInput(t *testing.T) {
	tests := []struct {
		name string
		with []string
		code string
		says string
	}{
		{"line", []string{"line: 0.99"}, "2", `has no line "0.99"`},
		{"a command in a value", []string{`mode: "x\n##[warning]injected"`}, "2", "input mode is"},
	}
	c := newConsumer(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := c.run(t, job(with(test.with...)))
			o.want(t, map[string]string{"verdict": "error", "exit-code": test.code, "passed": ""})
			if len(o.annotations) != 1 || o.annotations[0].level != "error" || !strings.Contains(o.annotations[0].text, test.says) {
				t.Errorf("annotations %+v, want one with %q", o.annotations, test.says)
			}
		})
	}
}

// TestActSource builds the checkout of the action in the job. Here it has small programs under the names of this one's, and the
// one that judges hands over to the binary of all tests.
func TestActSource(t *testing.T) {
	c := newConsumer(t)
	c.env = append(c.env, "VLLM_VCR_RELEASES=http://127.0.0.1:1")
	writeFile(t, filepath.Join(c.action, "go.mod"), []byte("module example.org/small\n\ngo 1.26.0\n"))
	commands, err := os.ReadDir(filepath.Join(root, "cmd"))
	require.NoError(t, err)
	for _, command := range commands {
		writeFile(t, filepath.Join(c.action, "cmd", command.Name(), "main.go"), []byte("package main\n\nfunc main() {}\n"))
	}
	writeFile(t, filepath.Join(c.action, "cmd", "vllm-vcr", "main.go"), []byte(`package main

import (
	"os"
	"syscall"
)

var version string

func main() {
	if os.Args[1] == "version" {
		os.Stdout.WriteString(version + "\n")
		return
	}
	panic(syscall.Exec("`+binary(t)+`", os.Args, os.Environ()))
}
`))
	os.Remove(filepath.Join(c.action, "release", "VERSION"))
	c.run(t, job(with("verify: source", "line: 0.33", "golden: edge-s1"))).want(t, map[string]string{
		"verdict": "pass", "version": "0.0.0-source",
	})
}

// TestActWatch: a new release becomes a pull request, whose number is an output; a token that is not good is told.
func TestActWatch(t *testing.T) {
	server, err := githubtest.Start("../../../testdata/github", map[string]string{"compat.toml": string(readFile(t, filepath.Join(root, "compat.toml")))})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	c := newConsumer(t)
	c.addGoldens(t)
	c.own(t, githubtest.Owner+"/"+githubtest.Name)
	tags := ""
	for _, found := range regexp.MustCompile(`(?m)^tag = "(v.*)"$`).FindAllStringSubmatch(string(readFile(t, filepath.Join(root, "compat.toml"))), -1) {
		tags += strings.Repeat("1", 40) + "\trefs/tags/" + found[1] + "\n"
	}
	writeFile(t, filepath.Join(c.dir, "tags.txt"), []byte(tags+strings.Repeat("2", 40)+"\trefs/tags/v0.33.7\n"))
	// act sets GITHUB_API_URL and GITHUB_SHA itself.
	writeFile(t, filepath.Join(c.dir, "vcr"), []byte("#!/bin/sh\nGITHUB_API_URL="+server.URL+" GITHUB_SHA="+server.Head("main").SHA+
		" exec '"+binary(t)+"' \"$@\"\n"))
	inputs := with("mode: watch", "tags-file: tags.txt", "pull-request: true", "github-token: ${{ env.TOKEN }}", "binary: vcr") +
		"        env:\n          VLLM_VCR_LABEL: vllm\n"
	for _, test := range []struct {
		token string
		want  map[string]string
	}{
		{"wrong", map[string]string{"verdict": "error", "exit-code": "3", "changed": "true", "pr": ""}},
		{githubtest.Token, map[string]string{"verdict": "pass", "exit-code": "0", "changed": "true", "pr": "1", "tag": "v0.33.7"}},
	} {
		c.run(t, "env:\n  TOKEN: "+test.token+"\n"+job(inputs)).want(t, test.want)
	}
	if len(server.Issues) != 1 || !slices.Equal(server.Issues[0].Labels, []string{"vllm"}) || !strings.Contains(server.Issues[0].Body, "v0.33.7") {
		t.Errorf("issues %+v, want one pull request", server.Issues)
	}
	if problems := server.Violations(); len(problems) > 0 {
		t.Error(strings.Join(problems, "\n"))
	}
}

// TestActCache: goldens out of a bucket are there for the next run, which needs no network any more.
func TestActCache(t *testing.T) {
	server := testenv.S3(t)
	c := newConsumer(t)
	c.addGoldens(t)
	require.NoError(t, os.Rename(filepath.Join(c.dir, "testdata", "goldens"), filepath.Join(server.Dir, "goldens")))
	for name, value := range server.Env() {
		if name != "AWS_ENDPOINT_URL_S3" {
			c.env = append(c.env, name+"="+value)
		}
	}
	here := filepath.Join(c.cache, "tool_cache", "vllm-vcr", "goldens")
	inputs := []string{"line: 0.33", "golden: multiturn-s7, edge-s1", "bucket: s3://goldens", "endpoint-url: " + server.Endpoint}
	steps := []struct {
		name    string
		before  func() error
		more    string
		outputs map[string]string
		calls   []string
	}{
		{"the first run", nil, "", map[string]string{"verdict": "pass", "cache-hit": "false"}, []string{"restore", "save"}},
		{"offline", func() error { server.Stop(); return os.RemoveAll(here) }, "offline: true", map[string]string{"verdict": "pass", "cache-hit": "true"}, []string{"restore"}},
		{
			"offline without a cache", func() error { return os.RemoveAll(here) }, "offline: true\n          cache: false",
			map[string]string{"verdict": "error", "exit-code": "3", "cache-hit": ""},
			nil,
		},
		{
			"a bucket that does not answer", func() error { return os.RemoveAll(filepath.Join(c.standins, "cache")) }, "",
			map[string]string{"verdict": "error", "exit-code": "3", "cache-hit": "false"},
			[]string{"restore"},
		},
	}
	for _, test := range steps {
		t.Run(test.name, func(t *testing.T) {
			if test.before != nil {
				require.NoError(t, test.before())
			}
			os.Remove(filepath.Join(c.standins, "calls"))
			more := inputs
			if test.more != "" {
				more = append(slices.Clone(inputs), test.more)
			}
			c.run(t, job(with(more...))).want(t, test.outputs)
			if calls := c.calls(t); !slices.Equal(calls, test.calls) {
				t.Errorf("called %v, want %v", calls, test.calls)
			}
		})
	}
}
