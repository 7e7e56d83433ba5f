package local

import (
	"errors"
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

// lockFile takes a lock that ends with the process, however that ends. It is false where another process has it.
func lockFile(path string) (unlock func(), ok bool, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, false, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = nil
		}
		return nil, false, err
	}
	return func() { file.Close() }, true, nil
}
