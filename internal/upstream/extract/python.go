package extract

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

//go:embed extract.py
var script string

// oldest is the first release of Python that runs the script, and reads the syntax of vLLM.
var oldest = [2]int{3, 11}

// bootstrap runs in any Python 3. It prints its version, and runs the script, which is on stdin behind its length, if
// the version suffices.
const bootstrap = `import sys
print("Python %d.%d.%d" % sys.version_info[:3])
sys.stdout.flush()
if sys.version_info >= (3, 11):
    exec(compile(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())), "extract.py", "exec"))
`

const (
	maxAnswer = 64 << 20 // bytes of a line that the script writes; the profile of vLLM 0.33 has 200 kB
	maxStderr = 4 << 10  // bytes that an error shows
)

// loaderVariables are the variables of the environment that Python gets, as one outside of the system may need them to
// find its own library.
var loaderVariables = []string{"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}

// runScript runs the script on a source, and returns its last line, which is an [answer].
func runScript(ctx context.Context, s source) ([]byte, error) {
	python, err := exec.LookPath("python3")
	if err != nil {
		python, err = exec.LookPath("python") // as Windows has it
	}
	if err != nil {
		return nil, fmt.Errorf("no python3 is on PATH: %w", errNoPython)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-I", "-S", "-c", bootstrap)
	cmd.Env = []string{}
	for _, name := range loaderVariables {
		if value := os.Getenv(name); value != "" {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	stderr := process.NewTail(maxStderr, nil)
	cmd.Stderr, cmd.WaitDelay = stderr, time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start Python: %w", err)
	}
	last, err := converse(ctx, s, stdin, stdout)
	cancel() // it has ended, or is of no use
	ended := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case errors.Is(err, errEnded) && errors.As(ended, &exit):
		return nil, fmt.Errorf("%s: %s ended without a result: %w%s", s.where(), python, ended, lastLine(stderr.String()))
	case errors.Is(err, errEnded):
		return nil, fmt.Errorf("%s: %s ended without a result%s", s.where(), python, lastLine(stderr.String()))
	case errors.Is(err, errNoPython):
		return nil, fmt.Errorf("%s is %w", python, err)
	}
	return last, err
}

var (
	// errNoPython is about a missing or old Python.
	errNoPython = fmt.Errorf("the Python sources of a release are read by python3 of version %d.%d or newer: install it, or put it first in PATH",
		oldest[0], oldest[1])
	errEnded = errors.New("the script has ended")
)

// converse answers the requests of the script for files until it writes its result.
func converse(ctx context.Context, s source, stdin io.Writer, stdout io.Reader) ([]byte, error) {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, maxAnswer)
	next := func() error {
		switch {
		case lines.Scan():
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case lines.Err() != nil:
			return fmt.Errorf("%s: read from Python: %w", s.where(), lines.Err())
		}
		return errEnded
	}
	if err := next(); err != nil {
		return nil, err
	}
	var version [2]int
	greeting := lines.Text()
	if _, err := fmt.Sscanf(greeting, "Python %d.%d", &version[0], &version[1]); err != nil {
		return nil, fmt.Errorf("not Python, it prints %q: %w", safetext.Clip(greeting, 60), errNoPython)
	}
	if version[0] < oldest[0] || version[0] == oldest[0] && version[1] < oldest[1] {
		return nil, fmt.Errorf("%s: %w", safetext.Line(greeting), errNoPython)
	}
	_, _ = fmt.Fprintf(stdin, "%d\n%s", len(script), script) // a script that has ended is noticed by next
	for {
		if err := next(); err != nil {
			return nil, err
		}
		var request struct{ Read []string }
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			return nil, fmt.Errorf("%s: Python wrote a line that is not JSON: %w", s.where(), err)
		}
		if request.Read == nil {
			return bytes.Clone(lines.Bytes()), nil
		}
		files, err := s.read(ctx, request.Read)
		if err != nil {
			return nil, err
		}
		if err := json.NewEncoder(stdin).Encode(files); err != nil { // the bytes of a file as base64
			continue
		}
	}
}

// lastLine is the last line of an output, for the end of an error.
func lastLine(output string) string {
	text := strings.TrimSpace(output)
	if text == "" {
		return ""
	}
	return ": " + safetext.Clip(safetext.Line(text[strings.LastIndexByte(text, '\n')+1:]), 200)
}
