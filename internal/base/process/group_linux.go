package process

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// diesWithOwner reports whether the process is killed when its owner dies.
const diesWithOwner = true

// ownGroup makes cmd the leader of a new process group and has it killed when this process dies, however that ends.
func ownGroup(cmd *exec.Cmd) {
	leadGroup(cmd)
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// groupWaited is how long the threads of a process group have been ready to run, so far, while others had the processors. It
// is 0 where the kernel does not tell.
func groupWaited(group int) (waited time.Duration) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil || groupOf(stat) != group {
			continue
		}
		threads, _ := filepath.Glob(filepath.Dir(path) + "/task/*/schedstat")
		for _, thread := range threads {
			text, _ := os.ReadFile(thread)
			if fields := bytes.Fields(text); len(fields) >= 2 {
				ns, _ := strconv.ParseInt(string(fields[1]), 10, 64) // after the time that it has run
				waited += time.Duration(ns)
			}
		}
	}
	return waited
}

// groupOf is the process group in a line of /proc/PID/stat: pid (name) state parent group. The name may have anything in it.
func groupOf(stat []byte) int {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 3 {
		return 0
	}
	group, _ := strconv.Atoi(string(fields[2]))
	return group
}
