package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/serve/edge"
	"github.com/vllm-vcr/conformance/player"
)

// Options configures [Run].
type Options struct {
	Model Model
	// Names are the names of the model in requests; default Model.Name.
	Names []string
	// Frontends is how many frontends there are, each with engines of its own; default 1.
	Frontends int
	// Frontend finds the frontend for a vLLM line. It is called once.
	Frontend func(ctx context.Context, line string) (Frontend, error)
	// Args are added to the flags of the frontend, and Env to its environment.
	Args, Env []string
	// Engines makes the player behind frontend number n, which dials handshake. It is called again at each restart.
	Engines func(handshake string, n int) (*Engines, error)
	// Local makes the frontend that runs in this process, in the place of a program that Frontend finds; nil for one that does
	// not. Locals are where they answer, by number.
	Local  func(*Engines) (LocalFrontend, error)
	Locals []*Local
	// Handshake is the port where the first frontend waits for its engines, if it must be a certain one.
	Handshake vllmrs.Port
	// Front makes the server that clients talk to. upstreams are the URLs of the frontends.
	Front func(upstreams []string) (Front, error)
	// Serve makes that server serve. It returns nil after a shutdown.
	Serve func(ctx context.Context, front Front) error
	// ReadyTimeout is how long the frontend waits for its engines and is waited for; default 5 minutes.
	ReadyTimeout time.Duration
	// ShutdownTimeout is how long requests may go on after the end of the context.
	ShutdownTimeout time.Duration
	// Restart starts frontend and player again when one of them ends.
	Restart bool
	// Output gets what frontend number n writes.
	Output func(n int) io.Writer
	// Ready is called when requests are answered, at the start and after each restart.
	Ready func(Started)
	Log   *slog.Logger
}

// A Group is what generates: a [player.Group], or an engine of vLLM.
type Group interface {
	Line() string
	Engines() []player.EngineInfo
	// Ready is closed when the engines can be asked.
	Ready() <-chan struct{}
	Run(ctx context.Context) error
}

// Engines is the player behind a frontend.
type Engines struct {
	Group Group
	Count int
	// LoRA reports whether adapters can be loaded.
	LoRA bool
	// Transfer is the --kv-transfer-config of the engines; empty without one.
	Transfer string
	// Close ends what listens beside the engines, when they have ended.
	Close func()
}

// A LocalFrontend is a frontend in this process. Run runs its engines until ctx ends, or one of them does.
type LocalFrontend interface {
	http.Handler
	Run(ctx context.Context) error
}

// A Local answers by the frontend that runs in this process, and with status 503 while none does.
type Local struct{ now atomic.Pointer[LocalFrontend] }

func (l *Local) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f := l.now.Load(); f != nil {
		(*f).ServeHTTP(w, r)
		return
	}
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
}

// Running are the players that run, by the number of their frontend, for those who read their values. It is safe for use by several
// goroutines.
type Running struct {
	mu     sync.Mutex
	groups map[int]Group
}

// Set makes a player the one behind frontend number n.
func (r *Running) Set(n int, group Group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.groups == nil {
		r.groups = map[int]Group{}
	}
	r.groups[n] = group
}

// Engines tells the edge about the engines behind a frontend.
func (r *Running) Engines(n int) (all []edge.Engine) {
	r.mu.Lock()
	group := r.groups[n]
	r.mu.Unlock()
	if group == nil {
		return nil
	}
	for _, e := range group.Engines() {
		known := edge.Engine{Index: e.Index, MaxLoRAs: lorasOf(e), SleepLevel: e.SleepLevel}
		caching := "False"
		if e.PrefixCaching {
			caching = "True"
		}
		known.CacheConfig = []edge.Label{
			{Name: "block_size", Value: strconv.Itoa(e.BlockSize)},
			{Name: "cache_dtype", Value: "auto"},
			{Name: "enable_prefix_caching", Value: caching},
			{Name: "kv_cache_size_tokens", Value: strconv.Itoa(e.BlockSize * e.NumGPUBlocks)},
			{Name: "num_gpu_blocks", Value: strconv.Itoa(e.NumGPUBlocks)},
		}
		if e.MaxModelLen > 0 {
			concurrency := float64(e.BlockSize*e.NumGPUBlocks) / float64(e.MaxModelLen)
			known.CacheConfig = append(known.CacheConfig, edge.Label{Name: "kv_cache_max_concurrency", Value: strconv.FormatFloat(concurrency, 'g', -1, 64)})
		}
		all = append(all, known)
	}
	return all
}

// lorasOf is how many adapters run at the same time on an engine.
func lorasOf(e player.EngineInfo) int {
	if e.MaxLoRAs < 0 {
		return DefaultMaxLoRAs
	}
	return e.MaxLoRAs
}

// DefaultMaxLoRAs is how many adapters run at the same time unless something else is wanted. A frontend loads none where the engine
// has none.
const DefaultMaxLoRAs = 16

// Front is the server that clients talk to.
type Front interface {
	// Shutdown takes no new requests, and returns when the others have ended or ctx ends, which cuts them off.
	Shutdown(ctx context.Context) error
}

// Started is what runs.
type Started struct {
	Line     string
	Frontend Frontend
	Names    []string
	// Pids are the process ids of the frontends, and Upstreams their URLs.
	Pids      []int
	Upstreams []string
	Restarts  int
}

// An EndedError is a frontend that ended although nobody stopped it. What it wrote last is in its log.
type EndedError struct{ Exit *process.ExitError }

func (e *EndedError) Error() string {
	return fmt.Sprintf("the frontend ended by itself: %s; its log says more, and --restart starts it again", e.Exit.Status)
}
func (e *EndedError) Unwrap() error { return e.Exit }

// Code is the exit code of the frontend, as a shell has it after a signal: 137 after SIGKILL. A frontend that ended without an
// error has failed here all the same.
func (e *EndedError) Code() int {
	switch code := e.Exit.Code; {
	case code > 0:
		return code
	case code < 0:
		if signal := e.Exit.Signal(); signal > 0 {
			return 128 + signal
		}
	}
	return 3
}

// Pauses before a restart: nothing for the first, and a while if it keeps ending.
const (
	firstPause = 500 * time.Millisecond
	longPause  = 10 * time.Second
	// lasting is after how long a start counts as good.
	lasting = time.Minute
	// deathDelay is how long the end of a frontend may take to be known after its connections broke.
	deathDelay = 2 * time.Second
	// engineGrace is how long the player may take to end.
	engineGrace = 15 * time.Second
)

// A server is one call of Run.
type server struct {
	opt             Options
	handshake, http []vllmrs.Port
	upstreams       []string
	frontend        *Frontend // once it is found
	front           Front
	serving         chan error
	restarts        int
}

// Run serves until ctx ends, then lets what runs come to its end, and returns nil. When a frontend or a player ends before,
// everything is stopped or, with Restart, started again.
func Run(ctx context.Context, opt Options) (err error) {
	s := &server{opt: opt, serving: make(chan error, 1)}
	for n := range max(opt.Frontends, 1) {
		if opt.Local != nil {
			s.handshake, s.upstreams = append(s.handshake, vllmrs.Port{}), append(s.upstreams, "")
			continue
		}
		var ports [2]vllmrs.Port
		for i := range ports {
			if i == 0 && n == 0 && opt.Handshake.Number() != 0 {
				ports[i] = opt.Handshake
				continue
			}
			if ports[i], err = vllmrs.Reserve(); err != nil {
				return fmt.Errorf("reserve a port for the frontend: %w", err)
			}
			defer ports[i].Release()
		}
		s.handshake, s.http = append(s.handshake, ports[0]), append(s.http, ports[1])
		s.upstreams = append(s.upstreams, fmt.Sprintf("http://127.0.0.1:%d", ports[1].Number()))
	}
	if s.front, err = opt.Front(s.upstreams); err != nil {
		return err
	}
	go func() { s.serving <- opt.Serve(context.WithoutCancel(ctx), s.front) }()
	defer func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.front.Shutdown(now)
	}()
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		started := time.Now()
		wasReady, err := s.once(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if !opt.Restart || !wasReady && s.restarts == 0 {
			return err
		}
		if time.Since(started) > lasting {
			pause = firstPause
		}
		opt.Log.Warn("frontend and player are started again", "error", err, "pause", pause)
		s.restarts++
		if retry.Pause(ctx, pause) != nil {
			return nil
		}
	}
}

// A frontend is one that was started.
type frontend interface {
	Healthy(ctx context.Context) error
	Pid() int // 0 of one in this process
	Done() <-chan struct{}
	Exit() *process.ExitError
	Close() error
}

// A localUnit is a frontend in this process: it ends with its engines only.
type localUnit struct {
	local *Local
	group Group
}

func (u localUnit) Healthy(ctx context.Context) error {
	select {
	case <-u.group.Ready():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
func (localUnit) Pid() int                 { return 0 }
func (localUnit) Done() <-chan struct{}    { return nil }
func (localUnit) Exit() *process.ExitError { return nil }
func (u localUnit) Close() error           { u.local.now.Store(nil); return nil }

// A unit is a frontend and the player behind it.
type unit struct {
	engines  *Engines
	frontend frontend
	stop     context.CancelFunc // the player
	ended    chan struct{}      // closed when the player has ended
	err      error              // why
}

// once starts frontends and players, and returns when one of them has ended, or after the shutdown. All have ended then.
func (s *server) once(ctx context.Context) (wasReady bool, err error) {
	var units []*unit
	defer func() {
		for _, u := range units {
			u.close()
		}
	}()
	// The end of any is an event for all.
	alive, over := context.WithCancelCause(ctx)
	defer over(nil)
	for n := range s.handshake {
		u, err := s.start(ctx, n, over)
		if err != nil {
			return false, err
		}
		units = append(units, u)
	}
	go func() {
		select {
		case err := <-s.serving:
			over(fmt.Errorf("the HTTP server ended: %w", err))
		case <-alive.Done():
		}
	}()
	healthy, cancel := context.WithTimeoutCause(alive, s.readyTimeout(), fmt.Errorf("the frontend did not serve within %v", s.readyTimeout()))
	defer cancel()
	result := Started{Line: units[0].engines.Group.Line(), Frontend: *s.frontend, Names: s.names(), Pids: []int{}, Upstreams: s.upstreams, Restarts: s.restarts}
	for _, u := range units {
		if err := u.frontend.Healthy(healthy); err != nil {
			return false, s.notReady(units, err)
		}
		if pid := u.frontend.Pid(); pid > 0 {
			result.Pids = append(result.Pids, pid)
		}
	}
	s.opt.Ready(result)
	<-alive.Done()
	if ctx.Err() == nil {
		return true, s.blame(alive, units, context.Cause(alive))
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opt.ShutdownTimeout)
	defer cancel()
	if err := s.front.Shutdown(limited); err != nil {
		s.opt.Log.Warn("requests were cut off, as they did not end in time", "shutdown_timeout", s.opt.ShutdownTimeout)
	}
	return true, nil
}

func (s *server) readyTimeout() time.Duration {
	if s.opt.ReadyTimeout > 0 {
		return s.opt.ReadyTimeout
	}
	return 5 * time.Minute
}

func (s *server) names() []string {
	if len(s.opt.Names) > 0 {
		return s.opt.Names
	}
	return []string{s.opt.Model.Name}
}

// start starts frontend number n and its player. over is told the end of either.
func (s *server) start(ctx context.Context, n int, over context.CancelCauseFunc) (*unit, error) {
	handshake := fmt.Sprintf("tcp://127.0.0.1:%d", s.handshake[n].Number())
	engines, err := s.opt.Engines(handshake, n)
	if err != nil {
		return nil, err
	}
	u := &unit{engines: engines, ended: make(chan struct{}), stop: func() {}}
	fail := func(err error) (*unit, error) {
		engines.Close()
		return nil, err
	}
	if s.frontend == nil {
		f, err := s.opt.Frontend(ctx, engines.Group.Line())
		if err != nil {
			return fail(err)
		}
		s.frontend = &f
	}
	f := *s.frontend
	names := s.names()
	maxLoRAs := 0
	if engines.LoRA {
		maxLoRAs = lorasOf(engines.Group.Engines()[0])
	}
	run := engines.Group.Run
	if s.opt.Local != nil {
		local, err := s.opt.Local(engines)
		if err != nil {
			return fail(err)
		}
		run, u.frontend = local.Run, localUnit{s.opt.Locals[n], engines.Group}
		s.opt.Locals[n].now.Store(&local)
	} else if u.frontend, err = vllmrs.Start(context.WithoutCancel(ctx), vllmrs.Options{
		Binary: f.Program, Before: f.before, ModelDir: s.opt.Model.Dir, ServedName: names[0], AlsoServed: names[1:], Engines: engines.Count,
		Args: append(f.defaults(s.opt.Model, maxLoRAs, engines.Transfer, s.opt.Args), s.opt.Args...), Env: append(f.environment(), s.opt.Env...),
		Handshake: s.handshake[n], HTTP: s.http[n], ReadyTimeout: s.readyTimeout(), Output: s.opt.Output(n), Log: s.opt.Log,
	}); err != nil {
		return fail(err)
	}
	running, stop := context.WithCancel(context.Background())
	u.stop = stop
	go func() {
		u.err = run(running)
		engines.Close()
		close(u.ended)
		over(errEngine)
	}()
	if ended := u.frontend.Done(); ended != nil {
		go func() {
			<-ended
			over(errFrontend)
		}()
	}
	return u, nil
}

var (
	errEngine   = errors.New("the player ended")
	errFrontend = errors.New("the frontend ended")
)

// notReady is the error of a start that failed: the end of a player or of a frontend, if there is one, with the last that the
// frontend wrote.
func (s *server) notReady(units []*unit, err error) error {
	if engine := s.engineError(units, nil); engine != nil {
		return engine
	}
	for _, u := range units {
		select {
		case <-u.frontend.Done():
		case <-u.ended:
			select {
			case <-u.frontend.Done():
			case <-time.After(deathDelay):
			}
		default:
		}
		if exit := u.frontend.Exit(); exit != nil {
			return fmt.Errorf("the frontend did not start: %w", exit)
		}
	}
	return err
}

// engineError is the error of a player that has one of its own, else err.
func (s *server) engineError(units []*unit, err error) error {
	for _, u := range units {
		select {
		case <-u.ended:
			if u.err != nil && !errors.Is(u.err, player.ErrFrontendGone) {
				return fmt.Errorf("%w: %w", errEngine, u.err)
			}
		default:
		}
	}
	return err
}

// blame is the error of the first cause of an end: a player whose frontend is gone ends too, and the other way round.
func (s *server) blame(ctx context.Context, units []*unit, err error) error {
	if cause := context.Cause(ctx); cause == nil || !errors.Is(cause, errEngine) && !errors.Is(cause, errFrontend) {
		return err
	}
	if engine := s.engineError(units, nil); engine != nil {
		return engine
	}
	late := time.NewTimer(deathDelay)
	defer late.Stop()
	for _, u := range units {
		select {
		case <-u.frontend.Done():
			return &EndedError{u.frontend.Exit()}
		case <-u.ended:
			select {
			case <-u.frontend.Done():
				return &EndedError{u.frontend.Exit()}
			case <-late.C:
				return fmt.Errorf("%w: %w", errEngine, u.err)
			}
		default:
		}
	}
	return err
}

// close ends the frontend, then the player.
func (u *unit) close() {
	_ = u.frontend.Close()
	u.stop()
	late := time.NewTimer(engineGrace)
	defer late.Stop()
	select {
	case <-u.ended:
	case <-late.C:
	}
}

// Prefixed is a writer that puts a prefix before each line, for logs of several programs in one.
type Prefixed struct {
	Prefix string
	W      io.Writer
	rest   []byte
}

// maxLine bounds the part of a line that is kept until its end comes, in bytes.
const maxLine = 64 << 10

// Write never fails: an error would end the reading of a process that goes on writing.
func (p *Prefixed) Write(text []byte) (int, error) {
	p.rest = append(p.rest, text...)
	for {
		line, rest, ended := strings.Cut(string(p.rest), "\n")
		if !ended && len(line) < maxLine {
			return len(text), nil
		}
		_, _ = io.WriteString(p.W, p.Prefix+strings.TrimRight(line, "\r")+"\n")
		p.rest = append(p.rest[:0], rest...)
	}
}

// Listen listens on the public address, and says what to do where that fails.
func Listen(host string, port int) (net.Listener, error) {
	address := net.JoinHostPort(host, fmt.Sprint(port))
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w: choose another --port, 0 for any free one, or another --host", address, errors.Unwrap(err))
	}
	return l, nil
}
