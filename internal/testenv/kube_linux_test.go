package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const envOwner = "VLLM_VCR_TEST_OWNS_A_CLUSTER"

// TestRealClusterDiesWithItsOwner kills a test binary that has a cluster: nothing of it may stay.
func TestRealClusterDiesWithItsOwner(t *testing.T) {
	if os.Getenv(envOwner) != "" {
		ownACluster(t)
	}
	kubePrograms(t, "kube-full", clusterPrograms...)
	owner := exec.Command(os.Args[0], "-test.run=^TestRealClusterDiesWithItsOwner$", "-test.v")
	owner.Env = append(os.Environ(), envOwner+"=1")
	output := pipeStdout(t, owner)
	Process(t, "owner", owner)
	var said []string
	for said == nil {
		line, err := output.ReadString('\n')
		if err != nil {
			t.Fatalf("the owner ended without a cluster: %v", err)
		}
		if _, after, found := strings.Cut(line, "owns: "); found {
			said = strings.Fields(after)
		}
	}
	dir, pids := said[0], said[1:]
	var ends []int
	for _, pid := range pids {
		ends = append(ends, openProcess(t, pid))
	}
	require.NoError(t, owner.Process.Kill())
	for _, end := range ends {
		awaitEnd(t, end)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the cluster is still there: %v", err)
	}
}

// ownACluster tells folder and processes of a cluster and waits to be killed.
func ownACluster(t *testing.T) {
	c := KubeCluster(t)
	pids := []string{strconv.Itoa(c.cleaner.cmd.Process.Pid)}
	for _, p := range c.processes {
		pids = append(pids, strconv.Itoa(p.Pid()))
	}
	fmt.Println("owns:", c.dir, strings.Join(pids, " "))
	select {}
}

func openProcess(t *testing.T, pid string) (fd int) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	require.NoError(t, err)
	fd, err = unix.PidfdOpen(n, 0)
	if err != nil {
		t.Fatalf("process %s: %v", pid, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// awaitEnd returns when a process has ended.
func awaitEnd(t *testing.T, fd int) {
	t.Helper()
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
}
