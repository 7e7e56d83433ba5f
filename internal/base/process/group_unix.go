//go:build unix

package process

import (
	"os/exec"
	"strconv"
	"syscall"
)

// terminateGroup sends SIGTERM to cmd and its group. An error means that the group has no process left.
func terminateGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }

func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// leadGroup makes cmd the leader of a new process group. The leader of a session is one already.
func leadGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = !cmd.SysProcAttr.Setsid
}

// guardGroup has the group of cmd killed when this process dies: the kernel would only end the first of them. A shell in
// a session of its own, which nothing that is meant for ours reaches, sees the end of its input then, unless release was
// called before.
func guardGroup(cmd *exec.Cmd) (release func()) {
	shell := exec.Command("/bin/sh", "-c", `read -r _ || kill -s KILL -- "-$1"`, "sh", strconv.Itoa(cmd.Process.Pid))
	shell.Env, shell.SysProcAttr = []string{}, &syscall.SysProcAttr{Setsid: true}
	alive, err := shell.StdinPipe()
	if err == nil {
		err = shell.Start()
	}
	if err != nil {
		return func() {}
	}
	return func() {
		_, _ = alive.Write([]byte("released\n"))
		_ = shell.Wait()
	}
}
