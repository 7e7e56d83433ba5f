package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// guides are the pages whose readers begin in an empty folder: the programs that they link to, by the name that the page gives
// them, and what their commands print.
var guides = []struct {
	page     string
	programs [][2]string // name, file of examples
	wants    []string
}{
	{
		page:     "engine-author.md",
		programs: [][2]string{{"engine.py", "engine-python/engine.py"}, {"my-engine", "engine-go/main.go"}},
		wants:    []string{"PASS: every gate holds: 20 passed;", "PASS: every gate holds: 24 passed;"},
	},
	{
		page:     "frontend-author.md",
		programs: [][2]string{{"frontend.py", "frontend-python/frontend.py"}},
		wants:    []string{"PASS: every gate holds: 6 passed;"},
	},
	{
		page: "router-author.md",
		programs: [][2]string{
			{"router.py", "router-python/router.py"},
			{"frontend.py", "frontend-python/frontend.py"},
			{"consumer.py", "kv-consumer-python/consumer.py"},
			{"my-indexer", "kv-consumer-go/main.go"},
		},
		wants: []string{"batch 0 of rank 0: 2 blocks", `"completion_tokens": 16`, "PASS: every gate holds: 12 passed;"},
	},
}

// TestGuidePrograms: the pages link to their programs, and the engine is as short as its page promises.
func TestGuidePrograms(t *testing.T) {
	for _, guide := range guides {
		page, err := os.ReadFile("../../docs/" + guide.page)
		require.NoError(t, err)
		for _, program := range guide.programs {
			if !bytes.Contains(page, []byte("(../examples/"+program[1]+")")) {
				t.Errorf("docs/%s does not link to examples/%s", guide.page, program[1])
			}
		}
	}
	engine, err := os.ReadFile("../../examples/engine-python/engine.py")
	require.NoError(t, err)
	// Statements start with a letter, but for the closing line of a table.
	code := regexp.MustCompile(`(?m)^ *([a-z].*|OUTPUT.*|"0\.30".*)$`).FindAllString(string(engine), -1)
	imports := regexp.MustCompile(`(?m)^import |^ *"0\.30"`).FindAllString(string(engine), -1)
	if n := len(code) - len(imports); n > 60 {
		t.Errorf("engine.py has %d lines without imports and tables, the guide promises 60", n)
	}
}

// TestGuides runs the commands of the guides, as a reader would: in an empty folder, with the binary and the programs of
// the page.
func TestGuides(t *testing.T) {
	python, vcr := testenv.Python(t), testenv.VCR(t)
	for _, guide := range guides {
		t.Run(guide.page, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			writeAll(t, map[string]string{filepath.Join(dir, "bin", "python"): "#!/bin/sh\nexec '" + python + "' \"$@\"\n"})
			for _, program := range guide.programs {
				source := filepath.Join("../../examples", program[1])
				if strings.HasSuffix(source, ".go") {
					build := exec.Command("go", "build", "-C", filepath.Dir(source), "-o", filepath.Join(dir, program[0]), ".")
					if out, err := build.CombinedOutput(); err != nil {
						t.Fatalf("go build: %v\n%s", err, out)
					}
					continue
				}
				text, err := os.ReadFile(source)
				require.NoError(t, err)
				writeAll(t, map[string]string{filepath.Join(dir, program[0]): string(text)})
			}
			blocks, lines := shellBlocks(t, "../../docs/"+guide.page)
			if len(blocks) == 0 {
				t.Fatal("the page has no commands")
			}
			var ports []string
			for _, port := range []string{"29550", "8000", "5557", "5558"} {
				ports = append(ports, port, strconv.Itoa(testenv.FreePort(t)))
			}
			var printed strings.Builder
			for i, block := range blocks {
				printed.WriteString(inFolder(t, dir, filepath.Dir(vcr), strings.NewReplacer(ports...).Replace(block), lines[i]))
			}
			for _, want := range guide.wants {
				require.Contains(t, printed.String(), want)
			}
		})
	}
}

// inFolder runs a block of a page in a process group of its own, of which nothing is left behind.
func inFolder(t *testing.T, dir, bin, block string, line int) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", block)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+bin+":"+os.Getenv("PATH"), "GITHUB_ACTIONS=", "CONFORMANCE_BUCKET=", "CI=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = kill
	out, err := cmd.CombinedOutput()
	if err != nil {
		kill() //nolint:errcheck // the group may have ended
		t.Fatalf("line %d: %v\n%s\n%s", line, err, block, out)
	}
	return string(out)
}
