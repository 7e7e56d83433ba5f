package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/internal/serve/answers"
	"github.com/vllm-vcr/conformance/internal/serve/edge"
	"github.com/vllm-vcr/conformance/internal/serve/simulator"
	"github.com/vllm-vcr/conformance/player"
)

// edgeOptions are the flags of the server that clients talk to.
type edgeOptions struct {
	edge.Options
	config      string
	perAddress  bool
	uds         string
	cert, key   string
	portPerRank bool
	fakeMetrics string
	requestLog  string
	answers     string
	record      answers.RecorderOptions
	upstream    string
	scrub       []string
	chosen      *answers.Store

	fake  simulator.Fake
	shown *simulator.FakeMetrics // by --fake-metrics
	tls   bool                   // without --ssl-certfile
}

// add adds the flags. They are those of vLLM and of llm-d-inference-sim where these have them.
func (opts *edgeOptions) add(flags *pflag.FlagSet) {
	flags.StringVar(&opts.uds, "uds", "", "listen on a UNIX socket at this `PATH` in place of --host and --port (default none)")
	flags.StringVar(&opts.cert, "ssl-certfile", "", "speak TLS with this certificate, a `FILE` that is read again when it changes (default no TLS)")
	flags.StringVar(&opts.key, "ssl-keyfile", "", "`FILE` with the key of --ssl-certfile")
	flags.StringSliceVar(&opts.APIKeys, "api-key", nil, "`KEYS` of which clients must give one as bearer token; health and metrics need none (default everybody is served)")
	flags.Float64Var(&opts.Limit.Requests, "rate-limit-requests", 0, "requests a second of each client; more get status 429, and answers have headers x-ratelimit-* (default any number)")
	flags.Float64Var(&opts.Limit.Tokens, "rate-limit-tokens", 0, "tokens a second of each client: a quarter of the bytes of a body, and max_tokens (default any number)")
	flags.IntVar(&opts.Limit.Open, "max-open-requests", 0, "requests that run or wait at a time; more get status 429 (default any number)")
	least0(flags, "rate-limit-requests", "rate-limit-tokens", "max-open-requests")
	flags.BoolVar(&opts.Echo, "echo-request", false, "answer requests with their path, host, method and headers and the name of the pod, as the echo server of the Gateway API's conformance tests; not those for health and metrics")
	flags.DurationVar(&opts.StartupDuration, "startup-duration", 0, "how long /ready and /health/ready answer with 503 after the start (default 0)")
	flags.BoolVar(&opts.portPerRank, "port-per-rank", false, "give each of the --data-parallel-size engines a frontend and a port of its own: --port, and the ports behind it")
	flags.StringVar(&opts.config, "config", "", "YAML `FILE` whose keys are the names of flags, or model; flags and variables have precedence (default none)")
	flags.StringVar(&opts.requestLog, "log-requests", "", "write a line of JSON for each request to this `FILE`, - for standard error (default none)")
	flags.StringVar(&opts.answers, "answers", "", "answer as the rules in this `FILE` say, JSON or TOML: by the last message of the user, model, header and number of a request; docs/serving.md has its form (default none)")
	flags.StringVar(&opts.record.Path, "record-answers", "", "answer with what the real server at --upstream has answered to the same requests, kept in this `FILE`, see docs/agents.md (default none)")
	flags.StringVar(&opts.upstream, "upstream", "", "base `URL` of the real server for --record-answers, without /v1; keys of clients are sent to it, and not kept (default none)")
	oneOf(flags, &opts.record.Mode, "record-mode", "once", "what --record-answers records: once (everything, if there is no file yet), new (what is not in the file), all (everything anew) or none",
		"once", "new", "all", "none")
	flags.StringArrayVar(&opts.scrub, "scrub", nil, "regular `EXPRESSION` whose matches in requests --record-answers replaces by ***; may be repeated")
	flags.BoolVar(&opts.record.Paced, "recorded-pace", false, "send the answers of --record-answers after the recorded times, and not at once")
	needs(flags, "upstream", "record-answers")
	needs(flags, "record-mode", "record-answers")
	needs(flags, "scrub", "record-answers")
	needs(flags, "recorded-pace", "record-answers")
	flags.StringVar(&opts.fakeMetrics, "fake-metrics", "", "show these metrics in the place of the real ones: a `FILE` or JSON with the fake-metrics of llm-d-inference-sim (default the real ones)")
	flags.StringVar(&opts.AdminToken, "admin-token", "", "switch on /admin/config, which changes faults and fake metrics at run time, and /admin/requests, which lists the requests of the engine, for clients with this bearer `TOKEN`; prefer its variable, which no list of processes shows (default off)")
	flags.Float64Var(&opts.FailureRate, "failure-injection-rate", 0, "percentage of requests that fail with one of --failure-types (default 0)")
	flags.StringSliceVar(&opts.FailureTypes, "failure-types", nil, "`FAILURES` of --failure-injection-rate: "+strings.Join(edge.Failures, ", ")+" (default all)")
	least0(flags, "startup-duration")
	exclusive(flags, "answers", "engine-handshake")
	grouped(flags, "HTTP")
}

// readConfig sets flags from --config, and returns its model, and whether it is one of llm-d-inference-sim.
func (opts *edgeOptions) readConfig(flags *pflag.FlagSet) (model string, simulators bool, err error) {
	if opts.config == "" {
		return "", false, nil
	}
	return simulator.ReadConfig(opts.config, flags, func(f *pflag.Flag) bool { return hasVariable(f) || simulator.IsFlag(f) })
}

// splitFaults takes the faults of HTTP out of --faults and leaves the others to the player.
func (opts *edgeOptions) splitFaults(peers *peerOptions) (err error) {
	all := peers.faults
	if opts.Faults, peers.faults, err = edge.ParseFaults(all); err != nil {
		return fmt.Errorf("--faults: %w", err)
	}
	if _, err := player.ParseFaults(peers.faults); err != nil {
		return fmt.Errorf("--faults: %w; or of HTTP: %s", err, edge.FaultForms())
	}
	return nil
}

// options are those of the edge before the frontends. close closes its files.
func (opts *edgeOptions) options(env *environment, flags *pflag.FlagSet, play *playOptions) (o edge.Options, closeFiles func(), err error) {
	closeFiles = func() {}
	if flags.Changed("api-key") && (len(opts.APIKeys) == 0 || slices.Contains(opts.APIKeys, "")) {
		return o, closeFiles, errors.New("--api-key: a key is empty: without --api-key everybody is served")
	}
	if err := edge.CheckFailures(opts.FailureRate, opts.FailureTypes); err != nil {
		return o, closeFiles, fmt.Errorf("--failure-injection-rate, --failure-types: %w", err)
	}
	o = opts.Options
	o.Seed, o.RequestFaults = play.source.seed, play.peers.requestFaults
	o.PodName, o.PodNamespace = env.getenv("POD_NAME"), env.getenv("POD_NAMESPACE")
	o.Settings, o.Policy = []edge.Settings{&opts.fake}, edge.Policy{Metrics: opts.fake.Metrics}
	if opts.cert != "" || opts.key != "" {
		if o.TLS, err = edge.LoadTLS(opts.cert, opts.key); err != nil {
			return o, closeFiles, fmt.Errorf("--ssl-certfile: %w", err)
		}
	}
	fake, err := simulator.ReadFakeMetrics(opts.fakeMetrics)
	if err != nil {
		return o, closeFiles, fmt.Errorf("--fake-metrics: %w", err)
	}
	opts.shown = fake
	opts.fake.Set(fake, env.now())
	switch opts.requestLog {
	case "":
	case "-":
		o.RequestLog = env.stderr
	default:
		file, err := os.OpenFile(opts.requestLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return o, closeFiles, infra(fmt.Errorf("--log-requests: %w", err))
		}
		o.RequestLog, closeFiles = file, func() { file.Close() }
	}
	return o, closeFiles, nil
}

// chooseAnswers lets rules choose answers: those of --answers, and any that come later to /admin/answers.
func (opts *serveOptions) chooseAnswers(cfg *serve.Config) (err error) {
	source := &opts.play.source
	if source.loaded == nil && source.tokenizer != "" {
		if source.loaded, err = tokenizer.Load(source.tokenizer); err != nil {
			return err
		}
	}
	store, err := answers.New(answers.Options{
		Tokenizer: source.loaded, ToolParser: source.toolParser, ReasoningParser: source.reasoning,
		Builtin: cfg.Frontend.Wanted == serve.Builtin,
	})
	if err != nil || opts.engine.flag() != "" {
		return err
	}
	if opts.edge.answers != "" {
		rules, err := answers.ReadFile(opts.edge.answers)
		if err == nil {
			err = store.Set(rules)
		}
		if err != nil {
			return fmt.Errorf("--answers: %w", err)
		}
	}
	opts.edge.chosen, source.chosen = store, store
	if cfg.HTTP.Wrap = store.Wrap; cfg.HTTP.Admin == nil {
		cfg.HTTP.Admin = map[string]http.Handler{}
	}
	cfg.HTTP.Admin["/admin/answers"] = store
	return nil
}

// recordAnswers answers with what a real server has answered before, if that is wanted.
func (opts *edgeOptions) recordAnswers(env *environment, cfg *serve.Config) error {
	o := &opts.record
	if o.Path == "" {
		return nil
	}
	if opts.upstream != "" {
		u, err := url.Parse(opts.upstream)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("--upstream %s: want http://HOST:PORT or https://HOST", opts.upstream)
		}
		o.Upstream = u
	}
	for _, text := range opts.scrub {
		pattern, err := regexp.Compile(text)
		if err != nil {
			return fmt.Errorf("--scrub: %w", err)
		}
		o.Scrub = append(o.Scrub, pattern)
	}
	o.Differs = func(report string) {
		fmt.Fprintf(env.stderr, "vllm-vcr: --record-answers: %s\n", safetext.Line(report))
	}
	recorder, err := answers.NewRecorder(*o)
	if err != nil {
		return fmt.Errorf("--record-answers: %w", err)
	}
	chosen := cfg.HTTP.Wrap
	cfg.HTTP.Wrap = func(next http.Handler) http.Handler {
		if chosen != nil {
			next = chosen(next)
		}
		return recorder.Wrap(next)
	}
	return nil
}

// reportAnswers prints which rules have answered nothing.
func (opts *edgeOptions) reportAnswers(env *environment) {
	if opts.chosen == nil {
		return
	}
	if unused, requests := opts.chosen.Unused(); len(unused) > 0 {
		fmt.Fprintf(env.stderr, "vllm-vcr: --answers: of %s, none matched rule %s\n", safetext.Count(requests, "request"), strings.Trim(fmt.Sprint(unused), "[]"))
	}
}

// listen opens the ports, one for each of so many frontends.
func (opts *edgeOptions) listen(host string, port, frontends int) (listeners []net.Listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
		}
	}()
	if opts.uds != "" {
		if frontends > 1 {
			return nil, errors.New("--uds has one socket: leave out --port-per-rank and --replicas")
		}
		l, err := edge.ListenUnix(opts.uds)
		if err != nil {
			return nil, infra(fmt.Errorf("--uds: %w", err))
		}
		return []net.Listener{l}, nil
	}
	own, err := netip.ParseAddr(host)
	if opts.perAddress && err != nil {
		return nil, fmt.Errorf("--address-per-replica: --host %s is not an address to count from, such as 127.0.0.1", host)
	}
	if last := port + frontends - 1; !opts.perAddress && last > math.MaxUint16 {
		return nil, fmt.Errorf("--port %d: %d frontends need the ports up to %d: give a smaller --port, or fewer of --replicas or --data-parallel-size", port, frontends, last)
	}
	for i := range frontends {
		number := port
		if opts.perAddress {
			host = own.String()
			own = own.Next()
		} else if port != 0 {
			number += i
		}
		address := net.JoinHostPort(host, fmt.Sprint(number))
		l, err := net.Listen("tcp", address)
		if errors.Is(err, syscall.EMFILE) {
			return listeners, infra(fmt.Errorf("listen on %s, number %d of %d: too many open files: raise the limit with ulimit -n, or give fewer --replicas", address, i+1, frontends))
		}
		if err != nil {
			return listeners, infra(fmt.Errorf("listen on %s: %w: choose another --port, 0 for any free one, or another --host", address, errors.Unwrap(err)))
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// url is where clients of this machine reach a listener.
func (opts *edgeOptions) url(l net.Listener) string {
	if opts.uds != "" {
		return "unix:" + opts.uds
	}
	if opts.cert != "" || opts.tls {
		return "https://" + publicAddress(l.Addr())
	}
	return "http://" + publicAddress(l.Addr())
}

// simulate makes the server do as llm-d-inference-sim, if the flags want that.
func (opts *serveOptions) simulate(env *environment, cfg *serve.Config) (err error) {
	opts.edge.fake.Model = cfg.Model.Name
	if len(cfg.Names) > 0 {
		opts.edge.fake.Model = cfg.Names[0]
	}
	if !opts.sim.On {
		return nil
	}
	o, err := opts.sim.Builtin(env.getenv)
	if err != nil {
		return err
	}
	cfg.Builtin.Simulator = o
	settings := opts.sim.Settings(o)
	source := &opts.play.source
	source.sentences = simulator.Sentences
	if source.context, source.randomRow, o.Deterministic = o.MaxModelLen, true, source.deterministic; source.length == "" {
		source.length = "simulator"
	}
	opts.sim.Apply(cfg, &opts.edge.fake, settings)
	after := cfg.Ready
	cfg.Ready = func(s serve.Started) {
		settings.Add(s.Builtin...)
		after(s)
	}
	opts.play.source.plans, opts.play.timing.now, opts.play.peers.hashSeed = opts.sim.Plans, opts.sim.Times, opts.sim.HashSeed()
	tls, err := opts.sim.TLS()
	if tls != nil {
		cfg.HTTP.TLS, opts.edge.tls = tls, true
	}
	return infra(err)
}

// rankAsSimulator sets up the engine behind the frontend number n.
func (opts *serveOptions) rankAsSimulator(env *environment, play *playOptions, n int) error {
	rank, err := opts.sim.Rank(env.getenv, n)
	play.peers.rank, play.engine.opt.EngineIndex, play.engine.opt.DataParallelSize, play.engine.alone = 0, rank.Index, 1, true
	if play.peers.kvEvents == "" && rank.KVEvents != "" {
		play.peers.firstBatch, play.peers.kvEvents, play.peers.eventArrays = 1, rank.KVEvents, rank.Arrays
	}
	return err
}
