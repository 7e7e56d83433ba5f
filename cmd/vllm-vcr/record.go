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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
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
	outputs     [3]string // trace, step statistics, frames
	overwrite   bool
	fromFrames  string
	metrics     string
	summaryJSON string
	until       string
	judge       bool
	addresses   [2][]string // of the frontend, and for the engine, if there is no handshake
}

func newRecordCommand(env *environment) *cobra.Command {
	var opts recordOptions
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Record frontend-engine traffic transparently",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runRecord(cmd.Context(), env, cmd.Flags(), opts) },
	}
	opts.addFlags(cmd.Flags())
	return cmd
}

func (opts *recordOptions) addFlags(flags *pflag.FlagSet) {
	c, o := &opts.cfg, &opts.cfg.Observe
	flags.StringVar(&c.Frontend, "frontend-handshake", "tcp://127.0.0.1:29550", "handshake `ADDRESS` of the frontend, tcp://HOST:PORT or ipc://PATH")
	flags.StringVar(&c.Listen, "engine-handshake", "tcp://127.0.0.1:5580", "`ADDRESS` where record waits for the handshake of the engine, tcp://HOST:PORT or ipc://PATH")
	flags.StringVar(&c.Data, "data-address", "", "`ADDRESS` where record waits for the messages of the engine: tcp://HOST:0, tcp://HOST:PORT for this port and the next ones, or ipc://PATH (default free ports on the host of --engine-handshake)")
	flags.StringSliceVar(&opts.addresses[0], "frontend-addresses", nil, "`INPUT,OUTPUT`: instead of a handshake, the addresses where the frontend waits for one engine (vllm-rs frontend --input-address --output-address)")
	flags.StringSliceVar(&opts.addresses[1], "engine-addresses", nil, "`INPUT,OUTPUT`: addresses to give to the engine in their place, where record waits for it")
	needs(flags, "frontend-addresses", "engine-addresses")
	needs(flags, "engine-addresses", "frontend-addresses")
	for _, name := range []string{"frontend-handshake", "engine-handshake", "data-address"} {
		exclusive(flags, "frontend-addresses", name)
	}
	flags.DurationVar(&c.HandshakeTimeout, "handshake-timeout", 0, "maximum time to wait for the engine, and to complete each handshake (default 10m)")
	flags.StringVar(&c.KVEvents, "kv-events", "", "`ADDRESS` where engine 0 publishes its KV events, tcp://HOST:PORT; engine N uses PORT+N; they are written to --frames-out (default not recorded)")
	grouped(flags, "Connections")
	flags.StringVar(&opts.outputs[0], "trace-out", "", "trace `FILE` to write, a path or s3://BUCKET/KEY; required without --judge")
	flags.StringVar(&opts.outputs[1], "step-stats-out", "", "`FILE` to write the scheduler statistics to, one line for each engine step (default none)")
	flags.StringVar(&opts.outputs[2], "frames-out", "", "`FILE` to write all raw messages to, prompts included, for --from-frames (default none)")
	flags.StringVar(&opts.summaryJSON, "summary-json", "", "`FILE` to write the summary to as JSON (default none)")
	flags.BoolVar(&opts.overwrite, "overwrite", false, "replace files that exist")
	flags.StringVar(&opts.fromFrames, "from-frames", "", "make the trace from this `FILE` of raw messages, and record nothing")
	grouped(flags, "Files")
	flags.BoolVar(&o.RecordTokens, "record-tokens", false, "write the ids of output tokens, which reveal the text; goldens need them")
	flags.BoolVar(&o.RecordPrompts, "record-prompts", false, "write the ids of prompt tokens, which reveal the text")
	flags.BoolVar(&o.RecordAborted, "record-aborted", false, "also write requests that were aborted before their first token, or by the engine")
	flags.IntVar(&o.BlockSize, "block-size", 0, "prompt tokens in a block; the trace has a hash of each block (default 16)")
	flags.Int64Var(&c.QueueLimit, "queue-limit", 0, "number of `BYTES` that may wait to be recorded; above it, messages are delayed (default 4 MiB)")
	flags.Int64Var(&c.MaxObserved, "max-observed-bytes", 0, "maximum size of a recorded message in `BYTES`; a larger one is forwarded but not recorded (default 256 MiB)")
	flags.BoolVar(&opts.judge, "judge", false, "check every message as conform --frames does, and print the first failure of each kind with the bytes; the exit code is 1 if there is one; --trace-out may be absent")
	flags.StringVar(&opts.until, "until", "", "end the recording, but not the forwarding, when this `FILE` appears and no request is running")
	grouped(flags, "What is recorded")
	flags.StringVar(&o.VLLMVersion, "vllm-version", "", "vLLM `VERSION` of the engine, such as v0.33.0; an engine of another line is an error (default what the engine reports)")
	flags.StringVar(&o.Model, "model", "", "`NAME` of the model, written to the trace")
	flags.StringVar(&o.GPU, "gpu", "", "`NAME` of the GPU type, cpu for none; written to the trace and part of its config_hash")
	flags.UintVar(&o.TP, "tensor-parallel-size", 0, "number of GPUs of an engine, written to the trace (default not written)")
	flags.UintVar(&o.MaxNumSeqs, "max-num-seqs", 0, "maximum number of requests that the engine runs at the same time, written to the trace (default not written)")
	flags.StringVar(&o.EngineConfig, "engine-config", "", "flags of the engine as `KEY=VALUE;KEY=VALUE`, part of the config_hash")
	flags.StringVar(&o.ConfigHash, "config-hash", "", "`HASH` to write as config_hash (default computed from the flags above)")
	grouped(flags, "About the engine")
	flags.StringVar(&opts.metrics, "metrics-address", "", "serve Prometheus metrics and /healthz at this `HOST:PORT` (default not served)")
	grouped(flags, "Progress")
	least0(flags, "handshake-timeout", "queue-limit", "max-observed-bytes", "block-size")
	needs(flags, "kv-events", "frames-out")
	for _, name := range []string{ // of a connection
		"frontend-handshake", "engine-handshake", "data-address", "frames-out", "handshake-timeout", "queue-limit",
		"max-observed-bytes", "metrics-address", "until", "judge", "kv-events", "frontend-addresses",
	} {
		exclusive(flags, "from-frames", name)
	}
	common(flags, "frontend-handshake", "engine-handshake", "handshake-timeout", "trace-out", "frames-out", "overwrite", "from-frames", "record-tokens",
		"record-prompts", "vllm-version", "model", "gpu", "engine-config", "metrics-address")
}

func runRecord(ctx context.Context, env *environment, flags *pflag.FlagSet, opts recordOptions) error {
	if err := opts.check(); err != nil {
		return err
	}
	start := time.Now()
	opts.cfg.Observe.CapturedAt = start.UTC().Format(time.RFC3339)
	opts.cfg.Counts = new(recorder.Counts)
	run := runTap
	if opts.fromFrames != "" {
		opt, err := recorder.FrameOptions(opts.fromFrames)
		if err != nil {
			return err
		}
		opts.cfg.Observe = given(flags, opt)
		run = runDerive
	}
	var judge *replay.SessionJudge
	if opts.judge {
		judge = &replay.SessionJudge{Found: func(rank int, f check.Failure, m *trace.Message) { printJudged(env, rank, f, m) }}
		opts.cfg.Observe.Message = judge.Message
	}
	opts.cfg.Observe.Recorder, opts.cfg.Observe.VLLMVersion = buildVersion(), tagOf(opts.cfg.Observe.VLLMVersion)
	summary, err := run(ctx, env, &opts)
	if err == nil && judge != nil {
		err = judgedError(env, judge)
	}
	return finishRecord(env, opts, monitor.Report{
		Summary: summary, Duration: time.Since(start),
		Err: err, ExitCode: recordExitCode(err), Recorder: buildVersion(),
	})
}

// maxJudgedBytes is how many bytes of each frame of a message that fails are printed.
const maxJudgedBytes = 256

// printJudged prints a failure of a message that passes, and the message.
func printJudged(env *environment, rank int, f check.Failure, m *trace.Message) {
	env.printErr(fmt.Sprintf("engine %d: %s %s", rank, f.Code, f.Message))
	for i, frame := range m.Frames {
		more := ""
		if n := len(frame) - maxJudgedBytes; n > 0 {
			more = fmt.Sprintf(" and %d bytes more", n)
		}
		env.printErr(fmt.Sprintf("  %s of client %d, frame %d: %x%s", m.Channel, m.Client, i, frame[:min(len(frame), maxJudgedBytes)], more))
	}
}

// judgedError prints what was judged, and is an error if something failed.
func judgedError(env *environment, judge *replay.SessionJudge) error {
	messages, kinds, unknown := judge.Judged()
	switch {
	case kinds+unknown > 0:
		return exitError{conformance.ExitFail, fmt.Errorf("--judge: %s checked, %s, %s of unknown lines",
			safetext.Count(messages, "message"), safetext.Count(kinds, "different failure"), safetext.Count(unknown, "engine"))}
	case messages == 0:
		return exitError{conformance.ExitVacuous, errors.New("--judge: no message was checked")}
	}
	env.printErr(fmt.Sprintf("--judge: %s checked, no failure", safetext.Count(messages, "message")))
	return nil
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
	defer env.growHeap(tapGCPercent, 0)() // a tap makes little garbage, so a small heap takes hardly any time
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
		err = errors.New("record ended before an engine connected: nothing was recorded")
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
				log.Error("cannot check for the file of --until", "cause", err)
				complained = true
			}
			if retry.Pause(ctx, untilLook) != nil {
				return
			}
		}
	}()
	return there
}

// logFinished logs that the recording has ended before the tap, and how.
func logFinished(env *environment, summary recorder.Summary, err error) {
	if err == nil && len(summary.Ranks) == 0 {
		err = errors.New("no engine has connected: nothing was recorded")
	}
	if err != nil {
		env.log.Error("the recording has ended and is incomplete; messages are still forwarded", "cause", err)
		return
	}
	env.log.Info("the recording is complete; messages are still forwarded", "records", summary.Stats.Records)
}

// runDerive makes the trace of messages that were recorded earlier.
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
	summary.Ranks = nil // the error names those that are whole
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
func given(flags *pflag.FlagSet, earlier recorder.Options) recorder.Options {
	var opts recordOptions
	again := pflag.NewFlagSet("", pflag.ContinueOnError)
	opts.addFlags(again)
	opts.cfg.Observe = earlier
	flags.Visit(func(f *pflag.Flag) {
		_ = again.Set(f.Name, f.Value.String()) // it has been read; a flag of every command is not here
	})
	return opts.cfg.Observe
}

// recordExitCode distinguishes a wrong engine and a faulty input file from other errors.
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
		errs = append(errs, atomicfile.WriteFunc(opts.summaryJSON, 0o644, func(w io.Writer) error { return monitor.JSON(w, r) }))
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

// outputFlags name the outputs of recordFlags.
var outputFlags = [3]string{"--trace-out", "--step-stats-out", "--frames-out"}

// check finds what is wrong with a command line before anybody connects.
func (opts *recordOptions) check() error {
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
	if opts.outputs[0] == "" && (!opts.judge || opts.fromFrames != "") {
		return errors.New("--trace-out is required: give a file, or check messages without recording them with --judge")
	}
	return opts.checkOutputs()
}

// lineName is a line that engines can be compared with.
var lineName = lazyregexp.New(`^[0-9]+\.[0-9]+$`)

func (opts *recordOptions) checkAddresses() error {
	all := []struct{ flag, value string }{
		{"--frontend-handshake", opts.cfg.Frontend}, {"--engine-handshake", opts.cfg.Listen}, {"--data-address", opts.cfg.Data},
	}
	for i, flag := range []string{"--frontend-addresses", "--engine-addresses"} {
		given := opts.addresses[i]
		if len(given) == 0 {
			continue
		}
		if len(given) != 2 {
			return fmt.Errorf("%s %q: want two addresses, INPUT,OUTPUT", flag, strings.Join(given, ","))
		}
		all = append(all, struct{ flag, value string }{flag, given[0]}, struct{ flag, value string }{flag, given[1]})
		*[]*[2]string{&opts.cfg.FrontendAddresses, &opts.cfg.EngineAddresses}[i] = [2]string(given)
	}
	for _, address := range all {
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
		return fmt.Errorf("--frontend-handshake and --engine-handshake are both %s: record would connect to itself", opts.cfg.Listen)
	}
	if to := opts.cfg.KVEvents; to != "" {
		_, port, err := net.SplitHostPort(strings.TrimPrefix(to, "tcp://"))
		if n, bad := strconv.ParseUint(port, 10, 16); !strings.HasPrefix(to, "tcp://") || err != nil || bad != nil || n == 0 {
			return fmt.Errorf("--kv-events %q: want tcp://HOST:PORT", to)
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
		return fmt.Errorf("--until %s: the file exists already, so nothing would be recorded: remove it first", opts.until)
	}
	if _, err := os.Stat(filepath.Dir(opts.until)); err != nil {
		return fmt.Errorf("--until %s: its folder does not exist: %w", opts.until, err)
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
		_, key, err := golden.BucketAndKey(rest)
		switch {
		case scheme != "s3":
			return fmt.Errorf("cannot write to %s: want a path or s3://BUCKET/KEY", scheme)
		case err != nil || strings.HasSuffix(key, "/"):
			return errors.New("want s3://BUCKET/KEY")
		case strings.Contains(path.Dir(rest), "{rank}"):
			return errors.New("{rank} is only allowed after the last slash")
		}
		return nil
	}
	name = recorder.RankPath(name, 0)
	if _, err := os.Stat(filepath.Dir(name)); err != nil {
		return fmt.Errorf("its folder does not exist: %w", err)
	}
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil
	case info.IsDir():
		return errors.New("it is a folder: want a file")
	case info.Mode().IsRegular() && !opts.overwrite:
		return errors.New("the file exists already: move it, or give --overwrite")
	}
	return nil
}
