package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// frontendStart is how long a frontend under test may take to serve.
const frontendStart = 5 * time.Minute

// subjectOptions are the flags of what is under test, and of what is asked of it. Without any, it is
// the embedded player.
type subjectOptions struct {
	suite             string
	engineCommand     string
	engineAddress     string
	engineGrace       time.Duration
	engineEnv         []string
	logprobsMode      string
	frontendCommand   string
	frontendURL       string
	frontendHandshake string
	frontendEnv       []string
	consumerCommand   string
	consumerEnv       []string
	router            conformance.RouterUnderTest
	keepAlive         bool
	framesOut         string
	generate          check.Generate

	given *pflag.FlagSet // those of the command
}

func (opts *subjectOptions) addFlags(flags *pflag.FlagSet) {
	opts.given = flags
	flags.StringVar(&opts.suite, "suite", "", "`SUITE` of checks: replay (for an engine that replays traces), live (for an engine that computes), frontend, prefill and decode (for an engine with a NixlConnector), kv-consumer (for a program that reads KV events), router, generated (see --generate) (default replay, or the one for what is under test)")
	choices(flags, "suite", conformance.Suites()...)
	flags.StringVar(&opts.engineCommand, "engine-command", "", "`COMMAND` that starts the engine under test, once for each case (live: for each line). It is split into words as in a shell, but no shell runs it. "+
		"Placeholders: {handshake}, {handshake_host}, {handshake_port}, {input_address}, {output_address}, {trace}, {match}, {line}, {tag}, {index}")
	flags.StringVar(&opts.engineAddress, "engine-handshake", "", "handshake `ADDRESS`, tcp://HOST:PORT, where conform waits for an engine that you start yourself")
	exclusive(flags, "engine-command", "engine-handshake")
	flags.DurationVar(&opts.engineGrace, "engine-grace", conformance.DefaultGrace, "time between SIGTERM and SIGKILL when the engine of --engine-command is stopped; on Linux, the time in which the engine waits for a processor does not count, up to 8 times this value in all")
	flags.StringSliceVar(&opts.engineEnv, "engine-env", nil, "`NAMES` of environment variables to pass to the engine of --engine-command although they look like secrets (default none; other variables are passed)")
	flags.StringVar(&opts.logprobsMode, "logprobs-mode", logprobsModes[0], "--logprobs-mode that the engine under test was started with: "+strings.Join(logprobsModes[:3], ", ")+" or "+logprobsModes[3]+"; with the last two, values above 0 are no failure")
	flags.StringVar(&opts.frontendCommand, "frontend-command", "", "`COMMAND` that starts the frontend under test, once for each line. Placeholders: {handshake}, {handshake_host}, {handshake_port}, {input_address}, {output_address}, {http_port}, {input_fd}, {output_fd}, {http_fd}, {line}, {model}")
	flags.StringVar(&opts.frontendURL, "frontend-url", "", "`URL` of the HTTP API of the frontend under test (default http://127.0.0.1:{http_port} for --frontend-command)")
	flags.StringVar(&opts.frontendHandshake, "frontend-handshake", "", "handshake `ADDRESS` of the frontend at --frontend-url, where it waits for its engine")
	flags.StringSliceVar(&opts.frontendEnv, "frontend-env", nil, "`NAMES` of environment variables to pass to the frontend of --frontend-command although they look like secrets (default none; other variables are passed)")
	flags.StringVar(&opts.consumerCommand, "consumer-command", "", "`COMMAND` that starts the consumer of KV events under test, once for each case. Placeholders: {endpoint}, {replay_endpoint}, {topic}, {ranks}, {line}")
	flags.StringSliceVar(&opts.consumerEnv, "consumer-env", nil, "`NAMES` of environment variables to pass to the consumer of --consumer-command although they look like secrets (default none; other variables are passed)")
	needs(flags, "consumer-env", "consumer-command")
	flags.IntVar(&opts.generate.Sessions, "generate", 0, "`NUMBER` of random sessions to send to the engine under test (requests, aborts, pauses, calls) or to the frontend under test (HTTP requests, and clients that leave); the smallest session that fails is written to the file of --session (default none)")
	flags.Uint64Var(&opts.generate.Seed, "seed", 1, "seed of the sessions of --generate")
	flags.IntVar(&opts.generate.Clients, "clients", 1, "number of clients that the sessions of --generate have for an engine, as a frontend of several processes")
	flags.StringVar(&opts.generate.File, "session", "", "`FILE` of a session: without --generate, the session to send (default session.json for --generate)")
	least0(flags, "generate")
	above0(flags, "clients")
	needs(flags, "seed", "generate")
	needs(flags, "clients", "generate", "session")
	choices(flags, "logprobs-mode", logprobsModes...)
	above0(flags, "engine-grace")
	needs(flags, "engine-grace", "engine-command")
	needs(flags, "engine-env", "engine-command")
	needs(flags, "frontend-env", "frontend-command")
	needs(flags, "logprobs-mode", "engine-command", "engine-handshake")
	flags.StringVar(&opts.router.Command, "router-command", "", "`COMMAND` that starts the router under test of --suite router. Placeholders: {backends} (URLs of the engines), {backend} (HOST:PORT of the first), {port}, {metrics_port}, {health_port}, {config}, {discovery}, {model}, {events_port}; with prefill and decode {prefills}, {decodes}, {prefill}, {decode}, {decode_port}")
	flags.StringVar(&opts.router.URL, "router-url", "", "`URL` where the router under test takes requests, or grpc://HOST:PORT of an endpoint picker, which is asked by Envoy's ext_proc (default http://127.0.0.1:{port} for --router-command)")
	flags.StringVar(&opts.router.Config, "router-config", "", "`FILE` of which {config} is a copy: its placeholders are replaced, and a line with {address} or {number} is repeated for each engine")
	flags.StringArrayVar(&opts.router.Headers, "router-header", nil, "`HEADER` to send to the router with each request, NAME: VALUE; may be given several times (default none)")
	flags.StringVar(&opts.router.Listen, "router-backends", "", "`ADDRESS`, HOST:PORT, of the first engine behind the router; the others have the ports behind it (default any free port)")
	flags.IntVar(&opts.router.Backends, "router-engines", 4, "number of engines behind the router, from 2 to 16")
	flags.StringSliceVar(&opts.router.PassEnv, "router-env", nil, "`NAMES` of environment variables to pass to the router of --router-command although they look like secrets (default none; other variables are passed)")
	needs(flags, "router-env", "router-command")
	needs(flags, "router-config", "router-command")
	flags.StringVar(&opts.framesOut, "frames-out", "", "`FILE` to write the messages of the engine and of its side channel to, for golden add --role nixl; for --suite prefill and decode (default none)")
	flags.BoolVar(&opts.keepAlive, "keep-alive", false, "for debugging: set no timeouts, print the address of each engine or frontend, and keep the last one until an interrupt")
}

// logprobsModes are the values of vLLM's --logprobs-mode (vllm/config/model.py LogprobsMode), the default first and those with
// logits last.
var logprobsModes = []string{"raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"}

func (opts *subjectOptions) hasEngine() bool {
	return opts.engineCommand != "" || opts.engineAddress != ""
}

func (opts *subjectOptions) hasFrontend() bool {
	return opts.frontendCommand != "" || opts.frontendURL != "" || opts.frontendHandshake != ""
}

func (opts *subjectOptions) hasRouter() bool {
	return opts.router.Command != "" || opts.router.URL != ""
}

// chosenSuite is the suite that was named, else the one that fits what is under test.
func (opts *subjectOptions) chosenSuite() (conformance.Suite, error) {
	suite := conformance.Suite(opts.suite)
	generated := opts.generate.Sessions > 0 || opts.generate.File != ""
	switch {
	case suite == "" && generated:
		suite = conformance.SuiteGenerated
	case suite == "" && opts.hasFrontend():
		suite = conformance.SuiteFrontend
	case suite == "" && opts.consumerCommand != "":
		suite = conformance.SuiteKVConsumer
	case suite == "" && opts.hasRouter():
		suite = conformance.SuiteRouter
	case suite == "":
		suite = conformance.SuiteReplay
	}
	if (suite == conformance.SuiteGenerated) != generated {
		return "", errors.New("--suite generated needs --generate or --session, and no other suite takes them")
	}
	switch {
	case (suite == conformance.SuiteRouter) != opts.hasRouter():
		return "", errors.New("--suite router needs a router, and no other suite does: --router-command, or --router-url with --router-backends")
	case suite == conformance.SuiteRouter && (opts.hasEngine() || opts.hasFrontend()):
		return "", errors.New("a router under test: its engines are those of conform, leave out --engine-command, --engine-handshake and the frontend")
	case suite == conformance.SuiteRouter && (opts.router.Backends < 2 || opts.router.Backends > 16):
		return "", fmt.Errorf("--router-engines %d: want 2 to 16", opts.router.Backends)
	case opts.hasEngine() && opts.hasFrontend():
		return "", errors.New("an engine and a frontend under test: give only one of them, conform is the other side")
	case suite == conformance.SuiteFrontend && !opts.hasFrontend():
		return "", errors.New("--suite frontend needs a frontend: --frontend-command, or --frontend-url with --frontend-handshake")
	case suite == conformance.SuiteGenerated && opts.hasFrontend() && opts.given.Changed("clients"):
		return "", errors.New("--clients is of an engine under test, and a frontend is given")
	case suite != conformance.SuiteFrontend && suite != conformance.SuiteGenerated && opts.hasFrontend():
		return "", fmt.Errorf("--suite %s needs an engine under test, but a frontend is given", suite)
	case opts.framesOut != "" && suite != conformance.SuitePrefill && suite != conformance.SuiteDecode:
		return "", fmt.Errorf("--frames-out: the suites prefill and decode write a file, and this one is %s", suite)
	case (suite == conformance.SuitePrefill || suite == conformance.SuiteDecode) && !opts.hasEngine():
		return "", fmt.Errorf("--suite %s needs an engine under test: --engine-command or --engine-handshake", suite)
	}
	if (suite == conformance.SuiteKVConsumer) != (opts.consumerCommand != "") || opts.consumerCommand != "" && (opts.hasEngine() || opts.hasFrontend()) {
		return "", errors.New("--suite kv-consumer needs --consumer-command, without an engine or a frontend under test, and no other suite takes it")
	}
	for _, name := range slices.Concat(opts.engineEnv, opts.frontendEnv, opts.consumerEnv, opts.router.PassEnv) {
		if before, _, assigned := strings.Cut(name, "="); assigned || before == "" { // what follows may be a secret
			return "", fmt.Errorf("--engine-env, --frontend-env, --consumer-env and --router-env: %q: want the name of a variable, without a value", before)
		}
	}
	return suite, nil
}

// matches are those that the engine under test can be asked for, nil when it is the
// player, which can do all.
func (opts *subjectOptions) matches() []player.Match {
	switch {
	case opts.engineCommand != "":
		return opts.command().Matches()
	case opts.engineAddress != "":
		return []player.Match{player.MatchIndex}
	}
	return nil
}

func (opts *subjectOptions) command() conformance.CommandEngine {
	return conformance.CommandEngine{Template: opts.engineCommand, Grace: opts.engineGrace, PassEnv: opts.engineEnv}
}

// withDefaults replaces the deadlines that were not set: engines that generate load a model, and a
// frontend in Python takes minutes to import what it needs.
func (opts *subjectOptions) withDefaults(t conformance.Timeouts, suite conformance.Suite) conformance.Timeouts {
	fallback := t
	switch {
	case suite == conformance.SuiteReplay:
		fallback = conformance.ReplayTimeouts()
	case opts.hasEngine():
		fallback = conformance.EngineTimeouts()
	case opts.hasFrontend():
		fallback.Connect = frontendStart
	case suite == conformance.SuiteRouter:
		fallback.Connect = time.Minute
	}
	if opts.given.Changed("start-timeout") {
		fallback.Connect, fallback.Stuck = t.Connect, t.Stuck
	}
	if opts.given.Changed("idle-timeout") {
		fallback.Idle, fallback.GiveUp = t.Idle, false
	}
	if opts.given.Changed("golden-timeout") {
		fallback.Golden = t.Golden
	}
	return fallback
}

// configure makes the runner judge what the flags name.
func (opts *subjectOptions) configure(env *environment, r *conformance.Runner, suite conformance.Suite, model string, cases []conformance.Case) error {
	r.Timeouts = opts.withDefaults(r.Timeouts, suite)
	r.Subject = conformance.Description{Kind: "player"}
	if opts.keepAlive {
		r.KeepAlive = func(at conformance.Attached) { // prints where to attach
			where := ""
			if at.URL != "" {
				where = ", HTTP at " + at.URL
			}
			if at.Pid != 0 {
				where += fmt.Sprintf(", process %d", at.Pid)
			}
			fmt.Fprintf(env.stderr, "handshake at %s%s\n", at.Handshake, where)
		}
	}
	if opts.engineCommand != "" || opts.frontendCommand != "" || opts.consumerCommand != "" {
		if names := process.Withheld(os.Environ(), slices.Concat(opts.engineEnv, opts.frontendEnv, opts.consumerEnv)...); len(names) > 0 {
			env.log.Info("environment variables that look like secrets are not passed to the process under test", "names", names)
		}
	}
	r.Generate = opts.generate
	r.Generate.Replays = strings.Contains(opts.engineCommand, "{trace}")
	r.Generate.File = cmp.Or(r.Generate.File, "session.json")
	r.Logits = strings.HasSuffix(opts.logprobsMode, "_logits")
	if suite == conformance.SuitePrefill || suite == conformance.SuiteDecode {
		found, err := local.FindNIXL("")
		if err != nil {
			return err
		}
		if r.NIXL = found.Python; !exists(r.NIXL) {
			return infra(fmt.Errorf("no Python with nixl at %s: `vllm-vcr capture nixl` installs it", r.NIXL))
		}
		if opts.framesOut != "" {
			r.FramesOut = opts.writeFrames
		}
	}
	switch {
	case opts.engineCommand != "":
		command := opts.command()
		r.Engine, r.Subject = command.Engine, conformance.Description{Kind: "engine", Command: opts.engineCommand}
		return command.Check(suite)
	case opts.engineAddress != "":
		r.Address, r.Subject = opts.engineAddress, conformance.Description{Kind: "engine", Command: opts.engineAddress}
		return conformance.CheckAddress(opts.engineAddress, cases)
	case opts.consumerCommand != "":
		r.Consumer = &conformance.ConsumerUnderTest{Command: opts.consumerCommand, PassEnv: opts.consumerEnv}
		r.Subject = conformance.Description{Kind: "consumer", Command: opts.consumerCommand}
		return r.Consumer.Check()
	case suite == conformance.SuiteRouter:
		opts.router.Fleet = routerFleet(env)
		r.Router, r.Subject = &opts.router, conformance.Description{Kind: "router", Command: cmp.Or(opts.router.Command, opts.router.URL)}
		return opts.router.Check()
	case opts.hasFrontend():
		under := &conformance.FrontendUnderTest{
			Command: opts.frontendCommand, URL: opts.frontendURL, Handshake: opts.frontendHandshake, Model: model,
			PassEnv: opts.frontendEnv,
		}
		r.Frontend, r.Subject = under, conformance.Description{Kind: "frontend", Command: cmp.Or(opts.frontendCommand, opts.frontendURL)}
		return under.Check(cases)
	}
	return nil
}

// writeFrames writes the file of --frames-out.
func (opts *subjectOptions) writeFrames(messages []trace.Message) error {
	meta := fmt.Appendf(nil, `{"recorder_version":%q,"captured_at":%q}`, buildVersion(), time.Now().UTC().Format(time.RFC3339))
	data, err := check.WriteFrames(opts.framesOut, meta, messages)
	if err == nil {
		err = atomicfile.Write(opts.framesOut, data, 0o644)
	}
	return infra(err)
}

// realFrontends reads --frontend LINE=PATH.
func (opts *conformOptions) realFrontends(ctx context.Context) (map[string]conformance.RealFrontend, error) {
	if opts.model != "" && len(opts.frontends) == 0 && opts.subject.frontendCommand == "" {
		return nil, fmt.Errorf("--model needs --frontend or --frontend-command")
	}
	frontends := map[string]conformance.RealFrontend{}
	for _, value := range opts.frontends {
		line, path, named := strings.Cut(value, "=")
		if !named {
			line, path = "", value
		}
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("--frontend: %w: want LINE=FILE, FILE a vllm-rs", err)
		}
		if filepath.Base(path) == path {
			path = "." + string(filepath.Separator) + path // the file that is there, not one of $PATH
		}
		model, err := opts.modelDir()
		if err != nil {
			return nil, err
		}
		if !named {
			if line, err = opts.frontendLine(ctx, path); err != nil {
				return nil, err
			}
		}
		if _, twice := frontends[line]; twice {
			return nil, fmt.Errorf("--frontend: line %s is given twice", line)
		}
		frontends[line] = conformance.RealFrontend{Binary: path, ModelDir: model}
	}
	return frontends, nil
}

// modelDir is the folder of the model that frontends are started with: the one that was named, else that of the binary,
// which is written to the cache. It is empty when no frontend asks for one.
func (opts *conformOptions) modelDir() (string, error) {
	if opts.model != "" || len(opts.frontends) == 0 && !strings.Contains(opts.subject.frontendCommand, "{model}") {
		return opts.model, nil
	}
	dir, err := acceptanceModel("")
	if err != nil {
		return "", infra(fmt.Errorf("write the model of the frontend: %w", err))
	}
	return dir, nil
}

// frontendLine finds the line of a binary that is given without one: the line
// that --line names, else that of the release that the binary prints.
func (opts *conformOptions) frontendLine(ctx context.Context, path string) (string, error) {
	if len(opts.sel.Lines) == 1 {
		return opts.sel.Lines[0], nil
	}
	version, err := vllmrs.Version(ctx, path)
	if err != nil {
		return "", fmt.Errorf("--frontend: %w: give the line too, as LINE=PATH", err)
	}
	return protocol.LineOf(version), nil
}

func (opts *conformOptions) selection(ctx context.Context) (sel conformance.Selection, err error) {
	sel = opts.sel
	if sel.Suite, err = opts.subject.chosenSuite(); err != nil {
		return sel, err
	}
	if sel.Frontends, err = opts.realFrontends(ctx); err != nil {
		return sel, err
	}
	for _, name := range opts.assertions {
		if err := oneOfWords("--assertion", name, texts(conformance.AssertionsOf(sel.Suite))); err != nil {
			return sel, err
		}
	}
	sel.Assertions, sel.Matches = as[conformance.Assertion](opts.assertions), as[player.Match](opts.matches)
	if sel.Suite == conformance.SuiteGenerated && opts.subject.hasFrontend() && len(sel.Assertions) == 0 {
		sel.Assertions = []conformance.Assertion{conformance.HTTPSessions}
	}
	if known := opts.subject.matches(); opts.subject.engineCommand != "" {
		for _, m := range sel.Matches {
			if !slices.Contains(known, m) {
				return sel, fmt.Errorf("--match %s: --engine-command has no {match}, so the engine would not know how to find its records", m)
			}
		}
	}
	if len(sel.Matches) == 0 && sel.Suite == conformance.SuiteReplay {
		sel.Matches = opts.subject.matches()
	}
	return sel, opts.plan.sel(&sel)
}
