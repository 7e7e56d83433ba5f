package capture

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// ownSession makes cmd the leader of a new session.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// weigh gives the session of a process a weight on the processor. A kernel that does not share it by session has nothing
// to be told.
func weigh(pid int, nice string) error {
	path := fmt.Sprintf("/proc/%d/autogroup", pid)
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	return os.WriteFile(path, []byte(nice), 0)
}
