package capture

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
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

// guard has the group of a process killed when this process dies, however that dies: an engine is several processes, of
// which the kernel would only end the first. The shell that waits for it sees the end of its input, unless release was
// called before.
func guard(pid int) (release func(), err error) {
	shell := exec.Command("/bin/sh", "-c", `read -r _ || kill -s KILL -- "-$1"`, "sh", strconv.Itoa(pid))
	shell.Env = []string{}
	ownSession(shell) // what kills our own group must not end it
	alive, err := shell.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := shell.Start(); err != nil {
		return nil, err
	}
	return func() {
		_, _ = alive.Write([]byte("released\n"))
		_ = shell.Wait()
	}, nil
}
