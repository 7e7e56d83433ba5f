package cpuengine

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
)

// stopGrace is how long an installer may take to clean up after itself.
const stopGrace = 5 * time.Second

// run runs a program to its end and returns what it wrote to stdout. Its error is a line with the last of what it wrote
// to stderr. env is added to the environment.
func (in *installer) run(ctx context.Context, env []string, program string, args ...string) (string, error) {
	in.Log.Debug("run", "program", program, "arguments", args)
	cmd := exec.Command(program, args...)
	cmd.Env = append(in.environment(os.Environ()), env...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	p, err := process.Start(cmd, process.Options{Grace: stopGrace})
	if err != nil {
		return "", err
	}
	err = p.Wait(ctx)
	if p.Exit() == nil { // ctx ended
		_ = p.Stop(context.WithoutCancel(ctx))
		return "", err
	}
	if err != nil {
		return "", err
	}
	return stdout.String(), nil
}

// environment is what installers and the engine get of the owner's: what leads to an index, but no secret of a CI, and
// nothing that would lead Python elsewhere. One index counts for all of them.
func (in *installer) environment(inherited []string) []string {
	var env []string
	for _, entry := range inherited {
		if name, _, _ := strings.Cut(entry, "="); inheritedPattern.MatchString(name) {
			env = append(env, entry)
		}
	}
	env = append(env, "LANG=C.UTF-8", "PYTHONNOUSERSITE=1", "NO_COLOR=1", "UV_NO_PROGRESS=1", "PIP_DISABLE_PIP_VERSION_CHECK=1",
		"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1")
	if in.Index != "" {
		env = append(env, "PIP_INDEX_URL="+in.Index, "UV_DEFAULT_INDEX="+in.Index)
	}
	return env
}

var inheritedPattern = regexp.MustCompile(`^(PATH|HOME|USER|TMPDIR|XDG_[A-Z_]+|PIP_[A-Z_]+|UV_[A-Z_]+|NETRC|SSL_CERT_(FILE|DIR)|` +
	`REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(?i:(http|https|all|no)_proxy)|PYENV_[A-Z_]+)$`)
