package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check/httpdiff"
	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// httpOptions are the flags of conform http.
type httpOptions struct {
	httpdiff.Options
	against, line, frontend string
	engine                  string
	run                     []string
	corpus, known           string
	profile, writeKnown     string
	peers                   engineOptions
	offline, list, asJSON   bool
}

func newConformHTTPCommand(env *environment) *cobra.Command {
	var opts httpOptions
	cmd := &cobra.Command{
		Use:   "http [URL]",
		Short: "Compare the HTTP answers of a server with those of a released frontend",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !opts.list && opts.engine == "" {
				return errors.New("vllm-vcr conform http: the argument URL is missing: see vllm-vcr conform http --help")
			}
			return runConformHTTP(cmd.Context(), env, opts, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.against, "against", "", "`URL` of the reference (default one that is started for this run)")
	oneOf(flags, &opts.frontend, "frontend", serve.Rust, "`FRONTEND` that is started as the reference: rust (vllm-rs), or python (of an environment of capture engine)", serve.Rust, serve.Python)
	exclusive(flags, "against", "frontend")
	flags.StringVar(&opts.engine, "engine-command", "", "`COMMAND` that starts an engine of vLLM behind the reference, in the place of the player; without URL, also behind the builtin frontend, which is tested then. Placeholders: {handshake}, {handshake_host}, {handshake_port}, {line}, {tag}")
	exclusive(flags, "against", "engine-command")
	flags.StringVar(&opts.line, "line", "", "vLLM line of the reference that is started (default the newest)")
	flags.StringVar(&opts.Model, "model", "", "name of the model at both servers; without URL, also its folder (default the first one that the reference, else the server at URL, lists)")
	flags.StringVar(&opts.A.APIKey, "api-key", "", "`KEY` for the server at URL, sent as bearer token; prefer its variable, which no list of processes shows (default none)")
	flags.StringVar(&opts.B.APIKey, "against-api-key", "", "`KEY` for the server of --against (default none)")
	grouped(flags, "Servers")
	flags.StringSliceVar(&opts.run, "run", nil, "`PATTERNS` of the names of requests to send, such as chat/*; a star matches any text (default all)")
	flags.StringVar(&opts.corpus, "requests", "", "`FILE` of requests in the format of .http files (default those in this program)")
	oneOf(flags, (*string)(&opts.Depth), "depth", httpdiff.Values, "what is compared: values (everything), shapes (no texts and numbers), status (status and content type)",
		httpdiff.Values, httpdiff.Shapes, httpdiff.Status)
	flags.StringVar(&opts.known, "known", "", "`FILE` of known differences with their reasons (default none; without --against, those of the builtin frontend if the server is one)")
	flags.StringVar(&opts.writeKnown, "write-known", "", "`FILE` for the known differences that occurred and all others, each with an empty reason for you to fill in")
	flags.BoolVar(&opts.Gateway, "gateway", false, "compare only what a gateway must keep: no added headers, and no requests about a server itself, such as health and metrics")
	flags.StringVar(&opts.profile, "profile", "", "judge the server by a `PROFILE` instead of a reference: model-server (what endpoint pickers of llm-d and the Gateway API inference extension read) (default none)")
	choices(flags, "profile", modelServerProfile)
	flags.DurationVar(&opts.Timeout, "request-timeout", 30*time.Second, "maximum time for an answer")
	flags.DurationVar(&opts.Settle, "settle", 2*time.Second, "how long the metrics of the two servers may differ after a request")
	flags.BoolVar(&opts.list, "list", false, "print the requests with the reason for each, and send none")
	above0(flags, "request-timeout", "settle")
	for _, name := range []string{"gateway", "against", "frontend", "engine-command", "line", "run", "requests", "depth"} {
		exclusive(flags, "profile", name)
	}
	grouped(flags, "What is compared")
	opts.peers.addFlags(flags)
	flags.BoolVar(&opts.offline, "offline", false, "fetch no frontend: use the cached one, or fail")
	addJSONFlag(flags, &opts.asJSON)
	return cmd
}

const modelServerProfile = "model-server"

// httpJSON is what conform http prints with --json.
type httpJSON struct {
	Schema    string            `json:"schema"`
	Tested    string            `json:"tested,omitempty"`
	Reference string            `json:"reference,omitempty"`
	ExitCode  int               `json:"exit_code"`
	Error     string            `json:"error,omitempty"`
	Requests  []httpRequestJSON `json:"requests"`
	httpdiff.Report
}

type httpRequestJSON struct {
	Name string `json:"name"`
	Why  string `json:"why"`
	Do   string `json:"do"`
}

func runConformHTTP(ctx context.Context, env *environment, opts httpOptions, args []string) error {
	options, err := opts.comparison()
	if err != nil {
		return err
	}
	result := httpJSON{Schema: schemaOf("conform-http"), Requests: []httpRequestJSON{}, Report: httpdiff.Report{Differences: []httpdiff.Difference{}, Unused: []httpdiff.Known{}}}
	for _, r := range options.Requests {
		result.Requests = append(result.Requests, httpRequestJSON{r.Name, r.Why, r.Method + " " + r.Path})
	}
	if opts.list {
		return printResult(env, opts.asJSON, result, func(w io.Writer) error {
			tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			for _, r := range options.Requests {
				fmt.Fprintf(tw, "%s\t%s\n", r.Name, r.Why)
			}
			return tw.Flush()
		})
	}
	folder, reference := options.Model, servedJSON{}
	if len(args) == 0 { // the builtin frontend is tested
		if options.Model = serve.DefaultName; folder != "" {
			options.Model = filepath.Base(folder)
		}
		running, fail := context.WithCancelCause(ctx)
		begin := func(what, frontend string, started *servedJSON) (end func()) {
			now, end, err := opts.start(running, env, frontend, options.Model, folder)
			if *started = now; err != nil {
				fail(fmt.Errorf("start %s: %w", what, err))
				return func() {}
			}
			return end
		}
		var tested servedJSON
		other := make(chan func(), 1) // at the same time, as an engine takes long to start
		go func() { other <- begin("the reference", opts.frontend, &reference) }()
		defer begin("the builtin frontend", serve.Builtin, &tested)()
		defer (<-other)()
		if err := context.Cause(running); err != nil {
			return err
		}
		args = []string{tested.URL}
	}
	options.A.URL, options.B.URL = args[0], opts.against
	judge := httpdiff.Run
	if opts.profile != "" {
		judge, options.Requests, result.Requests = httpdiff.ModelServer, nil, []httpRequestJSON{}
	} else if opts.against == "" && opts.known == "" {
		if options.Known, err = httpdiff.KnownOf(ctx, options.A, opts.frontend == serve.Python, options.Timeout); err != nil {
			return err
		}
		options.Partial = options.Partial || options.Known != nil // some need flags that the server may not have
		if line := protocol.LineOf(opts.line); options.Known != nil && line != "" && line != protocol.Newest() {
			env.log.Warn("the builtin frontend answers on every line as vllm-rs "+protocol.Newest()+" does, and its known differences are those from it", "line", line)
		}
	}
	if opts.against == "" && opts.profile == "" && reference.Direct == nil {
		if options.Model == "" {
			if options.Model, err = httpdiff.FirstModel(ctx, options.A, options.Timeout); errors.As(err, new(*httpdiff.EndedError)) {
				return infra(err)
			} else if err != nil {
				return err
			}
		}
		var stop func()
		if reference, stop, err = opts.start(ctx, env, opts.frontend, options.Model, options.Model); err != nil {
			return fmt.Errorf("start the reference: %w", err)
		}
		defer stop()
	}
	if reference.Direct != nil {
		options.B.URL = reference.Direct[0] // the frontend itself
	}
	shown := openSteps(env)
	options.Progress = func(name string) { shown.show("request", name) }
	report, err := judge(ctx, options)
	shown.close()
	var ended *httpdiff.EndedError
	if report == nil && errors.As(err, &ended) {
		return infra(err)
	} else if report == nil {
		return err // the URL, or the model
	}
	if opts.writeKnown != "" {
		text, added, err := report.WriteKnown()
		if err == nil {
			err = atomicfile.Write(opts.writeKnown, []byte(text), 0o644)
		}
		if err != nil {
			return infra(fmt.Errorf("--write-known: %w", err))
		}
		fmt.Fprintf(env.stderr, "%s: %s without a reason: fill it in\n", safetext.Line(opts.writeKnown), safetext.Count(added, "difference"))
	}
	code := conformance.ExitOK
	switch {
	case err != nil:
		if code = conformance.ExitInfra; errors.As(err, &ended) && ended.Tested {
			code = conformance.ExitFail // because of the server under test
		}
	case len(report.Unknown()) > 0 || len(report.Unused) > 0:
		code, err = conformance.ExitFail, errReported
	case report.Answered == 0 && slices.ContainsFunc(options.Requests, func(r httpdiff.Request) bool { return r.Generates() }):
		code = conformance.ExitVacuous
		err = errors.New("nothing was compared: the servers refused every request to generate")
	}
	if code != conformance.ExitOK {
		err = exitError{code, err}
	}
	result.Tested, result.Reference, result.ExitCode, result.Error, result.Report = options.A.URL, options.B.URL, code, errorText(err), *report
	return errors.Join(err, printResult(env, opts.asJSON, result, report.Text))
}

// comparison reads what is compared, before anything is started.
func (opts *httpOptions) comparison() (o httpdiff.Options, err error) {
	o = opts.Options
	o.Requests = httpdiff.Corpus()
	if opts.corpus != "" {
		text, err := os.ReadFile(opts.corpus)
		if err != nil {
			return o, fmt.Errorf("--requests: %w", err)
		}
		if o.Requests, err = httpdiff.ParseCorpus(opts.corpus, string(text)); err != nil {
			return o, fmt.Errorf("--requests: %w", err)
		}
	}
	if opts.known != "" {
		text, err := os.ReadFile(opts.known)
		if err != nil {
			return o, fmt.Errorf("--known: %w", err)
		}
		if o.Known, err = httpdiff.ReadKnown(opts.known, string(text)); err != nil {
			return o, fmt.Errorf("--known: %w", err)
		}
	}
	if len(opts.run) == 0 {
		return o, nil
	}
	all := o.Requests
	o.Requests = nil
	for _, pattern := range opts.run {
		if !slices.ContainsFunc(all, func(r httpdiff.Request) bool { return httpdiff.Match(pattern, r.Name) }) {
			var names []string
			for _, r := range all {
				names = append(names, r.Name)
			}
			return o, fmt.Errorf("--run %s: no request has such a name%s", pattern, tomlfile.DidYouMean(pattern, names, "--list lists them"))
		}
	}
	for _, r := range all {
		if slices.ContainsFunc(opts.run, func(pattern string) bool { return httpdiff.Match(pattern, r.Name) }) {
			o.Requests = append(o.Requests, r)
		}
	}
	// An entry for a request that is not sent cannot occur.
	o.Partial = true
	return o, nil
}

// start starts a frontend with a player or the engine of --engine-command behind it, as serve does.
func (opts *httpOptions) start(ctx context.Context, env *environment, frontend, name, model string) (started servedJSON, stop func(), err error) {
	inner := *env
	inner.quiet = true
	args := []string{"--port", "0", "--json", "--served-model-name", name, "--frontend", frontend, "--frontend-env", "VLLM_SERVER_DEV_MODE=1", "--shutdown-timeout", "1s"}
	if opts.offline {
		args = append(args, "--offline")
	}
	for flag, value := range map[string]string{"--vllm-version": opts.line, "--engine-command": opts.engine, "--peers": opts.peers.dir, "--index": opts.peers.index} {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	if opts.engine != "" {
		args = append(args, "--handshake-timeout", "20m", "--frontend-env", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
	}
	if found, err := serve.FindModel(model, env.getenv); err == nil { // else a name that serve does not take for one: the embedded model has it
		found.Remove()
		args = append(args, model)
	}
	args = append(args, "--")
	if protocol.RustScalesOut.Holds(opts.line) {
		args = append(args, "--enable-scale-out") // for /inference/v1/generate
	}
	if opts.engine != "" {
		args = append(args, "--tool-call-parser", "hermes") // vllm-rs chooses one by the name of the model's folder, builtin has this one
	}
	return serveReady(ctx, &inner, args...)
}
