package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
)

// The programs of a capture.
const (
	frontendName = "frontend"
	tapName      = "tap"
	engineName   = "engine"
	peerPrefix   = "peer-" // of the frontend and the engine that a session has beside them
)

const (
	// bootTries is how often the programs are started when somebody else has taken one of their ports.
	bootTries = 5
	// Between two looks at whether the frontend serves: an engine takes 20 s and more.
	healthPause = 100 * time.Millisecond
	// stopGrace is how long a program may take to end by itself.
	stopGrace = 10 * time.Second
	// frontendPatience is how much longer the frontend waits for the engine than we do.
	frontendPatience = time.Minute
	// tapPatience is how long the tap may take to close its files once the frontend has gone.
	tapPatience = 30 * time.Second
	// deathDelay is how long the end of a program may take to be known after it broke a connection, or ended another.
	deathDelay = 2 * time.Second
	// failureTail is what an error shows of each log, in bytes.
	failureTail = 1 << 10
	// addressInUse is what all of them say when a port is taken.
	addressInUse = "address already in use"
)

// Weights of a session, as nice values.
const (
	lightest = "19"
	ordinary = "0"
)

// A program is one of the three that serve a capture, as a child of this process.
type program struct {
	*process.Process
	name string
	log  *os.File
}

// A stack is frontend, tap and engine of a capture, from their start to their end.
type stack struct {
	opt       Options
	target    target.Target
	dir       string
	addresses target.Addresses
	peer      target.Addresses // of the session's second engine and its frontend, which meet without a tap
	ports     []vllmrs.Port
	programs  []*program // in the order of their start
	// alive ends with the first program that does.
	alive  context.Context
	ending context.CancelCauseFunc

	mutex sync.Mutex
	ended []*endedError // in the order in which it was seen
}

// An endedError is the end of a program that was to serve.
type endedError struct {
	name, status string
	code         int // -1 after a signal
}

func (e *endedError) Error() string { return "the " + e.name + " ended: " + e.status }

// errClash is a port that somebody else took after it was chosen.
var errClash = errors.New("another process has taken a port")

// boot empties the folder, starts frontend, tap and engine, and returns when they serve. The caller stops what it returns.
func boot(ctx context.Context, opt Options, t target.Target, dir string) (*stack, error) {
	for try := 1; ; try++ {
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
			return nil, err
		}
		if err := hasRoom(dir); err != nil {
			return nil, err
		}
		s := &stack{opt: opt, target: t, dir: dir}
		err := s.start(ctx)
		if err == nil {
			err = s.healthy()
		}
		if err == nil {
			return s, nil
		}
		if s.clashed() && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", errClash, err)
		}
		s.stop(ctx)
		if !errors.Is(err, errClash) || try == bootTries {
			return nil, err
		}
		opt.Progress(t, "a port was taken by somebody else: again, on other ports")
	}
}

// room is what a capture leaves at the least, in bytes.
const room = 4 << 20

// hasRoom reports, before an engine is started, which takes a minute, that its output could not be written.
func hasRoom(dir string) error {
	probe := filepath.Join(dir, "room")
	err := os.WriteFile(probe, make([]byte, room), 0o644)
	if err != nil {
		err = fmt.Errorf("a capture needs %d MB and more: %w", room>>20, err)
	}
	return errors.Join(err, os.Remove(probe))
}

// start starts the programs, on ports that are kept for them.
func (s *stack) start(ctx context.Context) error {
	s.alive, s.ending = context.WithCancelCause(ctx)
	s.addresses = target.Addresses{Model: s.opt.Models[s.target.Model.Key], ReadyTimeout: s.opt.BootTimeout + frontendPatience}
	if asked := s.target.Session; asked != nil {
		// Its path is in what the frontend says of adapters, and reveals nothing of this machine.
		var err error
		if s.addresses.Material, err = os.MkdirTemp("", "session-"); err != nil {
			return err
		}
		if s.addresses.Model, err = asked.Prepare(s.addresses.Material, s.addresses.Model); err != nil {
			return fmt.Errorf("prepare session %s: %w", asked.Name, err)
		}
	}
	numbers := []*int{&s.addresses.FrontendHandshake, &s.addresses.EngineHandshake, &s.addresses.HTTP, &s.addresses.KVEvents}
	if s.hasPeer() {
		s.peer = s.addresses
		numbers = append(numbers, &s.addresses.SideChannel, &s.peer.SideChannel, &s.peer.FrontendHandshake, &s.peer.HTTP)
	}
	for _, number := range numbers {
		port, err := s.opt.reserve()
		if err != nil {
			return fmt.Errorf("find a free port: %w", err)
		}
		s.ports = append(s.ports, port)
		*number = port.Number()
	}
	s.peer.EngineHandshake = s.peer.FrontendHandshake
	engine := s.opt.Engines[s.target.Release()]
	vllm := []string{"-m", "vllm.entrypoints.cli.main"}
	type start struct {
		name, path string
		args       []string
		addresses  target.Addresses
	}
	frontend := func(name string, a target.Addresses) start {
		if !s.target.PythonFrontend() {
			return start{name, engine.VLLMRS, s.target.FrontendArgs(a), a}
		}
		program := vllm
		if s.target.Session.Calls {
			program = []string{load.CallsScript(a.Material)}
		}
		return start{name, engine.Python, slices.Concat(program, s.target.FrontendArgs(a)), a}
	}
	starts := []start{
		frontend(frontendName, s.addresses),
		{tapName, s.opt.VCR, s.tapArgs(), s.addresses},
		{engineName, engine.Python, slices.Concat(vllm, s.target.EngineArgs(s.addresses)), s.addresses},
	}
	if s.hasPeer() {
		starts = append(starts, frontend(peerPrefix+frontendName, s.peer),
			start{peerPrefix + engineName, engine.Python, slices.Concat(vllm, s.target.EngineArgs(s.peer)), s.peer})
	}
	for _, p := range starts {
		if err := s.run(p.name, p.path, p.args, p.addresses); err != nil {
			return err
		}
	}
	return nil
}

// hasPeer reports whether a second engine and its frontend belong to the session.
func (s *stack) hasPeer() bool { return s.target.Session != nil && s.target.Session.Peer }

// tapArgs are the arguments of the tap. Those of the target are what was hashed, so they know no folder of this machine.
func (s *stack) tapArgs() []string {
	args := s.target.TapArgs(s.addresses, filepath.ToSlash(s.dir))
	if s.opt.Profiles != "" {
		args = append(args, "--profiles", s.opt.Profiles)
	}
	return args
}

// run starts a program, in a session of its own. Its environment is bare: what somebody exported changes no golden.
func (s *stack) run(name, path string, args []string, a target.Addresses) error {
	log, err := os.Create(filepath.Join(s.dir, name+".log"))
	if err != nil {
		return err
	}
	cmd := exec.Command(path, args...)
	if name == tapName {
		cmd.Args[0] = "vllm-vcr"
	}
	cmd.Env = s.environment(a)
	ownSession(cmd)
	p, err := process.Start(cmd, process.Options{Name: name, Output: log, Tail: failureTail, Grace: stopGrace, Guarded: path == s.opt.Engines[s.target.Release()].Python})
	if err != nil {
		log.Close()
		return err
	}
	s.programs = append(s.programs, &program{p, name, log})
	go func() {
		<-p.Done()
		ended := &endedError{name, p.Exit().Status, p.Exit().Code}
		s.mutex.Lock()
		s.ended = append(s.ended, ended)
		s.mutex.Unlock()
		s.ending(ended)
	}()
	return nil
}

// environment is that of frontend, tap and engine, which meet at these addresses.
func (s *stack) environment(a target.Addresses) []string {
	keep := func(name, _ string) bool { return name == "PATH" || name == "HOME" || name == "TMPDIR" }
	env := process.Environment(os.Environ(), keep, "LANG=C.UTF-8", "NO_COLOR=1", "VLLM_CACHE_ROOT="+s.opt.Engines[s.target.Release()].Cache())
	env = append(env, s.target.EngineEnv()...)
	if asked := s.target.Session; asked != nil {
		env = append(env, asked.Environment(s.target.Line, a.Material)...)
		if dir := s.opt.Packages[strings.Join(asked.Packages, "\n")]; dir != "" {
			env = append(env, "PYTHONPATH="+dir)
		}
	}
	if a.SideChannel > 0 {
		env = append(env, fmt.Sprintf("VLLM_NIXL_SIDE_CHANNEL_PORT=%d", a.SideChannel))
	}
	return env
}

// url is where the frontend serves, and peerURL that of the peer.
func (s *stack) url() string     { return fmt.Sprintf("http://127.0.0.1:%d", s.addresses.HTTP) }
func (s *stack) peerURL() string { return fmt.Sprintf("http://127.0.0.1:%d", s.peer.HTTP) }

// healthy waits until the engine has registered: only then does the frontend serve HTTP.
func (s *stack) healthy() error {
	ctx, cancel := context.WithTimeoutCause(s.alive, s.opt.BootTimeout,
		fmt.Errorf("the engine did not serve within %v", s.opt.BootTimeout))
	defer cancel()
	clients := []*openai.Client{openai.NewClient(s.url(), s.target.Model.Served)}
	if s.hasPeer() {
		clients = append(clients, openai.NewClient(s.peerURL(), s.target.Model.Served))
	}
	tick := time.NewTicker(healthPause)
	defer tick.Stop()
	for {
		if !slices.ContainsFunc(clients, func(c *openai.Client) bool { return c.Health(ctx) != nil }) {
			s.lighten()
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return s.failed(s.blame(context.Cause(ctx)))
		}
	}
}

// lighten gives the engine less weight than the others, now that it serves. Linux shares the cores by session before it
// does by process. An engine keeps two of them busy, and where it has as much weight as the tap, outputs wait up to half a
// second to be seen.
//
// In a session times do not matter, and some of it takes long enough.
func (s *stack) lighten() {
	if s.target.Session != nil {
		return
	}
	if err := weigh(s.program(engineName).Pid(), lightest); err != nil {
		s.opt.Log.Warn("the engine has the same CPU priority as the recorder: times in the capture may be wrong", "error", err)
	}
}

// program returns one of those that were started.
func (s *stack) program(name string) *program {
	for _, p := range s.programs {
		if p.name == name {
			return p
		}
	}
	return nil
}

// clashed reports whether the frontend or the tap ended for want of a port.
func (s *stack) clashed() bool {
	for _, p := range s.programs {
		if !strings.HasSuffix(p.name, engineName) && p.Exit() != nil && strings.Contains(strings.ToLower(p.Tail()), addressInUse) {
			return true
		}
	}
	return false
}

// broken is the error of a load that failed: the death of a program, if that is what broke it.
func (s *stack) broken(err error) error {
	patience := time.NewTimer(deathDelay)
	defer patience.Stop()
	select {
	case <-s.alive.Done():
		cause := context.Cause(s.alive)
		blamed := s.blame(cause)
		if errors.Is(err, cause) {
			err = blamed
		} else {
			err = fmt.Errorf("%w: %w", blamed, err)
		}
	case <-patience.C:
	}
	return s.failed(err)
}

// blame is, for the end of a program, the end that most likely brought about all others: that of a program which was
// killed, or else failed. Which end is seen first is chance.
func (s *stack) blame(cause error) error {
	var first *endedError
	if !errors.As(cause, &first) {
		return cause
	}
	s.settle()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, guilty := range []func(code int) bool{
		func(code int) bool { return code < 0 },
		func(code int) bool { return code > 0 },
	} {
		at := slices.IndexFunc(s.ended, func(e *endedError) bool { return guilty(e.code) })
		if at >= 0 {
			return s.ended[at]
		}
	}
	return cause
}

// settle lets the end of one program take its course with the others.
func (s *stack) settle() {
	patience := time.NewTimer(deathDelay)
	defer patience.Stop()
	for _, p := range s.programs {
		select {
		case <-p.Done():
		case <-patience.C:
			return
		}
	}
}

// failed puts the end of each log behind an error.
func (s *stack) failed(err error) error {
	if errors.Is(err, context.Canceled) {
		return err // somebody wanted it so
	}
	var text strings.Builder
	for _, p := range s.endedFirst() {
		fmt.Fprintf(&text, "\nthe last of %s", p.log.Name())
		if tail := safetext.Block(wholeLines(p.Tail())); tail != "" {
			text.WriteString(":\n" + strings.TrimSuffix(tail, "\n"))
		} else {
			text.WriteString(": nothing")
		}
	}
	return fmt.Errorf("%w%s", err, text.String())
}

// endedFirst are the programs, those that have ended before those that run: their logs are likelier to say why.
func (s *stack) endedFirst() []*program {
	programs := slices.Clone(s.programs)
	slices.SortStableFunc(programs, func(a, b *program) int {
		switch aEnded, bEnded := a.Exit() != nil, b.Exit() != nil; {
		case aEnded == bEnded:
			return 0
		case aEnded:
			return -1
		}
		return 1
	})
	return programs
}

// wholeLines is a tail without the line that it begins in the middle of, and without what says so: the log is named.
func wholeLines(tail string) string {
	if _, rest, ok := strings.Cut(tail, "before this]\n"); ok && strings.HasPrefix(tail, "[") {
		if _, whole, ok := strings.Cut(rest, "\n"); ok && whole != "" {
			return whole
		}
	}
	return tail
}

// finish lets the frontend go first, upon which the tap closes its files and ends.
func (s *stack) finish(ctx context.Context) error {
	mayDie := s.target.Session != nil && s.target.Session.MayDie
	if cause := context.Cause(s.alive); cause != nil && !mayDie {
		return s.failed(s.blame(cause))
	}
	if err := s.program(frontendName).Stop(ctx); err != nil {
		return err
	}
	tap := s.program(tapName)
	patience, cancel := context.WithTimeoutCause(ctx, tapPatience, fmt.Errorf("it did not end within %v of the frontend", tapPatience))
	defer cancel()
	// Of an engine that died the tap says that requests were in flight, and closes the raw frames all the same.
	if err := tap.Wait(patience); err != nil && !mayDie {
		return s.failed(fmt.Errorf("the recorder failed: %w", withoutTail(err)))
	}
	return nil
}

// withoutTail is the end of a process without its output, which is shown with that of the others.
func withoutTail(err error) error {
	var exit *process.ExitError
	if errors.As(err, &exit) {
		return errors.New(exit.Status)
	}
	return err
}

// stop ends what still runs, all at a time: politely, and by force when that does not help or ctx ends.
func (s *stack) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopGrace)
	defer cancel()
	if engine := s.program(engineName); engine != nil {
		_ = weigh(engine.Pid(), ordinary) // what is to end should not have to wait for a busy machine
	}
	stopped := make(chan struct{})
	for _, p := range s.programs {
		go func() {
			if err := p.Stop(ctx); err != nil {
				s.opt.Log.Error("a program does not end", "program", p.name, "error", err)
			}
			stopped <- struct{}{}
		}()
	}
	for range s.programs {
		<-stopped
	}
	for _, p := range s.programs {
		p.log.Close()
	}
	for _, port := range s.ports {
		port.Release()
	}
	if s.addresses.Material != "" {
		if err := os.RemoveAll(s.addresses.Material); err != nil {
			s.opt.Log.Warn("the models and adapters of the session are left", "error", err)
		}
	}
	s.ending(nil)
}
