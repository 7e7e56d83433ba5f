package testenv

import (
	"os/exec"
	"syscall"
)

const diesWithParent = true

// ownGroup makes cmd the leader of a new process group that dies with the test binary, however that ends.
func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}
