package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A Machine is a namespace of a [Cluster] whose pods really run, one after another, as processes of this machine that see
// what their spec says: the mounts of their containers, a file system that is read-only if it says so, and a network of
// the pod's own. Their user is that of the test, and their images are this machine and [MachineOptions].
//
// What a kubelet does is done: init containers in their order, sidecars that are started again when they end, readiness
// probes, SIGTERM for the sidecars after the main containers, logs of this and the previous time, and the status of it
// all. Commands that are executed in a pod run in its main container.
type Machine struct {
	Namespace string

	cluster *Cluster
	options MachineOptions
	root    string // of all that the pods have
	room    chan struct{}
	ctx     context.Context
	running sync.WaitGroup

	mu       sync.Mutex
	current  *realPod
	restarts map[string]int // of a container's name
	failures []error
}

// MachineOptions say what the images of a [Machine] are.
type MachineOptions struct {
	// Files are what containers have beside what this machine has: from a path in the container to that of a file or
	// folder here. The first part of the former must be there in no other way.
	Files map[string]string
	// Env is the environment of a container's image, as NAME=value; nil has none. PATH is this machine's if not given.
	Env func(container string) []string
	// Program is a program in Files, directly below /, that may be executed in pods.
	Program string
}

// maxMachines is how many there can be in the cluster of a test binary, for the same reason as [maxNamespaces].
const maxMachines = 40

const machinePrefix = "real-"

// Machine returns a machine, which ends with the test. Only root can have one: others are skipped.
func (c *Cluster) Machine(t testing.TB, options MachineOptions) *Machine {
	t.Helper()
	for _, program := range []string{"nsenter", "unshare", "chroot", "ip", "curl"} {
		if _, err := exec.LookPath(program); err != nil || os.Geteuid() != 0 {
			Absent(t, fmt.Sprintf("pods really run where the test is root and has %s: %v", program, err))
		}
	}
	n := int(c.machines.Add(1))
	if n > maxMachines {
		t.Fatalf("a cluster has %d machines at most: raise the bound or run tests less often", maxMachines)
	}
	m := &Machine{
		Namespace: fmt.Sprintf("%s%d", machinePrefix, n), cluster: c, options: options, room: make(chan struct{}, 1),
		restarts: map[string]int{},
	}
	m.root = c.Root(m.Namespace)
	require.NoError(t, os.Mkdir(m.root, 0o755))
	require.NoError(t, m.installProgram())
	c.createNamespace(t, m.Namespace)
	ctx, cancel := context.WithCancel(context.Background())
	m.ctx = ctx
	m.running.Go(m.follow)
	t.Cleanup(func() {
		cancel()
		m.running.Wait()
		for _, err := range m.failures {
			t.Errorf("machine: %v", err)
		}
	})
	return m
}

// installProgram lets kwok execute the program. It enters the main container as far as there is one.
func (m *Machine) installProgram() error {
	if m.options.Program == "" {
		return nil
	}
	script := fmt.Sprintf("#!/bin/sh\n"+`exec nsenter --target "$(cat "$POD_ROOT/main")" %s -- %s "$@"`+"\n", entering, m.options.Program)
	return atomicfile.Write(filepath.Join(m.cluster.dir, kwokRoot, m.options.Program), []byte(script), 0o755)
}

// entering is what a process shares with those of a container.
const entering = "--mount --net --root --wd"

// Kill sends SIGKILL to what runs in a container of the pod that runs.
func (m *Machine) Kill(t testing.TB, container string) {
	t.Helper()
	m.mu.Lock()
	pod := m.current
	m.mu.Unlock()
	if pod == nil {
		t.Fatal("no pod runs")
	}
	require.NoError(t, pod.kill(container))
}

// Restarts is how often a container was started again, in all pods so far.
func (m *Machine) Restarts(container string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.restarts[container]
}

// Log is what a container of the newest pod has written.
func (m *Machine) Log(container string) string {
	text, _ := os.ReadFile(m.logFile(container)) // none is as good as an empty one
	return string(text)
}

func (m *Machine) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures = append(m.failures, err)
}

// follow runs pods as they appear. A watch that breaks is begun anew.
func (m *Machine) follow() {
	known := map[string]*realPod{}
	for m.ctx.Err() == nil {
		if err := m.watch(known); err != nil && m.ctx.Err() == nil {
			m.fail(err)
			return
		}
	}
	for uid, pod := range known {
		pod.delete()
		delete(known, uid)
	}
}

func (m *Machine) watch(known map[string]*realPod) error {
	response, err := m.cluster.send(m.ctx, m.cluster.Token, http.MethodGet, "/api/v1/namespaces/"+m.Namespace+"/pods?watch=true", "", "")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	events := json.NewDecoder(response.Body)
	for {
		var event struct {
			Type   string
			Object podObject
		}
		if err := events.Decode(&event); err != nil {
			return nil
		}
		m.apply(event.Type, event.Object, known)
	}
}

func (m *Machine) apply(change string, o podObject, known map[string]*realPod) {
	pod := known[o.Metadata.UID]
	switch {
	case change == "DELETED":
		if pod != nil {
			pod.cancel()
			delete(known, o.Metadata.UID)
		}
	case o.Metadata.DeletionTimestamp != "":
		if pod == nil {
			pod = newRealPod(m, o)
			known[o.Metadata.UID] = pod
			close(pod.over)
		}
		m.running.Go(pod.delete)
	case pod == nil && o.Spec.NodeName != "":
		pod = newRealPod(m, o)
		known[o.Metadata.UID] = pod
		m.running.Go(pod.run)
	}
}

func (m *Machine) logFile(container string) string {
	return filepath.Join(m.root, logName(container)+".log")
}

// begin makes room for a pod: what the one before has left goes.
func (m *Machine) begin(p *realPod) error {
	entries, err := os.ReadDir(m.root)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(m.root, entry.Name())); err != nil {
			return err
		}
	}
	m.run(p)
	return nil
}

// run notes the pod that runs now, nil for none.
func (m *Machine) run(p *realPod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current = p
}

// container returns the command of a container in a network namespace, that of a process.
func (m *Machine) container(p *realPod, c podContainer) *exec.Cmd {
	root := filepath.Join(m.root, "root-"+c.Name)
	args := []string{fmt.Sprintf("--net=/proc/%d/ns/net", p.network.Pid()), "unshare", "-m", "sh", "-c", m.script(root, c), "sh"}
	args = append(append(append(args, path.Join("/", c.WorkingDir)), c.Command...), c.Args...)
	cmd := exec.Command("nsenter", args...)
	cmd.Env = m.environment(c)
	return cmd
}

func (m *Machine) environment(c podContainer) []string {
	env := []string{"PATH=" + os.Getenv("PATH")}
	if m.options.Env != nil {
		env = append(env, m.options.Env(c.Name)...)
	}
	for _, e := range c.Env {
		env = append(env, e.Name+"="+e.Value)
	}
	return env
}

// script makes the file system of a container, and runs what follows in it: a folder, and a command in that folder.
func (m *Machine) script(root string, c podContainer) string {
	own := map[string]bool{"tmp": true}
	var mounts strings.Builder
	bind := func(at, from string, readOnly bool) {
		first, _, _ := strings.Cut(strings.TrimPrefix(at, "/"), "/")
		if first != "dev" {
			own[first] = true
		}
		fmt.Fprintf(&mounts, "bind '%s' \"$root%s\" %t\n", from, at, readOnly)
	}
	for at, from := range m.options.Files {
		bind(at, from, false)
	}
	for _, v := range c.VolumeMounts {
		bind(v.MountPath, m.Volume(v.Name), v.ReadOnly)
	}
	var names []string
	for name := range own {
		names = append(names, "/"+name)
	}
	return fmt.Sprintf(containerScript, root, c.SecurityContext.ReadOnlyRootFilesystem, strings.Join(names, "|"), mounts.String())
}

// Volume is the folder of a volume of the newest pod.
func (m *Machine) Volume(name string) string { return filepath.Join(m.root, "volume-"+name) }

// containerScript binds what this machine has below an empty root, but for what the container has of its own.
const containerScript = `set -e
root='%s' read_only=%t
bind() {
  if [ -d "$1" ]; then mkdir -p "$2"; else touch "$2"; fi
  mount --bind "$1" "$2"
  ! $3 || mount -o remount,bind,ro "$2"
}
mkdir -p "$root/tmp"
mount --bind "$root" "$root"
for entry in /*; do
  case $entry in %s) continue ;; esac
  if [ -L "$entry" ]; then
    [ -L "$root$entry" ] || cp -P "$entry" "$root$entry"
  elif [ -d "$entry" ]; then
    mkdir -p "$root$entry"
    mount --rbind "$entry" "$root$entry"
    ! $read_only || mount -o remount,bind,ro "$root$entry"
  fi
done
%s! $read_only || mount -o remount,bind,ro "$root"
exec chroot "$root" sh -c 'cd "$0" && exec "$@"' "$@"`

// podIP is the address of every pod, in its own network.
const podIP = "192.0.2.1"

// startNetwork starts a process whose network is that of a pod: a loopback, and an address.
func startNetwork() (*process.Process, error) {
	cmd := exec.Command("unshare", "-n", "sh", "-c", "ip link set lo up && ip address add "+podIP+"/32 dev lo && echo up && exec sleep infinity")
	up := make(chan struct{})
	p, err := process.Start(cmd, process.Options{Name: "network", Output: firstWrite{up, new(sync.Once)}})
	if err != nil {
		return nil, err
	}
	select {
	case <-up:
		return p, nil
	case <-p.Done():
		return nil, p.Exit()
	}
}

// firstWrite closes a channel when something is written.
type firstWrite struct {
	up   chan struct{}
	once *sync.Once
}

func (w firstWrite) Write(b []byte) (int, error) {
	w.once.Do(func() { close(w.up) })
	return len(b), nil
}
