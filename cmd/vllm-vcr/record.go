package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/golden/s3store"
	"github.com/vllm-vcr/conformance/internal/inspect/monitor"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/recorder"
	"github.com/vllm-vcr/conformance/trace"
)

// recordOptions are the flags of record.
type recordOptions struct {
	cfg         recorder.Config
	outputs     [3]string // cassette, step statistics, frames
	overwrite   bool
	fromFrames  string
	metrics     string
	summaryJSON string
	until       string
}

func newRecordCommand(env *environment) *cobra.Command {
	var opts recordOptions
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Stand between a vLLM frontend and its engine, and write down what the engine says",
		Long: "Listen where the engine expects its frontend, dial the frontend as the engine would, and pass every\n" +
			"message on as it is. What passed becomes a cassette that play and conform replay: a line about the\n" +
			"engine, then one record per finished request, written as it finishes. Start the frontend with\n" +
			"--data-parallel-size-local 0, so that it waits for an engine; the three may start in any order.\n\n" +
			"Ends on SIGINT or SIGTERM, or when engine or frontend hang up, and finishes the files then; a second\n" +
			"signal, a second later, ends it at once. Until then a file has a temporary name, run.partial-1a2b3c4d.jsonl.gz for\n" +
			"run.jsonl.gz, and is readable whatever happens. A recording that cannot go on, because the disk is\n" +
			"full, leaves frontend and engine undisturbed.\n\n" +
			"Outputs are paths or s3://bucket/key, gzipped if they end in .gz. Objects are uploaded at the end and\n" +
			"never overwritten. With several engines, engine 0 has run.jsonl.gz and engine 1 run.rank1.jsonl.gz;\n" +
			"{rank} in a name is the engine's index instead.\n\n" +
			"With --until the recording ends earlier than the tap: when that file comes up, and nothing is in flight any\n" +
			"more, the files are finished, and everything is passed on until a signal ends the tap.\n\n" +
			"With --from-frames nothing is tapped: the cassette is derived from the raw messages that an earlier\n" +
			"run kept with --frames-out, with the flags of that run unless they are given.\n\n" +
			"Exit codes: 0 recorded, 1 the engine is not of the line that --vllm-version names, 2 usage, 3 the\n" +
			"recording is not whole or there is none.",
		Example: "  vllm-rs serve MODEL --data-parallel-size 1 --data-parallel-size-local 0 \\\n" +
			"      --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 29550 --port 8000 &\n" +
			"  vllm-vcr record --frontend-handshake tcp://127.0.0.1:29550 --engine-handshake tcp://127.0.0.1:5580 \\\n" +
			"      --trace-out run.jsonl.gz --record-tokens &\n" +
			"  vllm serve MODEL --headless --data-parallel-size 1 \\\n" +
			"      --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 5580\n\n" +
			"  vllm-vcr record --from-frames run.frames.jsonl.gz --trace-out again.jsonl.gz",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runRecord(cmd.Context(), env, cmd.Flags(), opts) },
	}
	opts.addFlags(cmd.Flags())
	return cmd
}

func (opts *recordOptions) addFlags(flags *pflag.FlagSet) {
	c, o := &opts.cfg, &opts.cfg.Observe
	flags.StringVar(&c.Frontend, "frontend-handshake", "tcp://127.0.0.1:29550", "where the frontend listens for engines")
	flags.StringVar(&c.Listen, "engine-handshake", "tcp://127.0.0.1:5580", "where to listen for the engine, tcp://HOST:PORT or ipc://PATH")
	flags.StringVar(&c.Data, "data-address", "", "where to listen for the engine's messages: tcp://HOST:0, tcp://HOST:PORT for that port and those behind it, or ipc://PATH (default any ports of the host of --engine-handshake)")
	flags.StringVar(&opts.outputs[0], "trace-out", "", "cassette to write, required")
	flags.StringVar(&opts.outputs[1], "step-stats-out", "", "scheduler statistics to write, a line per engine step")
	flags.StringVar(&opts.outputs[2], "frames-out", "", "raw messages to write, prompts included, see --from-frames")
	flags.StringVar(&c.KVEvents, "kv-events", "", "where engine 0 publishes its KV events, tcp://HOST:PORT, with engine N at port PORT+N, to have them among the raw messages of --frames-out")
	flags.BoolVar(&opts.overwrite, "overwrite", false, "replace files that exist")
	flags.StringVar(&opts.fromFrames, "from-frames", "", "derive the cassette from this file of raw messages, instead of tapping")
	flags.BoolVar(&o.RecordTokens, "record-tokens", false, "write the ids of generated tokens, which tell the text; a golden needs them")
	flags.BoolVar(&o.RecordPrompts, "record-prompts", false, "write the ids of prompts, which tell the text")
	flags.BoolVar(&o.RecordAborted, "record-aborted", false, "also write requests that were aborted before their first token or by the engine (default false)")
	flags.IntVar(&o.BlockSize, "block-size", 0, "tokens per hashed prompt block (default 16)")
	flags.StringVar(&o.Model, "model", "", "name of the model, for the cassette")
	flags.StringVar(&o.GPU, "gpu", "", "kind of GPU, for the cassette and its configuration hash")
	flags.UintVar(&o.TP, "tp", 0, "tensor-parallel size, for the cassette")
	flags.UintVar(&o.MaxNumSeqs, "max-num-seqs", 0, "requests that the engine runs at once, for the cassette")
	flags.StringVar(&o.VLLMVersion, "vllm-version", "", "release tag of the engine, which must be of its line, for the configuration hash (default what the engine reports)")
	flags.StringVar(&o.EngineConfig, "engine-config", "", "the engine's flags as key=value;key=value, for the configuration hash")
	flags.StringVar(&o.ConfigHash, "config-hash", "", "configuration hash to write instead of the computed one")
	flags.DurationVar(&c.HandshakeTimeout, "handshake-timeout", 0, "how long to wait for the engine, and for each handshake (default 10m)")
	flags.Int64Var(&c.QueueLimit, "queue-limit", 0, "bytes that may wait to be recorded before messages are held up (default 4 MiB)")
	flags.Int64Var(&c.MaxObserved, "max-observed-bytes", 0, "messages above this size are passed on but not recorded (default 256 MiB)")
	flags.StringVar(&opts.until, "until", "", "finish the recording when this file comes up, and go on passing messages")
	flags.StringVar(&opts.metrics, "metrics-address", "", "serve Prometheus on this HOST:PORT, /metrics and /healthz")
	flags.StringVar(&opts.summaryJSON, "summary-json", "", "write the summary as JSON to this file")
}

func runRecord(ctx context.Context, env *environment, flags *pflag.FlagSet, opts recordOptions) error {
	if err := opts.check(flags); err != nil {
		return err
	}
	opts.cfg.Observe.Recorder = buildVersion()
	opts.cfg.Counts = new(recorder.Counts)
	run := runTap
	if opts.fromFrames != "" {
		opt, err := recorder.FrameOptions(opts.fromFrames)
		if err != nil {
			return err
		}
		opts.cfg.Observe = given(flags, opts.cfg.Observe, opt)
		run = runDerive
	}
	start := time.Now()
	summary, err := run(ctx, env, &opts)
	return finishRecord(env, opts, monitor.Report{
		Summary: summary, Duration: time.Since(start),
		Err: err, ExitCode: recordExitCode(err), Recorder: buildVersion(),
	})
}

// setDestinations sets where the outputs go.
func (opts *recordOptions) setDestinations(env *environment) {
	for i, to := range []*recorder.Destination{&opts.cfg.Trace, &opts.cfg.Steps, &opts.cfg.Frames} {
		*to = recorder.Destination{Path: opts.outputs[i], Overwrite: opts.overwrite}
		if strings.HasPrefix(to.Path, "s3://") {
			store := golden.Store{S3: s3store.Options{}, Log: env.log}
			to.Upload = func(ctx context.Context, path, file string) (string, error) {
				p, err := store.Publish(ctx, path, file)
				return p.Location, err
			}
		}
	}
}

// tapGCPercent is how much a tap's heap may grow before it is collected.
const tapGCPercent = 25

// runTap records what passes between frontend and engine.
func runTap(ctx context.Context, env *environment, opts *recordOptions) (recorder.Summary, error) {
	if _, given := env.lookupEnv("GOGC"); !given {
		// A tap makes little garbage, so memory is had for nearly no time.
		defer debug.SetGCPercent(debug.SetGCPercent(tapGCPercent))
	}
	stats := opts.cfg.Counts.Snapshot
	screen := env.screen()
	if screen != nil {
		env = env.above(screen)
	}
	opts.setDestinations(env)
	if opts.metrics != "" {
		server, err := monitor.Serve(opts.metrics, stats, env.log)
		if err != nil {
			return recorder.Summary{}, err
		}
		defer server.Close()
		env.log.Info("serving metrics", "address", server.Address())
	}
	showing, stop := context.WithCancel(context.WithoutCancel(ctx))
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		monitor.Progress{Stats: stats, Screen: screen, Log: env.log}.Run(showing)
	}()
	opts.cfg.Log = env.log
	if opts.until != "" {
		opts.cfg.Until, opts.cfg.Finished = fileComesUp(showing, opts.until, env.log), func(summary recorder.Summary, err error) { logFinished(env, summary, err) }
	}
	summary, err := recorder.Run(ctx, opts.cfg)
	stop()
	<-shown
	if err == nil && len(summary.Ranks) == 0 {
		err = errors.New("ended before an engine connected: nothing was recorded")
	}
	return summary, err
}

// untilLook is how often the file of --until is looked for.
const untilLook = 200 * time.Millisecond

// fileComesUp closes the channel when the file is there.
func fileComesUp(ctx context.Context, path string, log *slog.Logger) <-chan struct{} {
	there := make(chan struct{})
	go func() {
		complained := false
		for {
			_, err := os.Stat(path)
			if err == nil {
				close(there)
				return
			}
			if !complained && !errors.Is(err, fs.ErrNotExist) {
				log.Error("cannot look for the file of --until", "cause", err)
				complained = true
			}
			if retry.Pause(ctx, untilLook) != nil {
				return
			}
		}
	}()
	return there
}

// logFinished says that the recording has ended before the tap, and how.
func logFinished(env *environment, summary recorder.Summary, err error) {
	if err == nil && len(summary.Ranks) == 0 {
		err = errors.New("no engine has connected: nothing was recorded")
	}
	if err != nil {
		env.log.Error("the recording has ended and is not whole; messages are passed on", "cause", err)
		return
	}
	env.log.Info("the recording is whole; messages are passed on", "records", summary.Stats.Records)
}

// runDerive makes the cassette of messages that were recorded earlier.
func runDerive(ctx context.Context, env *environment, opts *recordOptions) (recorder.Summary, error) {
	opts.setDestinations(env)
	var summary recorder.Summary
	err := recorder.Derive(ctx, opts.fromFrames, opts.cfg.Observe, func(rank int) (recorder.Sinks, error) {
		sinks, files, err := openSinks(opts.cfg, rank)
		if err == nil {
			summary.Ranks = append(summary.Ranks, recorder.RankSummary{Rank: rank, Files: files})
		}
		return sinks, err
	}, opts.cfg.Counts, env.log)
	summary.Stats = opts.cfg.Counts.Snapshot()
	switch {
	case err == nil:
		return summary, nil
	case ctx.Err() != nil:
		err = fmt.Errorf("interrupted: %w", err)
	case len(summary.Ranks) == 0:
		// Nothing was begun: it is the command line that names the wrong files.
		err = exitError{conformance.ExitUsage, err}
	}
	summary.Ranks = nil // which of them are whole, the error says
	return summary, err
}

func openSinks(cfg recorder.Config, rank int) (sinks recorder.Sinks, files []string, err error) {
	for _, output := range []struct {
		file **recorder.File
		dest recorder.Destination
	}{{&sinks.Trace, cfg.Trace}, {&sinks.Steps, cfg.Steps}} {
		if output.dest.Path == "" {
			continue
		}
		output.dest.Path = recorder.RankPath(output.dest.Path, rank)
		if *output.file, err = recorder.Create(output.dest); err != nil {
			if sinks.Trace != nil {
				sinks.Trace.Abandon()
			}
			return recorder.Sinks{}, nil, err
		}
		files = append(files, output.dest.Path)
	}
	return sinks, files, nil
}

// given are the options of an earlier run, but for those that flags set.
func given(flags *pflag.FlagSet, now, earlier recorder.Options) recorder.Options {
	opt := earlier
	opt.Recorder = now.Recorder
	for name, take := range map[string]func(){
		"record-tokens":  func() { opt.RecordTokens = now.RecordTokens },
		"record-prompts": func() { opt.RecordPrompts = now.RecordPrompts },
		"record-aborted": func() { opt.RecordAborted = now.RecordAborted },
		"block-size":     func() { opt.BlockSize = now.BlockSize },
		"model":          func() { opt.Model = now.Model },
		"gpu":            func() { opt.GPU = now.GPU },
		"tp":             func() { opt.TP = now.TP },
		"max-num-seqs":   func() { opt.MaxNumSeqs = now.MaxNumSeqs },
		"vllm-version":   func() { opt.VLLMVersion = now.VLLMVersion },
		"engine-config":  func() { opt.EngineConfig = now.EngineConfig },
		"config-hash":    func() { opt.ConfigHash = now.ConfigHash },
	} {
		if flags.Changed(name) {
			take()
		}
	}
	return opt
}

// recordExitCode tells a wrong engine and a faulty input file from the rest.
func recordExitCode(err error) int {
	var coded exitError
	var line *recorder.LineError
	var input *trace.Error
	switch {
	case err == nil:
		return conformance.ExitOK
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &line):
		return conformance.ExitFail
	case errors.As(err, &input):
		return conformance.ExitUsage
	}
	return conformance.ExitInfra
}

func finishRecord(env *environment, opts recordOptions, r monitor.Report) error {
	var errs []error
	if len(r.Ranks) > 0 {
		errs = append(errs, monitor.Text(env.stdout, r))
	}
	if opts.summaryJSON != "" {
		errs = append(errs, writeFile(opts.summaryJSON, func(w io.Writer) error { return monitor.JSON(w, r) }))
	}
	if err := errors.Join(errs...); err != nil {
		return exitError{cmp.Or(r.ExitCode, conformance.ExitInfra), errors.Join(r.Err, fmt.Errorf("write summary: %w", err))}
	}
	if r.Err != nil {
		// Several engines may have an error each; the command has one line for them.
		return exitError{r.ExitCode, errors.New(strings.ReplaceAll(r.Err.Error(), "\n", "; "))}
	}
	return nil
}

// tapOptions are of no use to a recording that is derived.
var tapFlags = []string{
	"frontend-handshake", "engine-handshake", "data-address", "frames-out", "handshake-timeout", "queue-limit",
	"max-observed-bytes", "metrics-address", "until", "kv-events",
}

// outputFlags name the outputs of recordFlags.
var outputFlags = [3]string{"--trace-out", "--step-stats-out", "--frames-out"}

// check finds what is wrong with a command line before anybody connects.
func (opts *recordOptions) check(flags *pflag.FlagSet) error {
	if opts.outputs[0] == "" {
		return errors.New("--trace-out is missing: want a path or s3://bucket/key for the cassette")
	}
	if opts.fromFrames != "" {
		for _, name := range tapFlags {
			if flags.Changed(name) {
				return fmt.Errorf("--%s is for tapping, and --from-frames taps nothing: leave one of them out", name)
			}
		}
	}
	for _, limit := range []struct {
		flag  string
		value int64
	}{
		{"--handshake-timeout", int64(opts.cfg.HandshakeTimeout)},
		{"--queue-limit", opts.cfg.QueueLimit},
		{"--max-observed-bytes", opts.cfg.MaxObserved},
		{"--block-size", int64(opts.cfg.Observe.BlockSize)},
	} {
		if limit.value < 0 {
			return fmt.Errorf("%s %s: want more than 0", limit.flag, flags.Lookup(limit.flag[2:]).Value)
		}
	}
	version := opts.cfg.Observe.VLLMVersion
	if version != "" && !strings.HasPrefix(version, protocol.Nightly) && !lineName().MatchString(protocol.LineOf(version)) {
		return fmt.Errorf("--vllm-version %q: want a release such as v0.33.0, or nightly", version)
	}
	if err := opts.checkAddresses(); err != nil {
		return err
	}
	if err := opts.checkUntil(); err != nil {
		return err
	}
	return opts.checkOutputs()
}

// lineName is a line that engines can be compared with.
var lineName = lazyregexp.New(`^[0-9]+\.[0-9]+$`)

func (opts *recordOptions) checkAddresses() error {
	for _, address := range []struct{ flag, value string }{
		{"--frontend-handshake", opts.cfg.Frontend}, {"--engine-handshake", opts.cfg.Listen}, {"--data-address", opts.cfg.Data},
	} {
		if address.flag == "--data-address" && address.value == "" {
			continue
		}
		scheme, rest, _ := strings.Cut(address.value, "://")
		_, _, err := net.SplitHostPort(rest)
		if rest == "" || scheme != "ipc" && (scheme != "tcp" || err != nil) {
			return fmt.Errorf("%s %q: want tcp://HOST:PORT or ipc://PATH", address.flag, address.value)
		}
	}
	if opts.cfg.Frontend == opts.cfg.Listen {
		return fmt.Errorf("--frontend-handshake and --engine-handshake are both %s: the tap would dial itself", opts.cfg.Listen)
	}
	if to := opts.cfg.KVEvents; to != "" {
		_, port, err := net.SplitHostPort(strings.TrimPrefix(to, "tcp://"))
		if n, bad := strconv.ParseUint(port, 10, 16); !strings.HasPrefix(to, "tcp://") || err != nil || bad != nil || n == 0 {
			return fmt.Errorf("--kv-events %q: want tcp://HOST:PORT", to)
		}
		if opts.outputs[2] == "" {
			return errors.New("--kv-events is given, but no --frames-out to write them to")
		}
	}
	if opts.metrics != "" {
		if _, _, err := net.SplitHostPort(opts.metrics); err != nil {
			return fmt.Errorf("--metrics-address %q: want HOST:PORT", opts.metrics)
		}
	}
	return nil
}

// checkUntil refuses a file that would end the recording at once, or could never come up.
func (opts *recordOptions) checkUntil() error {
	if opts.until == "" {
		return nil
	}
	if _, err := os.Stat(opts.until); err == nil {
		return fmt.Errorf("--until %s: it is there already, so nothing would be recorded; remove it", opts.until)
	}
	if _, err := os.Stat(filepath.Dir(opts.until)); err != nil {
		return fmt.Errorf("--until %s: there is no folder for it to come up in: %w", opts.until, err)
	}
	return nil
}

// checkOutputs finds what is wrong with the outputs before anybody connects.
func (opts *recordOptions) checkOutputs() error {
	var places []string
	for i, name := range opts.outputs {
		place := name
		if !strings.Contains(name, "://") {
			place = filepath.Clean(name)
		}
		places = append(places, place)
		if name == "" {
			continue
		}
		if j := slices.Index(places, place); j < i {
			return fmt.Errorf("%s and %s are both %s", outputFlags[j], outputFlags[i], name)
		}
		if err := opts.checkOutput(name); err != nil {
			return fmt.Errorf("%s %s: %w", outputFlags[i], name, err)
		}
	}
	return nil
}

func (opts *recordOptions) checkOutput(name string) error {
	scheme, rest, remote := strings.Cut(name, "://")
	if remote {
		bucket, key, _ := strings.Cut(rest, "/")
		switch {
		case scheme != "s3":
			return fmt.Errorf("%s is not something to write to: want a path or s3://bucket/key", scheme)
		case bucket == "" || key == "" || strings.HasSuffix(key, "/"):
			return errors.New("want s3://bucket/key")
		case strings.Contains(path.Dir(rest), "{rank}"):
			return errors.New("{rank} may stand behind the last slash only")
		}
		return nil
	}
	name = recorder.RankPath(name, 0)
	if _, err := os.Stat(filepath.Dir(name)); err != nil {
		return fmt.Errorf("there is no folder to write it to: %w", err)
	}
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil
	case info.IsDir():
		return errors.New("it is a folder, want a file")
	case info.Mode().IsRegular() && !opts.overwrite:
		return errors.New("it exists already: move it away, or allow --overwrite")
	}
	return nil
}
