package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/process"
)

// captureScript records goldens, below the folder of the action.
const captureScript = ".ci/goldens"

// actionCapture has the goldens of a line recorded again and registered in the working
// directory. args are the line and the goldens.
func (a *app) actionCapture(ctx context.Context, args []string, log *actionLog) (int, error) {
	if runtime.GOOS != "linux" {
		return conformance.ExitInfra, fmt.Errorf("the mode capture needs a Linux runner: released engines for the CPU run nowhere else")
	}
	here := a.orEnv("", "GITHUB_ACTION_PATH")
	if here == "" {
		return conformance.ExitUsage, fmt.Errorf("the mode capture needs GITHUB_ACTION_PATH: this is no step of the action")
	}
	self, err := os.Executable()
	if err != nil {
		return conformance.ExitInfra, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return conformance.ExitInfra, err
	}
	script := filepath.Join(here, filepath.FromSlash(captureScript))
	cmd := exec.Command("bash", append([]string{script, "-b", self, "-o", dir}, args...)...)
	p, err := process.Start(cmd, process.Options{Name: captureScript, Output: log.stream(logForeign)})
	if err != nil {
		return conformance.ExitInfra, err
	}
	defer p.Stop(context.WithoutCancel(ctx))
	err = p.Wait(ctx)
	switch exit := p.Exit(); {
	case err == nil:
		return conformance.ExitOK, nil
	case exit != nil && exit.Code == conformance.ExitUsage:
		return conformance.ExitUsage, fmt.Errorf("%s refused its arguments: see the log above", captureScript)
	case exit != nil:
		return conformance.ExitInfra, fmt.Errorf("%s ended with exit code %d: see the log above", captureScript, exit.Code)
	}
	return conformance.ExitInfra, err
}
