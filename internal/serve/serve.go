package serve

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/serve/builtin"
	"github.com/vllm-vcr/conformance/internal/serve/edge"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// Config configures a [Server].
type Config struct {
	// Name is that of the server among others in the process; empty without others.
	Name  string
	Model Model
	// Names are the names of the model in requests; default Model.Name.
	Names []string
	// Frontend is what answers. Its release is that of the line of the engines.
	Frontend FrontendOptions
	// Release returns the release of a line; default the newest that its profile knows.
	Release func(line string) string
	// Args are added to the flags of the frontend, and Env to its environment. PlayerFlags are the names of flags that
	// the player has: an error about one in Args says so.
	Args, Env, PlayerFlags []string
	// Builtin has what the builtin frontend needs of its own: Tokenizer, Flags and Simulator. The others are set.
	Builtin builtin.Options
	// Engines makes the player behind frontend number n, which dials handshake. It is called again at each restart.
	Engines func(ctx context.Context, handshake string, n int) (*Engines, error)
	// Handshake is the port where the first frontend waits for its engines, if it must be a certain one.
	Handshake vllmrs.Port
	// Listeners are where clients connect: one for each frontend, each of which has engines of its own.
	Listeners []net.Listener
	// HTTP configures the server before the frontends. Frontends, FanOut and Engines are set, and ModelName and Log are
	// those of this configuration.
	HTTP edge.Options
	// CacheConfig are the labels of vllm:cache_config_info; nil are those of the engines.
	CacheConfig []edge.Label
	// ReadyTimeout is how long the frontend waits for its engines and is waited for; default 5 minutes.
	ReadyTimeout time.Duration
	// ShutdownTimeout is how long requests may go on after the end of the context.
	ShutdownTimeout time.Duration
	// ShutdownDelay is how long requests are still taken after the end of the context, while /ready answers with 503: the
	// time that those who send requests need to notice.
	ShutdownDelay time.Duration
	// Restart starts frontend and player again when one of them ends.
	Restart bool
	// Output gets what frontends write.
	Output io.Writer
	// AcceptReady takes no connections before requests are answered for the first time: they wait.
	AcceptReady bool
	// Ready is called when requests are answered, at the start and after each restart.
	Ready func(Started)
	// Reachable is called when new requests can be sent to the server, and when they cannot any more; nil for none.
	Reachable func(bool)
	Log       *slog.Logger
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
	// Tasks are what the engines do. None is "generate".
	Tasks []string
	// Compute reports whether the engines are those of vLLM: they need the pixels of images, which the builtin frontend does not
	// have, and write the arguments of a tool without a schema.
	Compute bool
	// Close ends what listens next to the engines, when they have ended.
	Close func()
}

// DefaultMaxLoRAs is how many adapters run at the same time by default. A frontend loads none where the engine has
// none.
const DefaultMaxLoRAs = 16

// lorasOf is how many adapters run at the same time on an engine.
func lorasOf(e player.EngineInfo) int {
	if e.MaxLoRAs < 0 {
		return DefaultMaxLoRAs
	}
	return e.MaxLoRAs
}

// Started is what runs.
type Started struct {
	Line     string
	Frontend Frontend
	Names    []string
	// Pids are the process ids of the frontends, and Upstreams their URLs; none of builtin ones.
	Pids      []int
	Upstreams []string
	// Builtin are the frontends in this process.
	Builtin  []*builtin.Server
	Restarts int
}

// Pauses before a restart: short for the first, and longer if it keeps ending.
const (
	firstPause = 500 * time.Millisecond
	longPause  = 10 * time.Second
	// lasting is after how long a start counts as good.
	lasting = time.Minute
	// lastAnswers is how long requests may take to be answered when their frontend or its engines have ended.
	lastAnswers = 5 * time.Second
)

// A Server is an HTTP server with frontends, and players behind them. It is for one call of Run.
type Server struct {
	cfg      Config
	edge     *edge.Edge
	ranks    []*rank
	reserved []vllmrs.Port
	frontend *Frontend // once it is found
	restarts int
	began    time.Time

	mu        sync.Mutex // held while Config.Reachable is called
	answering bool       // by all frontends
	draining  bool
	reachable bool // as last reported
}

// A rank is a place for a frontend and its player.
type rank struct {
	handshake, http vllmrs.Port // of a frontend in another process
	url             string
	local           atomic.Pointer[builtin.Server]
	group           atomic.Pointer[Group]
}

// New checks the configuration and reserves ports. The server has to be run, which releases them.
func New(cfg Config) (s *Server, err error) {
	if len(cfg.Names) == 0 {
		cfg.Names = []string{cfg.Model.Name}
	}
	cfg.ReadyTimeout = cmp.Or(cfg.ReadyTimeout, 5*time.Minute)
	if cfg.Release == nil {
		cfg.Release = newest
	}
	s = &Server{cfg: cfg}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	before := cfg.HTTP
	for n := range cfg.Listeners {
		r := &rank{}
		s.ranks = append(s.ranks, r)
		h, err := s.handler(r, n)
		if err != nil {
			return nil, err
		}
		before.Frontends = append(before.Frontends, h)
	}
	before.ModelName, before.FanOut, before.Log = cfg.Names[0], AnswersOne(cfg.Frontend.Wanted), cfg.Log
	if cfg.Reachable != nil {
		before.OnDrain = func(draining bool) { s.report(func() { s.draining = draining }) }
	}
	before.Engines = func(n int) []edge.Engine { return s.ranks[n].engines(cfg.CacheConfig) }
	s.began = time.Now()
	s.edge, err = edge.New(before)
	return s, err
}

// report changes the state and reports whether new requests can be sent here, if that has changed.
func (s *Server) report(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	if reachable := s.answering && !s.draining; s.cfg.Reachable != nil && s.reachable != reachable {
		s.reachable = reachable
		s.cfg.Reachable(reachable)
	}
}

// newest is the newest release of a line.
func newest(line string) string {
	profile, err := protocol.LoadProfile(line)
	if err != nil {
		return line
	}
	return profile.Version
}

// handler is the frontend as the edge sees it.
func (s *Server) handler(r *rank, n int) (http.Handler, error) {
	if s.cfg.Frontend.Wanted == Builtin {
		return r, nil
	}
	ports := []*vllmrs.Port{&r.http, &r.handshake}
	if n == 0 && s.cfg.Handshake.Number() != 0 {
		r.handshake, ports = s.cfg.Handshake, ports[:1]
	}
	for _, to := range ports {
		port, err := vllmrs.Reserve()
		if err != nil {
			return nil, fmt.Errorf("reserve a port for the frontend: %w", err)
		}
		*to = port
		s.reserved = append(s.reserved, port)
	}
	r.url = fmt.Sprintf("http://127.0.0.1:%d", r.http.Number())
	return edge.Proxy(r.url, s.cfg.Log)
}

// ServeHTTP answers by the frontend in this process, and with status 503 while none runs.
func (r *rank) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if f := r.local.Load(); f != nil {
		f.ServeHTTP(w, request)
		return
	}
	w.Header().Set("Retry-After", "1")
	edge.Refuse(w, http.StatusServiceUnavailable, "the engine has ended, or starts again")
}

// engines are those that run, as their values are in metrics.
func (r *rank) engines(labels []edge.Label) (all []edge.Engine) {
	group := r.group.Load()
	if group == nil {
		return nil
	}
	for _, e := range (*group).Engines() {
		known := edge.Engine{Index: e.Index, MaxLoRAs: lorasOf(e), SleepLevel: e.SleepLevel, CacheConfig: labels}
		if labels == nil {
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
			known.CacheConfig = append(known.CacheConfig, edge.Label{Name: "engine", Value: strconv.Itoa(e.Index)})
		}
		all = append(all, known)
	}
	return all
}

func (s *Server) release() {
	for _, port := range s.reserved {
		port.Release()
	}
	s.reserved = nil
}

// UnmatchedFaults returns the faults of HTTP that have concerned no request, and how many requests there were.
func (s *Server) UnmatchedFaults() ([]edge.Fault, int) { return s.edge.UnmatchedFaults() }

// Run serves until ctx ends, then lets what runs come to its end, and returns nil. When a frontend or a player ends
// before, everything is stopped or, with Restart, started again.
func (s *Server) Run(ctx context.Context) error {
	defer s.release()
	serving := make(chan error, 1)
	accept := sync.OnceFunc(func() {
		go func() { serving <- s.edge.Serve(context.WithoutCancel(ctx), s.cfg.Listeners...) }()
	})
	if ready := s.cfg.Ready; s.cfg.AcceptReady {
		s.cfg.Ready = func(result Started) {
			accept()
			ready(result)
		}
	} else {
		accept()
	}
	defer func() {
		// What ran has ended: its requests get their last answers.
		limited, cancel := context.WithTimeout(context.Background(), lastAnswers)
		defer cancel()
		_ = s.edge.Shutdown(limited)
	}()
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		started := time.Now()
		wasReady, err := s.once(ctx, serving)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if !s.cfg.Restart || !wasReady && s.restarts == 0 {
			return err
		}
		if time.Since(started) > lasting {
			pause = firstPause
		}
		s.cfg.Log.Warn("frontend and player are started again", "error", err, "pause", pause)
		s.restarts++
		if retry.Pause(ctx, pause) != nil {
			return nil
		}
	}
}

// once starts frontends and players, and returns when one of them has ended, or after the shutdown. All have ended
// then.
func (s *Server) once(ctx context.Context, serving <-chan error) (wasReady bool, err error) {
	var units []*unit
	defer func() {
		for _, u := range units {
			u.close()
		}
	}()
	// The end of any is an event for all.
	alive, over := context.WithCancelCause(ctx)
	defer over(nil)
	for n := range s.ranks {
		u, err := s.start(ctx, n, over)
		if err != nil {
			return false, err
		}
		units = append(units, u)
	}
	go func() {
		select {
		case err := <-serving:
			over(fmt.Errorf("the HTTP server ended: %w", err))
		case <-alive.Done():
		}
	}()
	healthy, cancel := context.WithTimeoutCause(alive, s.cfg.ReadyTimeout, fmt.Errorf("the frontend did not serve within %v", s.cfg.ReadyTimeout))
	defer cancel()
	result := Started{Line: units[0].engines.Group.Line(), Frontend: *s.frontend, Names: s.cfg.Names, Pids: []int{}, Upstreams: []string{}, Restarts: s.restarts}
	for n, u := range units {
		if err := u.healthy(healthy); err != nil {
			return false, notReady(units, err)
		}
		if u.local != nil {
			result.Builtin = append(result.Builtin, u.local)
			continue
		}
		result.Pids, result.Upstreams = append(result.Pids, u.frontend.Pid()), append(result.Upstreams, s.ranks[n].url)
	}
	answers := func() { s.report(func() { s.answering = alive.Err() == nil }) }
	if left := s.cfg.HTTP.StartupDuration - time.Since(s.began); left > 0 {
		defer time.AfterFunc(left, answers).Stop()
	} else {
		answers()
	}
	s.cfg.Ready(result)
	<-alive.Done()
	if ctx.Err() == nil {
		s.report(func() { s.answering = false })
		return true, cause(units, context.Cause(alive))
	}
	s.edge.Drain(true)
	if s.cfg.ShutdownDelay > 0 {
		s.cfg.Log.Info("draining: requests are still taken", "shutdown_delay", s.cfg.ShutdownDelay)
		_ = retry.Pause(context.WithoutCancel(ctx), s.cfg.ShutdownDelay)
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.ShutdownTimeout)
	defer cancel()
	if err := s.edge.Shutdown(limited); err != nil {
		s.cfg.Log.Warn("requests were cut off, as they did not end in time", "shutdown_timeout", s.cfg.ShutdownTimeout)
	}
	return true, nil
}
