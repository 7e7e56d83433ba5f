package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/internal/serve/builtin"
	"github.com/vllm-vcr/conformance/internal/serve/edge"
	"github.com/vllm-vcr/conformance/internal/serve/simulator"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// serveOptions are the flags of serve and those of play.
type serveOptions struct {
	play   playOptions
	edge   edgeOptions
	sim    simulator.Flags
	fleet  fleetOptions
	host   string
	port   int
	cfg    serve.Config
	env    []string
	peers  engineOptions
	json   bool
	engine engineInPlace
}

func newServeCommand(env *environment) *cobra.Command {
	var opts serveOptions
	cmd := &cobra.Command{
		Use:   "serve [MODEL]",
		Short: "Serve the OpenAI API of a vLLM line without a model",
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				args = args[:dash]
			}
			return cobra.MaximumNArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			model, simulators, err := opts.edge.readConfig(cmd.Flags())
			opts.sim.OwnConfig = simulators
			if err = cmp.Or(err, checkFlags(cmd.Flags())); err != nil {
				return err
			}
			var flags []string
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				args, flags = args[:dash], args[dash:]
			}
			if len(args) > 0 {
				model = args[0]
			}
			if model, err = opts.sim.Translate(env.getenv, env.now(), &opts.play.timing.knobs, model); err != nil {
				return err
			}
			if opts.sim.Verbose() {
				env.verbose = true
				env.openLog()
			}
			return runServe(cmd.Context(), env, cmd.Flags(), &opts, model, flags)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.host, "host", "127.0.0.1", "`ADDRESS` to listen on; 0.0.0.0 is all of this machine")
	flags.IntVar(&opts.port, "port", 8000, "port to listen on; 0 is any free one")
	flags.StringSliceVar(&opts.cfg.Names, "served-model-name", nil, "names of the model in requests (default MODEL, else "+serve.DefaultName+")")
	flags.DurationVar(&opts.cfg.ShutdownTimeout, "shutdown-timeout", 30*time.Second, "how long running requests may go on after SIGTERM")
	flags.DurationVar(&opts.cfg.ShutdownDelay, "shutdown-delay", 0, "how long requests are still taken after SIGTERM, while /ready answers with 503; then --shutdown-timeout begins (default 0)")
	flags.BoolVar(&opts.cfg.Restart, "restart", false, "start frontend and engine again when one of them ends; without it, serve ends")
	least0(flags, "shutdown-timeout", "shutdown-delay")
	grouped(flags, "Server")
	flags.StringVar(&opts.cfg.Frontend.Wanted, "frontend", serve.Rust, "`FRONTEND` to run: rust (vllm-rs), python (of an environment of capture engine; it has all endpoints of vLLM), builtin (in this process; needs no program and no network), or the path of a vllm-rs")
	flags.StringSliceVar(&opts.env, "frontend-env", nil, "`VARIABLES` for the frontend, as NAME=VALUE or as NAME, which passes on that of serve; it gets no other VLLM_ variables (default none)")
	flags.BoolVar(&opts.cfg.Frontend.Offline, "offline", false, "fetch no frontend: use the cached one, or fail")
	opts.engine.add(flags)
	opts.peers.addFlags(flags)
	grouped(flags, "Frontend")
	opts.edge.add(flags)
	opts.fleet.add(flags, &opts.edge)
	opts.play.add(flags)
	serveDefaults(flags)
	f := mustLookup(flags, "faults")
	f.Usage = strings.Replace(strings.TrimSuffix(f.Usage, " (default none)"), " ; and", "; and", 1) + "; and of HTTP: " + edge.FaultForms() + "; EVENTS counts events of a stream (default none)"
	mustLookup(flags, "allow-request-faults").Usage = "let a request name its own fault: of the engine as vllm_vcr_fault in vllm_xargs, of HTTP in the header X-Fault or X-Return-Error; any client can then end the server"
	opts.sim.Add(flags)
	grouped(flags, "Server")
	exclusive(flags, "replicas", "simulator")
	common(flags, "host", "port", "served-model-name", "shutdown-timeout", "restart", "frontend", "offline",
		"vllm-version", "data-parallel-size", "max-model-len", "max-num-seqs", "trace", "replay-match", "dataset", "mode", "seed",
		"latency-trace", "time-to-first-token", "inter-token-latency", "faults", "config", "api-key", "port-per-rank", "replicas", "simulator")
	addJSONFlag(flags, &opts.json)
	return cmd
}

// serveDefaults changes defaults of play that would not work here, and their texts.
func serveDefaults(flags *pflag.FlagSet) {
	for _, change := range []struct{ name, value, usage string }{
		{"frontend-handshake", "", "handshake `ADDRESS` of the frontend, tcp://127.0.0.1:PORT (default a free port)"},
		{"mode", modeText, "reply when no recording matches: text (English sentences), random (random tokens) or echo (the prompt)"},
		{"tokenizer", "", "tokenizer.json of the model, or its folder (default that of MODEL)"},
		{"max-model-len", "0", "maximum context length in tokens (default that of the trace, else of MODEL)"},
		{"max-loras", fmt.Sprint(serve.DefaultMaxLoRAs), "maximum number of LoRA adapters in one step"},
		{"data-parallel-size", "0", "number of engines behind the frontend (default --engine-count)"},
		{"vocab-size", "0", "random token ids are below this number (default the size of the tokenizer)"},
	} {
		f := mustLookup(flags, change.name)
		_ = f.Value.Set(change.value)
		f.DefValue, f.Usage = change.value, change.usage
	}
}

func runServe(ctx context.Context, env *environment, flags *pflag.FlagSet, opts *serveOptions, name string, args []string) error {
	started := env.now()
	if err := opts.check(flags); err != nil {
		return err
	}
	if opts.cfg.Frontend.Wanted == serve.Builtin {
		defer env.growHeap(200, 0)() // requests leave much garbage and little else: the default costs a fifth more of a processor
	}
	model, err := serve.FindModel(name, env.getenv)
	if err != nil {
		return err
	}
	defer model.Remove()
	cfg, closeAll, err := opts.config(ctx, env, flags, model, args)
	defer closeAll()
	if err != nil {
		return err
	}
	if err := opts.simulate(env, &cfg); err != nil {
		return err
	}
	frontends := opts.fleet.count
	if opts.edge.portPerRank {
		frontends, opts.play.engine.count, opts.play.engine.opt.DataParallelSize = opts.play.engine.count, 1, 1
	}
	if cfg.Listeners, err = opts.edge.listen(opts.host, opts.port, frontends); err != nil {
		return err
	}
	var urls []string
	for _, l := range cfg.Listeners {
		defer l.Close()
		urls = append(urls, opts.edge.url(l))
	}
	answered := false
	configs, show, err := opts.fleet.split(env, opts, cfg)
	if err != nil {
		return err
	}
	fleet, err := serve.NewFleet(configs, func(s serve.Started) {
		answered = true
		show()
		opts.ready(env, urls, s, env.now().Sub(started))
	})
	if err != nil {
		return infra(err)
	}
	err = fleet.Run(ctx)
	opts.fleet.report(env)
	if answered {
		var each []func() ([]edge.Fault, int)
		for _, s := range fleet.Servers() {
			each = append(each, s.UnmatchedFaults)
		}
		unmatched, requests := unmatchedByAll(each)
		opts.edge.reportAnswers(env)
		reportUnmatched(env, unmatched, requests, "HTTP request", "~path=, ~model=, ~key= and ~header.NAME=; --log-requests lists the requests")
	}
	var ended *serve.EndedError
	var missing *serve.FindError
	var flag *serve.FlagError
	var coded exitError
	switch {
	case errors.As(err, &ended):
		return exitError{ended.Code(), err}
	case errors.As(err, &flag):
		return exitError{conformance.ExitUsage, err}
	case errors.As(err, &missing):
		return engineError(missing.Unwrap())
	case errors.As(err, &coded) || err == nil:
		return err
	}
	return infra(err)
}

// config is that of the server, but for its listeners. closeAll ends what was opened, also after an error.
func (opts *serveOptions) config(ctx context.Context, env *environment, flags *pflag.FlagSet, model serve.Model, args []string) (cfg serve.Config, closeAll func(), err error) {
	var closers []func()
	closeAll = func() {
		for _, end := range closers {
			end()
		}
	}
	own, err := builtin.ParseFlags(args)
	if err != nil && opts.cfg.Frontend.Wanted == serve.Builtin {
		return cfg, closeAll, exitError{conformance.ExitUsage, err}
	}
	opts.play.source.toolParser = builtin.FlagOf(args, "--tool-call-parser")
	opts.play.source.reasoning = builtin.FlagOf(args, "--reasoning-parser")
	opts.lineOfFrontend(ctx)
	if err := opts.edge.splitFaults(&opts.play.peers); err != nil {
		return cfg, closeAll, err
	}
	if faults, flag := opts.play.peers.faults, opts.engine.flag(); flag != "" && faults != "" {
		return cfg, closeAll, fmt.Errorf("--faults %s: with %s there is no player that this could be for: want one of %s", faults, flag, edge.FaultForms())
	}
	if err := opts.follow(env, flags, model); err != nil {
		return cfg, closeAll, err
	}
	variables, err := opts.variables(env)
	if err != nil {
		return cfg, closeAll, err
	}
	handshake, err := opts.handshake(flags)
	if err != nil {
		return cfg, closeAll, err
	}
	closers = append(closers, handshake.Release)
	steps := openSteps(env)
	closeSteps := sync.OnceFunc(steps.close)
	closers = append(closers, closeSteps)
	// The player warns when its frontend goes, which is expected once serve itself ends.
	logged := env.prefixed("player: ", func() bool { return ctx.Err() != nil })
	cfg = opts.cfg
	cfg.Model, cfg.Args, cfg.Env, cfg.Handshake, cfg.Release = model, args, variables, handshake, opts.release
	cfg.Frontend.Dir, cfg.Frontend.Index, cfg.Frontend.Log = opts.peers.dir, opts.peers.index, env.log
	cfg.Frontend.Progress = func(step string) { steps.show("frontend", step) }
	cfg.Builtin = builtin.Options{Tokenizer: opts.play.source.loaded, Flags: own}
	cfg.Engines = func(ctx context.Context, handshake string, n int) (*serve.Engines, error) {
		if opts.engine.flag() != "" {
			return opts.engineOfVLLM(ctx, env, handshake)
		}
		return opts.engines(ctx, env, logged, flags, handshake, n)
	}
	cfg.ReadyTimeout, cfg.Output, cfg.Log = opts.play.engine.opt.HandshakeTimeout, env.frontendLog(), env.log
	cfg.Ready = func(serve.Started) { closeSteps() }
	flags.VisitAll(func(f *pflag.Flag) { cfg.PlayerFlags = append(cfg.PlayerFlags, f.Name) })
	var closeLog func()
	cfg.HTTP, closeLog, err = opts.edge.options(env, flags, &opts.play)
	closers = append(closers, closeLog)
	if opts.edge.AdminToken != "" && opts.engine.flag() == "" {
		log := &player.RequestLog{}
		if tok := opts.play.source.loaded; tok != nil {
			log.Decode = tok.Decode
		}
		opts.play.engine.opt.Requests = log
		cfg.HTTP.Admin = map[string]http.Handler{serve.RequestsPath: serve.ServeRequests(log)}
	}
	err = cmp.Or(err, opts.chooseAnswers(&cfg))
	err = cmp.Or(err, opts.edge.recordAnswers(env, &cfg))
	return cfg, closeAll, err
}

// check refuses what no server can be started with.
func (opts *serveOptions) check(flags *pflag.FlagSet) error {
	engine := &opts.play.engine
	if err := opts.fleet.check(flags); err != nil {
		return err
	}
	switch size := engine.opt.DataParallelSize; {
	case opts.port < 0 || opts.port > math.MaxUint16:
		return fmt.Errorf("--port %d: want 0 to 65535", opts.port)
	case flags.Changed("engine-index"):
		return errors.New("--engine-index: serve has all engines of its frontend: leave it out")
	case flags.Changed("data-parallel-size") && flags.Changed("engine-count") && size != engine.count:
		return fmt.Errorf("--data-parallel-size %d and --engine-count %d: give only one of them", size, engine.count)
	case flags.Changed("data-parallel-size"):
		engine.count = size
	}
	released := opts.cfg.Frontend.Wanted == serve.Rust || opts.cfg.Frontend.Wanted == serve.Python
	if opts.engine.flag() != "" {
		return opts.checkEngine(flags)
	}
	if opts.cfg.Frontend.Wanted == serve.Builtin {
		return nil
	}
	if tasks := engine.opt.Pooling.Tasks; len(tasks) > 0 && (opts.cfg.Frontend.Wanted != serve.Python || slices.Contains(tasks, "generate")) {
		return fmt.Errorf("--pooling-tasks %s: the frontend has no endpoint for it: add --frontend builtin (embed, also with generate), or python (without generate)", strings.Join(tasks, ","))
	}
	if released && engine.opt.VLLMVersion == protocol.Nightly {
		return errors.New("--vllm-version nightly: no released frontend is of that line: give --frontend with the path of its vllm-rs")
	}
	if !released {
		if _, err := os.Stat(opts.cfg.Frontend.Wanted); err != nil {
			meant := tomlfile.DidYouMean(opts.cfg.Frontend.Wanted, []string{"rust", "python", serve.Builtin}, "want rust, python, builtin, or the path of a vllm-rs")
			return fmt.Errorf("--frontend %s%s: %w", opts.cfg.Frontend.Wanted, meant, err)
		}
	}
	return nil
}

// lineOfFrontend makes the player speak the line of a frontend that was named by its path, if nothing else names a line
// and it prints its release, as it does since 0.29.
func (opts *serveOptions) lineOfFrontend(ctx context.Context) {
	play := &opts.play
	if opts.cfg.Frontend.Wanted == serve.Rust || opts.cfg.Frontend.Wanted == serve.Python || opts.cfg.Frontend.Wanted == serve.Builtin || play.engine.opt.VLLMVersion != "auto" || play.source.recording != "" || play.source.steps != "" {
		return
	}
	release, err := vllmrs.Version(ctx, opts.cfg.Frontend.Wanted)
	if err != nil {
		return
	}
	if profile, err := protocol.LoadProfile(protocol.LineOf(release)); err == nil {
		play.engine.opt.VLLMVersion = profile.Line
	}
}

// follow makes the player fit the model: its tokenizer and its context length.
func (opts *serveOptions) follow(env *environment, flags *pflag.FlagSet, model serve.Model) (err error) {
	source := &opts.play.source
	opts.play.engine.modelLen = model.MaxModelLen
	if opts.sim.OnlyWords(model.StandIn) {
		source.loaded, source.tokenizer = tokenizer.Words(), model.Dir
		return nil
	}
	if source.tokenizer != "" {
		if opts.cfg.Frontend.Wanted == serve.Builtin {
			source.loaded, err = tokenizer.Load(source.tokenizer)
		}
		return err
	}
	if source.loaded, err = tokenizer.Load(model.Dir); err == nil {
		source.tokenizer = model.Dir
		return nil
	}
	if flags.Changed("mode") && source.mode == modeText || source.dataset != "" {
		return err
	}
	if opts.cfg.Frontend.Wanted == serve.Builtin {
		return fmt.Errorf("--frontend builtin cannot read the tokenizer of the model: %w: use --frontend rust, or a MODEL that is a name, which gets the embedded tokenizer", err)
	}
	env.log.Warn("this program cannot read the tokenizer of the model: answers are random tokens, and structured output does not conform", "error", err)
	if source.mode == modeText {
		source.mode = modeRandom
	}
	if !flags.Changed("vocab-size") && model.Vocab > 0 && model.Vocab <= math.MaxUint32 {
		source.vocab = uint32(model.Vocab)
	}
	return nil
}

// variables are those of --frontend-env.
func (opts *serveOptions) variables(env *environment) (variables []string, err error) {
	for _, entry := range opts.env {
		name, _, assigned := strings.Cut(entry, "=")
		value, found := env.lookupEnv(name)
		switch {
		case name == "":
			return nil, errors.New("--frontend-env: want NAME=VALUE, or the NAME of a variable")
		case assigned:
			variables = append(variables, entry)
		case found:
			variables = append(variables, name+"="+value)
		default:
			return nil, fmt.Errorf("--frontend-env %s: there is no such variable: give %[1]s=VALUE", name)
		}
	}
	return variables, nil
}

// handshake is the port of --frontend-handshake, the zero one where any will do.
func (opts *serveOptions) handshake(flags *pflag.FlagSet) (vllmrs.Port, error) {
	address := &opts.play.engine.opt.Handshake
	if !flags.Changed("frontend-handshake") {
		*address = "tcp://127.0.0.1:0" // until there is one
		return vllmrs.Port{}, nil
	}
	var number int
	if n, err := fmt.Sscanf(*address, "tcp://127.0.0.1:%d", &number); n != 1 || err != nil || number < 1 || number > math.MaxUint16 {
		return vllmrs.Port{}, fmt.Errorf("--frontend-handshake %q: want tcp://127.0.0.1:PORT, as the frontend is started on this machine", *address)
	}
	port, err := vllmrs.ReserveNumber(number)
	if err != nil {
		return port, infra(fmt.Errorf("--frontend-handshake: port %d: %w: choose another one, or leave it out", number, err))
	}
	return port, nil
}

// release is the release of the frontend: that of --vllm-version if it is of the line.
func (opts *serveOptions) release(line string) string {
	if version := opts.play.engine.opt.VLLMVersion; version != "auto" && version != "" {
		if release := releasesOf([]string{version})[0]; protocol.LineOf(release) == line {
			return release
		}
	}
	return releasesOf([]string{line})[0]
}

// engines makes the player behind frontend number n.
func (opts *serveOptions) engines(ctx context.Context, env, logged *environment, flags *pflag.FlagSet, handshake string, n int) (*serve.Engines, error) {
	play := opts.play
	play.engine.opt.Handshake, play.peers.rank = handshake, n
	if opts.sim.On {
		if err := opts.rankAsSimulator(env, &play, n); err != nil {
			return nil, withCode(err)
		}
	}
	prepare := play.prepare
	if opts.fleet.on() {
		prepare = func(ctx context.Context, env *environment, flags *pflag.FlagSet) (*played, error) {
			return opts.fleet.prepare(ctx, env, flags, &play, n)
		}
	}
	p, err := prepare(ctx, logged, flags)
	if err != nil {
		return nil, withCode(err)
	}
	stop := func() {}
	if p.found != nil && (n == 0 || !opts.fleet.on()) {
		stop = rewindOnHangUp(logged, p.found)
	}
	return &serve.Engines{
		Group: p.group, Count: play.engine.count, LoRA: play.engine.opt.LoRA.MaxLoRAs > 0 || play.engine.opt.LoRA.Names != nil,
		Transfer: play.peers.kvTransfer, Tasks: play.engine.opt.Pooling.Tasks,
		Close: func() {
			stop()
			p.closePeers()
			if opts.fleet.on() {
				return // it reports of all replicas together
			}
			reportUnmatchedOf(env, p.group)
			if p.found != nil && p.found.Text() != "" {
				fmt.Fprintf(env.stderr, "vllm-vcr: %s\n", p.found.Text())
			}
		},
	}, nil
}

// withCode gives an error that has none the exit code of a wrong command line.
func withCode(err error) error {
	var coded exitError
	if errors.As(err, &coded) {
		return err
	}
	return exitError{conformance.ExitUsage, err}
}

// publicAddress is where clients of this machine reach a listener.
func publicAddress(at net.Addr) string {
	host, port, err := net.SplitHostPort(at.String())
	if err != nil {
		return at.String()
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// servedJSON is what serve prints when requests are answered.
type servedJSON struct {
	Schema   string   `json:"schema"`
	URL      string   `json:"url"`
	URLs     []string `json:"urls"`
	Models   []string `json:"models"`
	Line     string   `json:"line"`
	Release  string   `json:"release,omitempty"`
	Frontend string   `json:"frontend"`
	Engines  int      `json:"engines"`
	Pids     []int    `json:"frontend_pids"`
	Direct   []string `json:"frontend_urls"`
	Restarts int      `json:"restarts"`
	ReadyMS  int64    `json:"ready_ms"`
}

// maxShown is how many URLs the line for people has at most.
const maxShown = 8

// ready prints the line with the URL at which requests are answered.
func (opts *serveOptions) ready(env *environment, urls []string, s serve.Started, after time.Duration) {
	if opts.json {
		line, err := jsonout.Line(servedJSON{
			schemaOf("serve"), urls[0], urls, s.Names, s.Line, s.Frontend.Release, s.Frontend.Kind, opts.play.engine.count * len(urls), s.Pids, s.Upstreams, s.Restarts, after.Milliseconds(),
		})
		if err == nil {
			_, err = env.stdout.Write(line)
		}
		if err != nil {
			env.log.Warn("the line with the URL could not be written", "error", err)
		}
		return
	}
	engines := opts.play.engine.count * len(urls)
	if len(urls) > maxShown {
		urls = []string{urls[0], "to", urls[len(urls)-1]}
	}
	program := map[string]string{serve.Rust: "vllm-rs", serve.Python: "the Python frontend", serve.Builtin: "the builtin frontend"}[s.Frontend.Kind]
	fmt.Fprintln(env.stdout, safetext.Line(fmt.Sprintf("ready: %s (model %s, %s of vLLM %s, %s, after %.1f s)", strings.Join(urls, " "), strings.Join(s.Names, ", "), program,
		cmp.Or(s.Frontend.Release, s.Line), safetext.Count(engines, "engine"), after.Seconds())))
}
