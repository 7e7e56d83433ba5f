package process

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
func groupWaited(group int) time.Duration {
	_, waited, _ := groupTimes(group)
	return waited
}

// groupRan is how long the threads of a process group have run, so far. It is not known where the kernel does not tell, and of
// a program whose work is done elsewhere.
func groupRan(group int) (ran time.Duration, known bool) {
	ran, _, known = groupTimes(group)
	return ran, known
}

// elsewhere are programs that have others run on another machine, or by a daemon.
var elsewhere = []string{"docker", "podman", "nerdctl", "kubectl", "ssh", "srun"}

// groupTimes are the times that the threads of a process group have run and waited for a processor, so far.
func groupTimes(group int) (ran, waited time.Duration, known bool) {
	isElsewhere := false
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil || groupOf(stat) != group {
			continue
		}
		isElsewhere = isElsewhere || slices.Contains(elsewhere, string(stat[bytes.IndexByte(stat, '(')+1:bytes.LastIndexByte(stat, ')')]))
		threads, _ := filepath.Glob(filepath.Dir(path) + "/task/*/schedstat")
		for _, thread := range threads {
			text, _ := os.ReadFile(thread)
			if fields := bytes.Fields(text); len(fields) >= 2 {
				ns, _ := strconv.ParseInt(string(fields[0]), 10, 64)
				ran += time.Duration(ns)
				ns, _ = strconv.ParseInt(string(fields[1]), 10, 64)
				waited += time.Duration(ns)
				known = true
			}
		}
	}
	return ran, waited, known && !isElsewhere
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
