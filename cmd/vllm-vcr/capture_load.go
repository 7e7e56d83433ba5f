package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/recorder"
	"github.com/vllm-vcr/conformance/trace"
)

// loadOptions are the flags of capture load.
type loadOptions struct {
	cfg             load.Config
	report, records string
	serverTimeout   time.Duration

	// In a pod: the folder that is shared with the tap, how long somebody may take to fetch what is in it, and how long the
	// tap to finish its files.
	traceDir              string
	waitForFetch, tapTime time.Duration
}

func newCaptureLoadCommand(env *environment) *cobra.Command {
	var opts loadOptions
	cmd := &cobra.Command{
		Use:   "load URL",
		Short: "Send a workload to an OpenAI-compatible server",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.cfg.URL = strings.TrimSuffix(args[0], "/")
			return runCaptureLoad(cmd.Context(), env, opts)
		},
	}
	flags := cmd.Flags()
	words := texts(load.Workloads())
	oneOf(flags, (*string)(&opts.cfg.Workload), "workload", load.Multiturn, "`WORKLOAD` to send: "+strings.Join(words, ", "), load.Workloads()...)
	flags.Uint64Var(&opts.cfg.Seed, "seed", 7, "seed for the requests")
	flags.StringVar(&opts.cfg.Model, "model", "", "served model `NAME` of the server")
	flags.DurationVar(&opts.cfg.Idle, "idle-timeout", load.DefaultIdle, "maximum time without data from the server while a request runs")
	flags.DurationVar(&opts.serverTimeout, "server-timeout", 0, "maximum time to wait until the server is healthy (default 0: do not wait)")
	flags.StringVar(&opts.report, "report-json", "", "`FILE` to write the report to as JSON (default load.json in --trace-dir, else none)")
	flags.StringVar(&opts.records, "records", "", "`FILE` to write what the client received to, one JSON line for each request; compressed if the name ends in .gz (default requests.jsonl.gz in --trace-dir, else none)")
	grouped(flags, "Workload")
	for _, field := range load.ShapeFields() {
		flag := flags.VarPF(shapeFlag{&opts.cfg.Shape, field}, field.Flag(), "", field.Usage+usedBy(field))
		if field.Kind == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
	grouped(flags, "Shape of the workload")
	flags.StringVar(&opts.traceDir, "trace-dir", "", "`FOLDER` that the load generator of a pod shares with the recorder")
	flags.DurationVar(&opts.waitForFetch, "fetch-timeout", 2*time.Hour, "maximum time to wait until the files of --trace-dir are fetched")
	flags.DurationVar(&opts.tapTime, "tap-timeout", 5*time.Minute, "maximum time for the recorder to finish its files in --trace-dir")
	above0(flags, "idle-timeout", "fetch-timeout", "tap-timeout")
	least0(flags, "server-timeout")
	grouped(flags, "In a pod")
	return cmd
}

// usedBy names the workloads that a field of a shape is for, and what they take it for unless it is given.
func usedBy(field load.ShapeField) string {
	var users []string
	for _, w := range load.Workloads() {
		if !slices.Contains(load.ShapeKeys(w), field.Key) {
			continue
		}
		user := string(w)
		if fallback := load.UsualShape(w).Get(field.Key); fallback != "" {
			user += " (by default " + fallback + ")"
		}
		users = append(users, user)
	}
	return "; for " + strings.Join(users, ", ")
}

// shapeFlag is the flag of a field of a shape.
type shapeFlag struct {
	shape *load.Shape
	field load.ShapeField
}

func (f shapeFlag) Type() string           { return f.field.Kind }
func (f shapeFlag) Set(value string) error { return f.shape.Set(f.field.Key, value) }

func (f shapeFlag) String() string {
	if f.shape == nil { // pflag compares defaults with the zero value
		return ""
	}
	return f.shape.Get(f.field.Key)
}

func runCaptureLoad(ctx context.Context, env *environment, opts loadOptions) error {
	opts.cfg.Log = env.log
	opts.cfg.OpenTrace = openOnce(env)
	if err := opts.cfg.Check(); err != nil {
		return err
	}
	if opts.traceDir == "" {
		return infra(playLoad(ctx, env, opts))
	}
	return loadInPod(ctx, env, opts, load.Dir{Path: opts.traceDir})
}

// openOnce opens traces, and fetches each only the first time.
func openOnce(env *environment) func(name string) (*trace.Reader, error) {
	fetched := map[string]input{}
	return func(name string) (*trace.Reader, error) {
		in, known := fetched[name]
		if !known {
			var err error
			if in, err = inputAt(env, name); err != nil {
				return nil, err
			}
			fetched[name] = in
		}
		return in.trace(trace.Options{})
	}
}

// infra is an error of what is outside.
func infra(err error) error {
	if err == nil {
		return nil
	}
	return exitError{conformance.ExitInfra, err}
}

// playLoad plays the workload and writes what came of it, whatever that is.
func playLoad(ctx context.Context, env *environment, opts loadOptions) error {
	if opts.serverTimeout > 0 {
		env.log.Info("waiting for the server", "url", opts.cfg.URL)
		if err := load.Await(ctx, opts.cfg.URL, opts.serverTimeout); err != nil {
			return err
		}
	}
	write, closeRecords, err := openRecords(opts.records)
	if err != nil {
		return err
	}
	opts.cfg.Each = write
	report, err := load.Run(ctx, opts.cfg)
	if ctx.Err() != nil {
		err = errors.New("interrupted: the report covers the requests until then")
	}
	err = cmp.Or(err, closeRecords())
	if failed := report.Text(env.stdout); failed != nil {
		err = cmp.Or(err, fmt.Errorf("write report: %w", failed))
	}
	if opts.report != "" {
		if failed := atomicfile.WriteFunc(opts.report, 0o644, func(w io.Writer) error { return report.JSON(w) }); failed != nil {
			err = cmp.Or(err, fmt.Errorf("write report: %w", failed))
		}
	}
	return err
}

// openRecords opens the file of what the client sees. close gives it its name: of an interrupted load too, it has every request that has
// ended.
func openRecords(path string) (write func(load.Record) error, closeFile func() error, err error) {
	if path == "" {
		return func(load.Record) error { return nil }, func() error { return nil }, nil
	}
	file, err := recorder.Create(recorder.Destination{Path: path, Overwrite: true})
	if err != nil {
		return nil, nil, fmt.Errorf("write records: %w", err)
	}
	w := load.NewRecordWriter(file, trace.IsGzip(path))
	return w.Write, func() error {
		err := w.Close()
		if _, failed := file.Commit(context.Background()); cmp.Or(err, failed) != nil {
			return fmt.Errorf("write records: %w", cmp.Or(err, failed))
		}
		return nil
	}, nil
}

// loadInPod plays the workload next to a tap, and stays until its files are fetched.
func loadInPod(ctx context.Context, env *environment, opts loadOptions, dir load.Dir) error {
	if err := dir.Begin(); err != nil {
		return infra(err)
	}
	opts.report = cmp.Or(opts.report, filepath.Join(dir.Path, load.ReportFile))
	opts.records = cmp.Or(opts.records, filepath.Join(dir.Path, load.Requests))
	err := loadAndTap(ctx, env, opts, dir)
	if err != nil {
		// If that file cannot be written, the exit code is left.
		return infra(errors.Join(err, dir.Tell(load.FailedFile, err.Error()+"\n")))
	}
	env.printErr("phases done, waiting for fetch")
	err = dir.Wait(ctx, opts.waitForFetch, load.Fetched)
	var late *load.LateError
	if errors.As(err, &late) {
		err = fmt.Errorf("the files were not fetched within %v", late.Patience)
	} else if err != nil {
		err = fmt.Errorf("ended before the files were fetched: %w", err)
	}
	return infra(err)
}

// loadAndTap returns when both, load generator and tap, have their files in their places.
func loadAndTap(ctx context.Context, env *environment, opts loadOptions, dir load.Dir) error {
	if err := playLoad(ctx, env, opts); err != nil {
		return err
	}
	if err := dir.Tell(load.Done, ""); err != nil {
		return err
	}
	if err := dir.Wait(ctx, opts.tapTime, load.Trace, load.Steps, load.Frames); err != nil {
		return fmt.Errorf("the recorder did not finish its files: %w", err)
	}
	return dir.Tell(load.Ready, "")
}

// capturePodCommand has what is called inside a capture's pod: by its readiness probe, and by the process that fetches its files.
func newCapturePodCommand(env *environment) *cobra.Command {
	var dir load.Dir
	ready := &cobra.Command{
		Use:   "ready",
		Short: "Check whether all files are ready to be fetched",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return infra(dir.IsReady()) },
	}
	send := &cobra.Command{
		Use:   "send FILE",
		Short: "Write a file to stdout, after a line with its size and digest",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			err := dir.Send(env.stdout, args[0])
			if errors.Is(err, load.ErrUsage) {
				return err
			}
			return infra(err)
		},
	}
	release := &cobra.Command{
		Use:   "release",
		Short: "Let the pod end, because all files were fetched",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return infra(dir.Release()) },
	}
	for _, cmd := range []*cobra.Command{ready, send, release} {
		cmd.Flags().StringVar(&dir.Path, "dir", deploy.TraceDir, "`FOLDER` that load generator and recorder share")
	}
	return group(&cobra.Command{
		Use:    "pod",
		Short:  "Commands that run in the pod of a capture",
		Hidden: true,
	}, ready, send, release)
}
