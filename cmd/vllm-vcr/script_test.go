package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/cluster"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/engine/dataset"
	"github.com/vllm-vcr/conformance/internal/engine/dataset/tables"
	"github.com/vllm-vcr/conformance/internal/testenv"
)

// TestMain makes the command itself and its helper available to the scripts, and to tests that
// start it as a process.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"vllm-vcr":      main,
		deploy.Program:  func() { os.Exit(cluster.Main(version)) },
		dataset.Program: func() { os.Exit(tables.Main(version)) },
	})
}

// TestScripts runs testdata/script/*.txtar. Besides the usual commands they have
//
//	checkout DIR            a copy of the files of the repository that the command reads
//	exits CODE COMMAND...   like exec, for a command that must end with exactly that code
//	documented COMMAND      stdout is one JSON value with the keys that docs/json.md has for a command
//	flip FILE OFFSET        changes a bit of a byte
//	golden VAR LINE ID      sets VAR to the path of a golden in a checkout, VAR_KEY, VAR_SHA256 and VAR_SIZE to what the
//	                        manifest has of it, and what goldens sets
//	goldens VAR [-]LINE[/ID]...
//	                        sets VAR_COUNT to the number of goldens of lines or by name, without those after a "-";
//	                        VAR_PASSED and VAR_TOKENS to the cases and the tokens of a run in which they pass; and
//	                        VAR_PREFIX to the tokens of one replay by prompt
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			scripts, err := filepath.Abs("../../scripts")
			e.Setenv("SCRIPTS", scripts)
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"checkout": checkout, "documented": documented, "exits": exits, "flip": flip, "golden": setGolden, "goldens": setGoldens,
		},
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

func checkout(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: checkout DIR")
	}
	ts.Check(os.CopyFS(ts.MkAbs(args[0]), vcr.Files))
	// Embedded files are read-only; scripts damage some.
	ts.Check(fs.WalkDir(os.DirFS(ts.MkAbs(args[0])), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Chmod(ts.MkAbs(args[0])+"/"+path, 0o600)
	}))
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func documented(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: documented COMMAND")
	}
	ts.Check(testenv.CheckJSON("../../docs/json.md", args[0], []byte(ts.ReadFile("stdout"))))
}

func flip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: flip FILE OFFSET")
	}
	at, err := strconv.Atoi(args[1])
	ts.Check(err)
	data, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	data[at] ^= 1
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o600))
}
