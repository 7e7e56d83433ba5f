package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/forge/github/githubtest"
	"github.com/vllm-vcr/conformance/internal/testenv"
)

// A site is where captures run: a cluster with quota for one at a time, whose pods run the real programs, and a checkout
// with the targets 0.33/multiturn-s7 and -s13 for it.
type site struct {
	cluster  *testenv.Cluster
	machine  *testenv.Machine
	vcr      string // path of the program
	checkout string
	image    string // folder of what the images have beside this machine
	env      []string
	args     []string
}

const (
	kubeTarget      = "0.33/multiturn-s7"
	otherKubeTarget = "0.33/multiturn-s13"
	kubeEngineImage = "docker.io/vllm/vllm-openai:v0.33.0@sha256:5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
	kubeTapImage    = "ghcr.io/vllm-vcr/vllm-vcr:1.0.0@sha256:6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b"
)

// playerInPod is the engine, unless another is wanted.
const playerInPod = `#!/bin/sh
while [ $# -gt 1 ]; do [ "$1" != --data-parallel-rpc-port ] || port=$2; shift; done
exec /vllm-vcr play --frontend-handshake tcp://127.0.0.1:$port --vllm-version 0.33.0 --vocab-size 2048 --max-model-len 4096 --instance-id 12345`

func newSite(t *testing.T, engine string) *site {
	t.Helper()
	c := testenv.KubeCluster(t)
	s := &site{cluster: c, vcr: testenv.VCRAndHelper(t), checkout: newCheckout(t), image: newImage(t, engine)}
	s.machine = c.Machine(t, testenv.MachineOptions{
		Files:   map[string]string{"/vllm-vcr": s.vcr, "/image": s.image},
		Env:     imageEnv,
		Program: "/vllm-vcr",
	})
	c.Queue(t, s.machine.Namespace, deploy.DefaultQueue, 0)
	c.Patch(t, "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/"+s.machine.Namespace, `{"spec":{"resourceGroups":[{
		"coveredResources":["cpu","memory","ephemeral-storage"],"flavors":[{"name":"testenv","resources":[
		{"name":"cpu","nominalQuota":"8"},{"name":"memory","nominalQuota":"128Gi"},{"name":"ephemeral-storage","nominalQuota":"500Gi"}]}]}]}}`)
	s.args = []string{"--kubeconfig", c.Kubeconfig, "--namespace", s.machine.Namespace}
	s.env = append(os.Environ(), "GITHUB_RUN_ID=", "CI=")
	s.writeTargets(t)
	return s
}

// imageEnv is the environment of the images: that of vLLM has a package, in which vllm-rs is.
func imageEnv(container string) []string {
	if container == deploy.Engine || container == deploy.Frontend {
		return []string{"PATH=/image/bin:" + os.Getenv("PATH"), "PYTHONPATH=/image/site"}
	}
	return nil
}

// newImage has the engine as vllm, an interpreter, and the real vllm-rs in a package that cannot be imported.
func newImage(t *testing.T, engine string) string {
	t.Helper()
	dir := t.TempDir()
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		testenv.Absent(t, fmt.Sprintf("python3, which finds vllm-rs in an image: %v", err))
	}
	for path, text := range map[string]string{
		"bin/vllm":              engine + "\n",
		"bin/python3":           "#!/bin/sh\nexec '" + strings.TrimSpace(string(python)) + "' \"$@\"\n",
		"site/vllm/__init__.py": "raise SystemExit('imported')\n",
	} {
		writeExecutable(t, filepath.Join(dir, path), text)
	}
	if err := os.Symlink(testenv.Frontend(t, "0.33.0"), filepath.Join(dir, "site/vllm/vllm-rs")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func writeExecutable(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// writeTargets gives the line images, and has a capture want most of the quota.
func (s *site) writeTargets(t *testing.T) {
	t.Helper()
	path := filepath.Join(s.checkout, "capture", "targets.toml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "\ncpu = \"2\"\n", "\ncpu = \"1\"\n", 1)
	if changed == string(text) {
		t.Fatalf("%s: the model asks for other than 2 CPUs", path)
	}
	changed = fmt.Sprintf("[lines.\"0.33\"]\nengine_image = %q\ntap_image = %q\n\n%s", kubeEngineImage, kubeTapImage, changed)
	if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
}

// command is the program in the checkout.
func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.vcr, args...)
	cmd.Dir, cmd.Env = s.checkout, s.env
	return cmd
}

// run runs the program and returns what it wrote. It must end with the code.
func (s *site) run(t *testing.T, code int, args ...string) string {
	t.Helper()
	cmd := s.command(args...)
	out, err := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("%q: exit code %d (%v), want %d\n%s", args, got, err, code, out)
	}
	return string(out)
}

// capture is the command line of a run.
func (s *site) capture(more ...string) []string {
	return slices.Concat([]string{"capture", "run", kubeTarget, otherKubeTarget, "--run-id", "r1"}, s.args, more)
}

// A begun is a run of the program that a test does something to.
type begun struct {
	*exec.Cmd
	lines *bufio.Scanner
	said  bytes.Buffer
}

func (s *site) begin(t *testing.T, args ...string) *begun {
	t.Helper()
	b := &begun{Cmd: s.command(args...)}
	output, input, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { output.Close() })
	b.Stdout, b.Stderr = input, input
	b.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	input.Close()
	t.Cleanup(func() { _ = b.Process.Kill() })
	b.lines = bufio.NewScanner(output)
	return b
}

// until reads what it writes until a line has all of the parts.
func (b *begun) until(t *testing.T, parts ...string) string {
	t.Helper()
	for b.lines.Scan() {
		line := b.lines.Text()
		fmt.Fprintln(&b.said, line)
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			return line
		}
	}
	t.Fatalf("it has ended before it said %q:\n%s", parts, b.said.String())
	return ""
}

// end returns all that it has said once it has ended, which must be with the code.
func (b *begun) end(t *testing.T, code int) string {
	t.Helper()
	for b.lines.Scan() {
		fmt.Fprintln(&b.said, b.lines.Text())
	}
	err := b.Wait()
	if got := b.ProcessState.ExitCode(); got != code {
		t.Fatalf("exit code %d (%v), want %d\n%s", got, err, code, b.said.String())
	}
	return b.said.String()
}

// nothingLeft checks that the cluster has nothing of captures any more.
func (s *site) nothingLeft(t *testing.T) {
	t.Helper()
	for _, path := range []string{"/apis/batch/v1/namespaces/" + s.machine.Namespace + "/jobs", "/api/v1/namespaces/" + s.machine.Namespace + "/pods"} {
		var left struct {
			Items []struct{ Metadata struct{ Name string } }
		}
		s.cluster.Get(t, path, &left)
		if len(left.Items) > 0 {
			t.Errorf("left at %s: %+v", path, left.Items)
		}
	}
}

// wantGoldens checks which targets have a golden that was captured here, with the engine's image.
func (s *site) wantGoldens(t *testing.T, want ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.checkout, "conformance", "manifest.toml"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for entry := range strings.SplitSeq(string(text), "[[golden]]") {
		if strings.Contains(entry, "engine_image = \"docker.io/vllm/vllm-openai:v0.33.0@sha256:5a5a") {
			_, id, _ := strings.Cut(entry, "id = \"")
			id, _, _ = strings.Cut(id, "\"")
			got = append(got, "0.33/"+id)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("captured goldens in the manifest: %q, want %q", got, want)
	}
}

func wantSaid(t *testing.T, output string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(output, part) {
			t.Errorf("it does not say %q:\n%s", part, output)
		}
	}
}

// Two targets go from the command line through the queue and the real programs in their pods into a bucket, the manifest
// and a pull request.
func TestRealClusterCapture(t *testing.T) {
	s := newSite(t, playerInPod)
	s.captureAll(t)
}

// The same with the released engine on the CPU.
func TestRealClusterCaptureRealEngine(t *testing.T) {
	if !slices.Contains(strings.Fields(os.Getenv("VLLM_VCR_ENGINES")), "0.33.0") {
		t.Skip("set VLLM_VCR_ENGINES to the releases to start, with 0.33.0 among them: .ci/peers engine installs them")
	}
	frontend := testenv.Frontend(t, "0.33.0")
	python := filepath.Join(filepath.Dir(frontend), "..", "..", "engines", "0.33.0", "bin", "python")
	// The package of the frontend would be in the way.
	s := newSite(t, "#!/bin/sh\nunset PYTHONPATH\nexec '"+python+`' -m vllm.entrypoints.cli.main "$@"`)
	s.captureAll(t)
}

func (s *site) captureAll(t *testing.T) {
	base := filepath.Join(t.TempDir(), "manifest.toml")
	manifest := filepath.Join(s.checkout, "conformance", "manifest.toml")
	copyFile(t, manifest, base)
	server := testenv.S3(t)
	if err := os.Mkdir(filepath.Join(server.Dir, "goldens"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "AWS_ACCESS_KEY_ID="+testenv.S3AccessKey, "AWS_SECRET_ACCESS_KEY="+testenv.S3SecretKey,
		"AWS_REGION="+testenv.S3Region, "AWS_ENDPOINT_URL_S3="+server.Endpoint)
	out := s.run(t, 0, s.capture("--upload", "s3://goldens/captured")...)
	t.Logf("%s", out)
	wantSaid(t, out, "insufficient unused quota for cpu", kubeTarget+": registered multiturn-s7: 180 requests, ",
		otherKubeTarget+": registered multiturn-s13: 180 requests, ", "s3://goldens/captured/")
	for _, container := range []string{deploy.Frontend, deploy.Tap, deploy.Engine, deploy.Loadgen} {
		if n := s.machine.Restarts(container); n > 0 {
			t.Errorf("%s was started again %d times", container, n)
		}
	}
	s.nothingLeft(t)
	s.wantGoldens(t, kubeTarget, otherKubeTarget)
	if stored := objectsIn(t, server.Dir); len(stored) != 2 {
		t.Errorf("the bucket has %q, want two goldens", stored)
	}
	s.takenUp(t)
	s.pullRequest(t, base)
}

// takenUp runs the same once more: everything is at home, and registered.
func (s *site) takenUp(t *testing.T) {
	out := s.run(t, 0, s.capture("--upload", "s3://goldens/captured")...)
	wantSaid(t, out, kubeTarget+": captured already", kubeTarget+": registered already", otherKubeTarget+": registered already")
}

func objectsIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".jsonl.gz") && entry.Type().IsRegular() {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// pullRequest describes the change and opens a pull request with it, as the workflow does.
func (s *site) pullRequest(t *testing.T, base string) {
	before, err := os.ReadFile(base)
	if err != nil {
		t.Fatal(err)
	}
	hub, err := githubtest.Start("../../testdata/github", map[string]string{"conformance/manifest.toml": string(before)})
	if err != nil {
		t.Fatal(err)
	}
	defer hub.Close()
	body := filepath.Join(t.TempDir(), "body.md")
	s.run(t, 0, "capture", "describe", "--line", "0.33", "--base", base, "--output", body)
	s.env = append(s.env, "GITHUB_API_URL="+hub.URL, "GITHUB_TOKEN="+githubtest.Token, "GITHUB_SHA=",
		"GITHUB_REPOSITORY="+githubtest.Owner+"/"+githubtest.Name, "GITHUB_SERVER_URL=https://github.com")
	out := s.run(t, 0, "github", "pull-request", "--branch", "auto/goldens-0.33", "--title", "Capture the goldens of vLLM 0.33.0",
		"--file", "conformance/manifest.toml", "--body-file", body)
	wantSaid(t, out, "pull request #1: created: ")
	if problems := hub.Violations(); len(problems) > 0 {
		t.Errorf("GitHub: %q", problems)
	}
	after, err := os.ReadFile(filepath.Join(s.checkout, "conformance", "manifest.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if !hub.Head("auto/goldens-0.33").Has("conformance/manifest.toml", string(after)) {
		t.Error("the branch does not have the manifest")
	}
	wantSaid(t, hub.Issues[0].Body, ": 2 new or different, ", "docker.io/vllm/vllm-openai:v0.33.0@sha256:5a5a")
}

// inTheMiddle returns once the tap has a good part of what the target says, which goes as slowly as the recording.
func (s *site) inTheMiddle(t *testing.T, b *begun) {
	t.Helper()
	b.until(t, kubeTarget+": running")
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		var size int64
		parts, err := filepath.Glob(filepath.Join(s.machine.Volume("trace"), "*frames*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts {
			if info, err := os.Stat(part); err == nil {
				size += info.Size()
			}
		}
		if size > 10<<10 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("nothing is recorded: %q\n%s", parts, b.said.String())
		}
	}
}

// newSlowSite has an engine that says what the golden of the target says, and takes its time.
func newSlowSite(t *testing.T) *site {
	t.Helper()
	s := newSite(t, playerInPod+" --trace /image/golden.jsonl.gz --replay-match prefix --pace recorded")
	s.copyGolden(t, "multiturn-s7-*")
	return s
}

func (s *site) copyGolden(t *testing.T, pattern string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(s.checkout, "testdata", "goldens", "conformance", "v0.33.0", "cpu", "tiny", pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("goldens %s: %q, %v", pattern, found, err)
	}
	copyFile(t, found[0], filepath.Join(s.image, "golden.jsonl.gz"))
}

// What dies in the pod of a capture is told with its last words, and registers nothing. The other goes on.
func TestRealClusterCaptureKilled(t *testing.T) {
	tests := []struct{ name, log string }{
		{name: deploy.Engine, log: kubeTarget + ": engine | vllm-vcr: playing line 0.33 "},
		{name: deploy.Tap}, // says nothing unless something is wrong
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			container := test.name
			s := newSlowSite(t)
			b := s.begin(t, s.capture()...)
			s.inTheMiddle(t, b)
			s.machine.Kill(t, container)
			out := b.end(t, 3)
			wantSaid(t, out, kubeTarget+": failed: ", "container "+container+" ", "exit code 137", test.log,
				otherKubeTarget+": registered multiturn-s13: ")
			s.nothingLeft(t)
			s.wantGoldens(t, otherKubeTarget)
		})
	}
}

// A load that the engine does not answer is told with the reason, and registers nothing.
func TestRealClusterCaptureLoadFails(t *testing.T) {
	s := newSite(t, playerInPod+" --trace /image/golden.jsonl.gz --replay-match prefix --strict")
	s.copyGolden(t, "multiturn-s7-*")
	out := s.run(t, 3, s.capture()...)
	wantSaid(t, out, otherKubeTarget+": failed: ", "container loadgen ended with exit code 3", "500",
		kubeTarget+": registered multiturn-s7: ")
	s.nothingLeft(t)
	s.wantGoldens(t, kubeTarget)
}

// A run that is killed leaves its Jobs to whoever takes it up.
func TestRealClusterCaptureTakenUp(t *testing.T) {
	s := newSlowSite(t)
	b := s.begin(t, s.capture()...)
	s.inTheMiddle(t, b)
	if err := b.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	b.end(t, -1)
	out := s.run(t, 0, s.capture()...)
	// The other may have come first, and be registered already.
	wantSaid(t, out, kubeTarget+": taken up: job ", kubeTarget+": registered multiturn-s7: ", otherKubeTarget+": registered ")
	s.nothingLeft(t)
	s.wantGoldens(t, kubeTarget, otherKubeTarget)
}

// A run that is interrupted deletes its Jobs.
func TestRealClusterCaptureInterrupted(t *testing.T) {
	s := newSlowSite(t)
	b := s.begin(t, s.capture()...)
	s.inTheMiddle(t, b)
	if err := b.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	wantSaid(t, b.end(t, 3), "interrupted")
	s.nothingLeft(t)
}
