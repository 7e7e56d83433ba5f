package cluster_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture/cluster"
	"github.com/vllm-vcr/conformance/internal/testenv"
)

const envLargeObject = "VLLM_VCR_LARGE_OBJECT" // bytes of the file that is fetched

// faultySender goes wrong in another way each time that it is asked, and right at last.
const faultySender = `#!/bin/sh
case "$*" in *" send "*) ;; *) exec PROGRAM "$@" ;; esac
echo "$*" >>"$POD_ROOT/calls"
case $(wc -l <"$POD_ROOT/calls") in
1) PROGRAM "$@" | head -c 40000000 ;;
2) PROGRAM "$@" | head -c 20000000; exec sleep 60 ;;
3) PROGRAM "$@" | head -c 10000000; kill -9 $$ ;;
*) exec PROGRAM "$@" ;;
esac
`

// TestRealFetch fetches a large file through the API server, from a program that is cut off, hangs and is killed on the
// way, and needs no memory for it.
func TestRealFetch(t *testing.T) {
	k := testenv.KubeCluster(t)
	ns := k.Namespace(t)
	c := connect(t, cluster.Options{Kubeconfig: k.Kubeconfig, Namespace: ns, Stall: 2 * time.Second})
	pod := runningPod(t, k, c, ns)
	program, err := program()
	if err != nil {
		t.Fatal(err)
	}
	sender := filepath.Join(t.TempDir(), "sender")
	script := []byte(strings.ReplaceAll(faultySender, "PROGRAM", program))
	if err := os.WriteFile(sender, script, 0o755); err != nil {
		t.Fatal(err)
	}
	k.Install(t, "vllm-vcr", sender, "/trace")
	size, err := strconv.ParseInt(os.Getenv(envLargeObject), 10, 64)
	if err != nil {
		size = 300 << 20
	}
	want := writeNoise(t, filepath.Join(k.Root(ns), "trace", "trace.jsonl.gz"), size)

	dst := filepath.Join(t.TempDir(), "trace.jsonl.gz")
	most := watchHeap(t)
	began := time.Now()
	got, err := c.Fetch(t.Context(), pod, "loadgen", "/trace", "trace.jsonl.gz", dst)
	if err != nil || got.Size != size || got.SHA256 != want || digestOf(t, dst) != want {
		t.Fatalf("%+v, %v, want %d bytes of %s", got, err, size, want)
	}
	heap := most()
	t.Logf("%d bytes in %v, with at most %d KB of heap", size, time.Since(began), heap>>10)
	if heap > 32<<20 {
		t.Errorf("%d bytes of heap for a file of %d", heap, size)
	}
	calls, err := os.ReadFile(filepath.Join(k.Root(ns), "calls"))
	if err != nil || strings.Count(string(calls), "\n") != 4 {
		t.Errorf("asked %q, %v: want four times", calls, err)
	}
	if _, err := c.Fetch(t.Context(), pod, "loadgen", "/trace", "trace.jsonl.gz", dst); err == nil {
		t.Error("an existing file was replaced")
	}
	_, err = c.Fetch(t.Context(), pod, "loadgen", "/trace", "none", filepath.Join(filepath.Dir(dst), "none"))
	checkError(t, err, "fetch none of container loadgen", "capture pod send", "exit status 3", "none: no such file")
	left, err := os.ReadDir(filepath.Dir(dst))
	if err != nil || len(left) != 1 {
		t.Errorf("%v, %v: want the one file", left, err)
	}
	checkError(t, c.Release(t.Context(), pod, "loadgen", "/trace"), "capture pod release", "is not there yet")
	if err := os.WriteFile(filepath.Join(k.Root(ns), "trace", "ready"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(t.Context(), pod, "loadgen", "/trace"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(k.Root(ns), "trace", "fetched")); err != nil {
		t.Error(err)
	}
}

// TestRealFetchRefused is about an account without the right, and a pod that is not there.
func TestRealFetchRefused(t *testing.T) {
	k := testenv.KubeCluster(t)
	c, ns := realClient(t, k)
	pod := runningPod(t, k, c, ns)
	dst := filepath.Join(t.TempDir(), "file")
	restricted := connect(t, cluster.Options{Kubeconfig: k.RestrictedKubeconfig, Namespace: ns})
	_, err := restricted.Fetch(t.Context(), pod, "loadgen", "/trace", "file", dst)
	checkError(t, err, "pods/exec", "this account may not do it in namespace "+ns, "deploy/")
	checkError(t, restricted.Release(t.Context(), pod, "loadgen", "/trace"), "this account may not do it")
	_, err = c.Fetch(t.Context(), "none", "loadgen", "/trace", "file", dst)
	checkError(t, err, `pods "none" not found`)
	_, err = c.Fetch(t.Context(), pod, "none", "/trace", "file", dst)
	checkError(t, err, "container none")
	_, err = restricted.Logs(t.Context(), pod, "loadgen", 100)
	checkError(t, err, "this account may not do it")
}

func TestRealLogs(t *testing.T) {
	k := testenv.KubeCluster(t)
	c, ns := realClient(t, k)
	pod := runningPod(t, k, c, ns)
	k.Log(t, ns, "loadgen", "one", "two", "three")
	for _, test := range []struct {
		name  string
		bytes int
		want  string
	}{
		{"all", 100, "one\ntwo\nthree\n"},
		{"from a line's begin", 12, "two\nthree\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := c.Logs(t.Context(), pod, "loadgen", test.bytes)
			if err != nil || got != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

// runningPod submits a Job and returns its pod once it is ready.
func runningPod(t *testing.T, k *testenv.Cluster, c *cluster.Client, ns string) string {
	t.Helper()
	k.Queue(t, ns, "queue", 1)
	submit(t, c, jobOf(t, "one", "r1", testenv.PodReady))
	state, err := c.Watch(t.Context(), "one-r1", cluster.Budgets{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(k.Root(ns), "trace"), 0o755); err != nil {
		t.Fatal(err)
	}
	return state.Pod
}

// writeNoise writes a file that does not repeat itself, and returns its digest.
func writeNoise(t *testing.T, path string, size int64) string {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sum := sha256.New()
	noise := rand.NewChaCha8([32]byte{7})
	if _, err := io.CopyN(io.MultiWriter(file, sum), noise, size); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func digestOf(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// watchHeap looks at the heap until the returned function is called, which returns the most that was in use.
func watchHeap(t *testing.T) (most func() uint64) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan uint64)
	go func() {
		var highest uint64
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			var memory runtime.MemStats
			runtime.ReadMemStats(&memory)
			highest = max(highest, memory.HeapInuse)
			select {
			case <-stop:
				done <- highest
				return
			case <-tick.C:
			}
		}
	}()
	return func() uint64 {
		close(stop)
		return <-done
	}
}
