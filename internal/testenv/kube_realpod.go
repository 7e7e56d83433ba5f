package testenv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
)

// A podObject is a pod as the API server has it.
type podObject struct {
	Metadata struct{ Name, UID, DeletionTimestamp string }
	Spec     struct {
		NodeName                      string
		InitContainers, Containers    []podContainer
		Volumes                       []struct{ Name string }
		TerminationGracePeriodSeconds int
	}
	Status struct{ Conditions []podCondition }
}

type podCondition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason,omitempty"`
	Message            string `json:"message,omitempty"`
	LastTransitionTime string `json:"lastTransitionTime"`
}

type podContainer struct {
	Name, Image, WorkingDir, RestartPolicy string
	Command, Args                          []string
	Env                                    []struct{ Name, Value string }
	VolumeMounts                           []struct {
		Name, MountPath string
		ReadOnly        bool
	}
	SecurityContext struct{ ReadOnlyRootFilesystem bool }
	ReadinessProbe  *podProbe
	Ports           []struct {
		Name          string
		ContainerPort int
	}
}

type podProbe struct {
	Exec    *struct{ Command []string }
	HTTPGet *struct {
		Path string
		Port any // a number, or the name of one
	}
	PeriodSeconds, TimeoutSeconds int
}

// A realPod is a pod that runs.
type realPod struct {
	machine *Machine
	object  podObject
	ctx     context.Context
	cancel  context.CancelFunc
	over    chan struct{} // closed once nothing of it runs
	network *process.Process
	workers sync.WaitGroup

	mu     sync.Mutex
	phase  string
	start  string
	ending bool // its main containers are over, or it is taken away
	init   []*unit
	main   []*unit
	since  map[string]podCondition
}

// A unit is a container of a pod. What changes is guarded by the pod.
type unit struct {
	podContainer
	process        *process.Process
	ready, started bool
	restarts       int
	state, last    map[string]any
}

func newRealPod(m *Machine, o podObject) *realPod {
	p := &realPod{
		machine: m, object: o, over: make(chan struct{}), phase: "Pending", start: now(), since: map[string]podCondition{},
	}
	p.ctx, p.cancel = context.WithCancel(m.ctx)
	waiting := func(of []podContainer) (units []*unit) {
		for _, c := range of {
			units = append(units, &unit{podContainer: c, state: map[string]any{"waiting": map[string]any{"reason": "PodInitializing"}}})
		}
		return units
	}
	p.init, p.main = waiting(o.Spec.InitContainers), waiting(o.Spec.Containers)
	return p
}

func now() string { return time.Now().UTC().Format(time.RFC3339) }

// run takes a pod to its end, once the pods before it are gone.
func (p *realPod) run() {
	defer close(p.over)
	select {
	case p.machine.room <- struct{}{}:
	case <-p.ctx.Done():
		return
	}
	defer func() { <-p.machine.room }()
	if err := p.prepare(); err != nil {
		p.machine.fail(err)
		return
	}
	defer p.machine.run(nil)
	code := p.play()
	p.stopSidecars()
	p.workers.Wait()
	_ = p.network.Stop(context.Background())
	p.change(func() {
		p.phase = "Succeeded"
		if code != 0 {
			p.phase = "Failed"
		}
	})
}

func (p *realPod) prepare() (err error) {
	if err := p.machine.begin(p); err != nil {
		return err
	}
	for _, v := range p.object.Spec.Volumes {
		if err := os.Mkdir(p.machine.Volume(v.Name), 0o777); err != nil {
			return err
		}
	}
	p.network, err = startNetwork()
	return err
}

// play runs all containers, and returns the exit code of the pod.
func (p *realPod) play() (code int) {
	p.change(func() {})
	for _, u := range p.init {
		if p.ctx.Err() != nil {
			return 1
		}
		p.begin(u)
		if u.RestartPolicy != "" {
			p.workers.Go(func() { p.keep(u) })
		} else if code := p.await(u); code != 0 {
			return code
		}
	}
	for _, u := range p.main {
		p.begin(u)
	}
	p.change(func() { p.phase = "Running" })
	for _, u := range p.main {
		if c := p.await(u); c != 0 {
			code = c
		}
	}
	return code
}

// begin starts a container. That it cannot be started is the machine's fault.
func (p *realPod) begin(u *unit) {
	log, err := os.OpenFile(p.machine.logFile(u.Name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		p.machine.fail(err)
		return
	}
	grace := time.Duration(p.object.Spec.TerminationGracePeriodSeconds) * time.Second
	started, err := process.Start(p.machine.container(p, u.podContainer), process.Options{
		Name: u.Name, Output: &logWriter{file: log}, Tail: 2 << 10, Grace: grace,
	})
	if err != nil {
		p.machine.fail(err)
		return
	}
	p.workers.Go(func() {
		<-started.Done()
		log.Close()
	})
	if u.RestartPolicy == "" && slices.Contains(p.main, u) {
		err := os.WriteFile(filepath.Join(p.machine.root, "main"), []byte(strconv.Itoa(started.Pid())), 0o644)
		if err != nil {
			p.machine.fail(err)
		}
	}
	if u.ReadinessProbe != nil {
		p.workers.Go(func() { p.probe(u, started) })
	}
	p.change(func() {
		u.process, u.started, u.ready = started, true, u.ReadinessProbe == nil && !p.plain(u)
		u.state = map[string]any{"running": map[string]any{"startedAt": now()}}
	})
}

// plain reports whether it is an init container of the ordinary kind.
func (p *realPod) plain(u *unit) bool { return slices.Contains(p.init, u) && u.RestartPolicy == "" }

// await returns the exit code of a container once it has ended. If the pod is taken away, what is no sidecar is ended.
func (p *realPod) await(u *unit) (code int) {
	if u.process == nil {
		return 1
	}
	taken := p.ctx.Done()
	if u.RestartPolicy != "" {
		taken = nil
	}
	select {
	case <-u.process.Done():
	case <-taken:
		_ = u.process.Stop(p.machine.ctx) // at once if the test is over
	}
	end := u.process.Exit()
	terminated := map[string]any{
		"exitCode": exitStatus(end), "reason": "Completed", "startedAt": p.start, "finishedAt": now(),
	}
	if exitStatus(end) != 0 {
		terminated["reason"], terminated["message"] = "Error", end.Tail
	}
	p.change(func() {
		u.ready, u.started = p.plain(u) && exitStatus(end) == 0, false
		u.state = map[string]any{"terminated": terminated}
	})
	return exitStatus(end)
}

// exitStatus is the exit code, as a shell has it.
func exitStatus(end *process.ExitError) int {
	var exit *exec.ExitError
	if errors.As(end.Err, &exit) {
		if status, ok := exit.Sys().(interface {
			Signaled() bool
			Signal() syscall.Signal
		}); ok && status.Signaled() {
			return 128 + int(status.Signal())
		}
	}
	return end.Code
}

// keep starts a sidecar again when it ends: at once the first time, and then no more, as kubelets wait longer than tests.
func (p *realPod) keep(u *unit) {
	for {
		p.await(u)
		p.mu.Lock()
		ending, last := p.ending, u.state
		p.mu.Unlock()
		if ending || p.ctx.Err() != nil {
			return
		}
		if u.restarts > 0 {
			p.change(func() {
				u.last = last
				u.state = map[string]any{"waiting": map[string]any{
					"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container=" + u.Name,
				}}
			})
			return
		}
		p.machine.mu.Lock()
		p.machine.restarts[u.Name]++
		p.machine.mu.Unlock()
		log := p.machine.logFile(u.Name)
		if err := os.Rename(log, previousLog(log)); err != nil {
			p.machine.fail(err)
		}
		p.mu.Lock()
		u.last = last
		u.restarts++
		p.mu.Unlock()
		p.begin(u)
	}
}

// stopSidecars ends them in the reverse of their order.
func (p *realPod) stopSidecars() {
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
	for _, u := range slices.Backward(p.init) {
		p.mu.Lock()
		running := u.process
		p.mu.Unlock()
		if running != nil {
			_ = running.Stop(p.machine.ctx)
		}
	}
}

// probe asks whether a container is ready for as long as it runs.
func (p *realPod) probe(u *unit, running *process.Process) {
	period := time.NewTicker(time.Duration(max(u.ReadinessProbe.PeriodSeconds, 1)) * time.Second)
	defer period.Stop()
	for {
		cmd := p.asking(u, running)
		ready := cmd.Run() == nil && running.Exit() == nil
		p.mu.Lock()
		changed := ready != u.ready
		p.mu.Unlock()
		if changed {
			p.change(func() { u.ready = ready })
		}
		select {
		case <-period.C:
		case <-running.Done():
			return
		}
	}
}

// asking is the command of a probe: one in the container, or a request to the address of the pod.
func (p *realPod) asking(u *unit, running *process.Process) *exec.Cmd {
	probe := u.ReadinessProbe
	args := append([]string{"--target", strconv.Itoa(running.Pid())}, strings.Fields(entering)...)
	if get := probe.HTTPGet; get != nil {
		port := fmt.Sprint(get.Port)
		for _, known := range u.Ports {
			if known.Name == port {
				port = strconv.Itoa(known.ContainerPort)
			}
		}
		args = []string{
			"--target", strconv.Itoa(p.network.Pid()), "--net", "--", "curl", "--fail", "--silent", "--max-time",
			strconv.Itoa(max(probe.TimeoutSeconds, 1)), "http://" + podIP + ":" + port + get.Path,
		}
	} else {
		args = append(append(args, "--"), probe.Exec.Command...)
	}
	cmd := exec.CommandContext(p.ctx, "nsenter", args...)
	cmd.Env = p.machine.environment(u.podContainer)
	return cmd
}

// kill ends what runs in a container, and what that has started.
func (p *realPod) kill(container string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range slices.Concat(p.init, p.main) {
		if u.Name == container && u.process != nil {
			running, err := os.FindProcess(u.process.Pid())
			if err != nil {
				return err
			}
			return running.Kill()
		}
	}
	return fmt.Errorf("container %s does not run", container)
}

// delete ends the pod and takes it from the API server.
func (p *realPod) delete() {
	p.cancel()
	<-p.over
	path := podPath(p.machine.Namespace, p.object.Metadata.Name) + "?gracePeriodSeconds=0"
	status, reply, err := p.machine.cluster.request(http.MethodDelete, path, "", "")
	if err != nil || status/100 != 2 && status != http.StatusNotFound {
		p.machine.fail(fmt.Errorf("delete pod %s: status %d: %s: %v", p.object.Metadata.Name, status, reply, err))
	}
}

func (p *realPod) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
	if err := p.report(); err != nil {
		p.machine.fail(err)
	}
}

func (p *realPod) report() error {
	path := podPath(p.machine.Namespace, p.object.Metadata.Name)
	var is podObject
	status, reply, err := p.machine.cluster.request(http.MethodGet, path, "", "")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(reply, &is); err != nil || status != http.StatusOK || is.Metadata.UID != p.object.Metadata.UID {
		return nil // it is gone
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{
		"phase": p.phase, "startTime": p.start, "hostIP": "127.0.0.1", "podIP": podIP, "conditions": p.conditions(is),
		"initContainerStatuses": statusesOf(p.init), "containerStatuses": statusesOf(p.main),
	}})
	if err != nil {
		return err
	}
	status, reply, err = p.machine.cluster.request(http.MethodPatch, path+"/status", "application/merge-patch+json", string(body))
	if err != nil || status != http.StatusOK && status != http.StatusNotFound {
		return fmt.Errorf("status of pod %s: status %d: %s: %v", p.object.Metadata.Name, status, reply, err)
	}
	return nil
}

// conditions are the kubelet's, and those of others.
func (p *realPod) conditions(is podObject) []podCondition {
	ready := p.phase == "Running"
	initialized := true
	for _, u := range p.init {
		initialized = initialized && (u.ready || u.restarts > 0)
		ready = ready && u.ready
	}
	for _, u := range p.main {
		ready = ready && u.ready
	}
	all := slices.DeleteFunc(is.Status.Conditions, func(c podCondition) bool {
		return slices.Contains([]string{"Initialized", "Ready", "ContainersReady"}, c.Type)
	})
	for kind, isSo := range map[string]bool{"Initialized": initialized, "Ready": ready, "ContainersReady": ready} {
		c := podCondition{Type: kind, Status: "False", LastTransitionTime: now()}
		if isSo {
			c.Status = "True"
		}
		if before := p.since[kind]; before.Status == c.Status {
			c = before
		}
		p.since[kind] = c
		all = append(all, c)
	}
	return all
}

func statusesOf(units []*unit) []map[string]any {
	all := []map[string]any{}
	for _, u := range units {
		status := map[string]any{
			"name": u.Name, "image": u.Image, "ready": u.ready, "started": u.started, "restartCount": u.restarts,
			"state": u.state, "imageID": "",
		}
		if u.process != nil {
			status["imageID"] = imageID(u.Image)
		}
		if u.last != nil {
			status["lastState"] = u.last
		}
		all = append(all, status)
	}
	return all
}

// imageID is an image as a container runtime calls it: by its digest, and without its tag.
func imageID(image string) string {
	name, digest, _ := strings.Cut(image, "@")
	if slash, colon := strings.LastIndex(name, "/"), strings.LastIndex(name, ":"); colon > slash {
		name = name[:colon]
	}
	return name + "@" + digest
}

// A logWriter writes lines as a container runtime does.
type logWriter struct {
	file *os.File
	part []byte
}

func (w *logWriter) Write(b []byte) (int, error) {
	w.part = append(w.part, b...)
	for {
		end := bytes.IndexByte(w.part, '\n')
		if end < 0 {
			return len(b), nil
		}
		_, err := fmt.Fprintf(w.file, "%s stdout F %s\n", time.Now().UTC().Format(time.RFC3339Nano), w.part[:end])
		if err != nil {
			return 0, err
		}
		w.part = w.part[end+1:]
	}
}
