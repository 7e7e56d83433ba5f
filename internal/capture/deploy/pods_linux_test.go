package deploy_test

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// A machine runs the containers of a pod as processes: their folders are below one of the test's, and their ports are
// free ones of this machine.
type machine struct {
	root  string
	names *strings.Replacer // of programs, folders and ports in the pod
}

// newMachine has our program, and vllm-rs where the wheel of a release has it, in a package that cannot be imported.
func newMachine(t *testing.T, rust, binary string) *machine {
	t.Helper()
	m := &machine{root: t.TempDir()}
	for _, folder := range []string{"/trace", "/model", "/models", "/home/vllm", "/tmp", "/site/vllm"} {
		require.NoError(t, os.MkdirAll(m.in(folder), 0o755))
	}
	require.NoError(t, os.Symlink(rust, m.in("/site/vllm/vllm-rs")))
	require.NoError(t, os.WriteFile(m.in("/site/vllm/__init__.py"), []byte("raise SystemExit('imported')\n"), 0o644))
	port := func() string { return strconv.Itoa(testenv.FreePort(t)) }
	serve, frontend, engine := port(), port(), port()
	m.names = strings.NewReplacer("8000", serve, "5570", frontend, "5580", engine, "0.0.0.0", "127.0.0.1",
		"/vllm-vcr", binary, "/trace/", m.in("/trace")+"/")
	return m
}

// in is where a path of the pod lies on this machine.
func (m *machine) in(path string) string { return filepath.Join(m.root, filepath.FromSlash(path)) }

// command is what a container runs.
func (m *machine) command(c corev1.Container) *exec.Cmd {
	var argv []string
	for _, arg := range slices.Concat(c.Command, c.Args) {
		if slices.Contains([]string{"/trace", "/model"}, arg) {
			arg = m.in(arg)
		}
		argv = append(argv, m.names.Replace(arg))
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = m.in(c.WorkingDir)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PYTHONPATH=" + m.in("/site")}
	for _, env := range c.Env {
		value := env.Value
		if path.IsAbs(value) {
			value = m.in(value)
		}
		cmd.Env = append(cmd.Env, env.Name+"="+value)
	}
	return cmd
}

// run runs a container to its end.
func (m *machine) run(t *testing.T, c corev1.Container) {
	t.Helper()
	if out, err := m.command(c).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", c.Name, err, out)
	}
}

// start starts a container.
func (m *machine) start(t *testing.T, c corev1.Container) *testenv.Peer {
	t.Helper()
	return testenv.Process(t, c.Name, m.command(c))
}

// await asks until it is so. That one of the processes ends is an error.
func await(t *testing.T, what string, peers []*testenv.Peer, isSo func() bool) {
	t.Helper()
	eventually(t, what, func() bool {
		for _, p := range peers {
			select {
			case <-p.Done():
				t.Fatalf("before %s, a process has ended: %v\n%s", what, p.Err(), p.Tail())
			default:
			}
		}
		return isSo()
	})
}

// TestRealPods runs the containers of pods as processes, with the real Rust frontend.
func TestRealPods(t *testing.T) {
	rust := testenv.Frontend(t, "0.33.0")
	binary := filepath.Join(t.TempDir(), "vllm-vcr")
	if out, err := exec.Command("go", "build", "-o", binary, "../../../cmd/vllm-vcr").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	t.Run("job", func(t *testing.T) { runJob(t, newMachine(t, rust, binary)) })
}

func recorded(t *testing.T, file string) []trace.Record {
	t.Helper()
	read, err := trace.Read(file, trace.Options{})
	require.NoError(t, err)
	return read.Records
}

// runJob runs the containers of a Job in the order of its pod, with the player in the engine's place, to its end.
func runJob(t *testing.T, m *machine) {
	tgt := onCPU()
	job, err := deploy.NewJob(tgt, run)
	require.NoError(t, err)
	pod := typed(t, job).Spec.Template.Spec
	var peers []*testenv.Peer
	for _, c := range pod.InitContainers {
		switch {
		case !isSidecar(c):
			m.run(t, c)
			continue
		case c.Name == deploy.Engine:
			port := slices.Index(c.Args, "--data-parallel-rpc-port") + 1
			c.Command = []string{"/vllm-vcr"}
			c.Args = []string{"play", "--vllm-version", tgt.Release(), "--frontend-handshake", "tcp://127.0.0.1:" + c.Args[port]}
		}
		peers = append(peers, m.start(t, c))
	}
	loadgen := pod.Containers[0]
	probe := loadgen
	probe.Command, probe.Args = loadgen.ReadinessProbe.Exec.Command, nil
	load := m.start(t, loadgen)
	await(t, "the pod is ready", append(peers, load), func() bool { return m.command(probe).Run() == nil })
	for _, name := range []string{target.FramesFile, target.StepsFile, target.LoadFile, target.RequestsFile} {
		if info, err := os.Stat(m.in("/trace/" + name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	require.Equal(t, len(recorded(t, m.in("/trace/"+target.TraceFile))), 180, "records")
	release := loadgen
	release.Args = []string{"capture", "pod", "release", "--dir", "/trace"}
	m.run(t, release)
	require.NoErrorf(t, load.Err(), "the load generator")
	for _, p := range peers { // what they share with the main container ends after it, as in a pod
		select {
		case <-p.Done():
			t.Errorf("ended before the pod: %v", p.Err())
		default:
		}
	}
}

// eventually asks until it is so.
func eventually(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for tick := time.Tick(100 * time.Millisecond); !isSo(); <-tick {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute it is still not so that %s", what)
		}
	}
}
