package process

import (
	"os/exec"
	"syscall"
)

// diesWithOwner reports whether the process is killed when its owner dies.
const diesWithOwner = true

// ownGroup makes cmd the leader of a new process group and has it killed when this process dies, however that ends.
func ownGroup(cmd *exec.Cmd) {
	leadGroup(cmd)
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}
