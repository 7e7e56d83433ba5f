//go:build !unix

package deploy

import (
	"errors"
	"os"
	"os/exec"
)

// start runs the helper to its end. An interrupt from the console reaches both processes, and this one waits.
func start(path string, args, env []string) (int, error) {
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}
