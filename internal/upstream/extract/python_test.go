package extract

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestPythonThatIsUnfit: without a Python that can run the script the error names what was found and what to do, and a
// Python that ends or writes anything else is an error with its reason.
func TestPythonThatIsUnfit(t *testing.T) {
	const advice = "the Python sources of a release are read by python3 of version 3.11 or newer: install it, or put it first in PATH"
	for _, test := range []struct {
		name, program string // of /bin/sh; none is no python3
		want          string
	}{
		{"none", "", "no python3 is on PATH: " + advice},
		{"an old one", "echo Python 3.9.18", "/python3 is Python 3.9.18: " + advice},
		{"Python 2", "echo Python 2.7.18", "/python3 is Python 2.7.18: " + advice},
		{"another program", "echo hello", `/python3 is not Python, it prints "hello": ` + advice},
		{"one that fails", "echo 'no module encodings' >&2; exit 1", "/python3 ended without a result: exit status 1: no module encodings"},
		{"one that is killed", "echo Python 3.12.0; kill -s SEGV $$", "/python3 ended without a result: signal: segmentation fault"},
		{"one that ends early", "echo Python 3.12.0", "/python3 ended without a result"},
		{"a script that writes something else", "echo Python 3.12.0; echo what", "memory: Python wrote a line that is not JSON"},
		{"a script that writes another object", "echo Python 3.12.0; echo {}", "no vllm/_version.py and no dist-info names the release"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if test.program != "" {
				testenv.WriteProgram(t, filepath.Join(dir, "python3"), "#!/bin/sh\n"+test.program+"\n")
			}
			t.Setenv("PATH", dir)
			if p, _, err := extract(t.Context(), memory{}); p != nil || err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

// TestScriptIsLimited: once the script has limited itself, it can open no file and no connection, and gets no more memory than
// allowed.
func TestScriptIsLimited(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems have other limits")
	}
	const attempts = `
import os, socket
limit()
for name, attempt in ("open", lambda: os.open("/dev/null", 0)), ("connect", socket.socket), ("allocate", lambda: bytearray(MEMORY)):
    try:
        attempt()
        print(name, "works")
    except (OSError, MemoryError) as error:
        print(name, type(error).__name__)
`
	cmd := exec.CommandContext(t.Context(), testenv.Python3(t), "-I", "-S", "-c", strings.Replace(script, `if __name__ == "__main__":`, "if False:", 1)+attempts)
	cmd.Env, cmd.Stderr = []string{}, os.Stderr
	out, err := cmd.Output()
	if want := "open OSError\nconnect OSError\nallocate MemoryError\n"; err != nil || string(out) != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

// TestPythonThatHangs: it ends with its context, whose cause is the error.
func TestPythonThatHangs(t *testing.T) {
	dir := t.TempDir()
	testenv.WriteProgram(t, filepath.Join(dir, "python3"), "#!/bin/sh\necho Python 3.12.0\nexec /bin/sleep 1000\n")
	t.Setenv("PATH", dir)
	late := errors.New("it took too long")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, late)
	defer cancel()
	if _, _, err := extract(ctx, memory{}); !errors.Is(err, late) {
		t.Errorf("error %v, want that it took too long", err)
	}
}

// TestHostileSources: each ends soon with a reason that names the file.
func TestHostileSources(t *testing.T) {
	t.Parallel()
	testenv.Python3(t)
	many := func(text string) string { return strings.Repeat(text, 100_000) }
	for _, test := range []struct{ name, text, want string }{
		{"parentheses", "x = " + many("(") + many(")"), "too many nested parentheses"},
		{"brackets", "x = " + strings.Repeat("[", 150) + strings.Repeat("]", 150), "line 1: it is nested deeper than 100 levels"},
		{"a sum", "x = 1" + many(" + 1"), "it is nested too deeply"},
		{"calls", "x = f" + many("()"), "it is nested too deeply"},
		{"conditions", "if x: pass\n" + many("elif x: pass\n")[:900_000], "it is nested too deeply"},
		{"a type", "import msgspec\nclass EngineCoreRequest(msgspec.Struct):\n    x: int" + strings.Repeat(" | int", 200), "line 3: it is nested deeper than 100 levels"},
		{"a quoted type", "import msgspec\nclass EngineCoreRequest(msgspec.Struct):\n    x: 'int" + strings.Repeat(" | int", 200) + "'", "EngineCoreRequest.x: its type"},
		{"a number", "x = " + many("9"), "line 1: Exceeds the limit"},
		{"a NUL byte", "x = '\x00'", "null bytes"},
		{"imports of itself", strings.Repeat("from vllm.v1.engine import *\n", 1000), "class EngineCoreRequest: vllm/v1/engine/__init__.py neither declares nor imports it"},
		{"no text", "x = '\xff'", "'utf-8' codec can't decode byte 0xff"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, gaps, err := extract(t.Context(), edited(t, []edit{{engineFile, "", test.text}}))
			require.NoError(t, err)
			for _, g := range gaps {
				if g.Module == engineFile && strings.Contains(g.String(), test.want) {
					return
				}
			}
			t.Errorf("no gap of %s has %q: %v", engineFile, test.want, gaps)
		})
	}
}

// TestLimits: what a release makes us read is limited, file by file and in all.
func TestLimits(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.py"), make([]byte, maxFile+1), 0o600))
	if _, err := (&folder{path: dir}).read(t.Context(), []string{"a.py"}); err == nil || !strings.Contains(err.Error(), "a.py has more than 1048576 bytes") {
		t.Errorf("a large file: %v", err)
	}
	files := tiny(t)
	for _, name := range []string{coreFile, clientFile, utilsFile, coordinatorFile, eventsFile} {
		files[name] = "#" + strings.Repeat(" ", maxFile-100)
	}
	if _, _, err := extractFrom(t, files); err == nil || !strings.Contains(err.Error(), "more than 4194304 bytes of Python are of the wire") {
		t.Errorf("many large files: %v", err)
	}
}
