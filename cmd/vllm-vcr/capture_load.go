package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/capture/load/pod"
	"github.com/vllm-vcr/conformance/recorder"
	"github.com/vllm-vcr/conformance/trace"
)

// captureFlags are the flags of capture load.
type captureFlags struct {
	cfg                       load.Config
	workload, report, records string
	serverTimeout             time.Duration

	// In a pod: the folder that is shared with the tap, how long somebody may take to fetch what is in it, and how long the
	// tap to finish its files.
	traceDir              string
	waitForFetch, tapTime time.Duration
}

func (a *app) captureLoadCommand() *cobra.Command {
	var f captureFlags
	cmd := &cobra.Command{
		Use:   "load URL",
		Short: "Play a workload against an OpenAI-compatible server",
		Long: "Ask a server all that a workload has, and count the answers. The seed decides what is asked.\n\n" +
			"multiturn has 30 conversations of 6 turns, 8 at a time, half of them greedy and half sampled; with lengths\n" +
			"given, all greedy and as long as that. edge has one request of each kind: every sampling\n" +
			"parameter, logprobs, structured output, several choices, clients that hang up, calls that act on the engine.\n" +
			"What an older line does not know it may refuse with a status 4xx, which is reported; anything else that goes\n" +
			"without a whole answer ends the workload with exit code 3.\n\n" +
			"concurrency keeps a number of requests in flight, stairs one number after another, bursts sends many at once\n" +
			"and again after a while, and arrivals repeats the load of a cassette: its times, its lengths, and the\n" +
			"prefixes that its prompts share. All of these are greedy, ask for exactly so many tokens, and fail if the\n" +
			"server counts others.\n\n" +
			"With --images, prompts are chats about small images, half of which come again in other prompts. How many\n" +
			"tokens these are is up to the model.\n\n" +
			"Each request has an id, load-000017, that a tap finds in the engine's id of it. With --trace-dir this is the\n" +
			"load generator of a pod: it tells the tap by the file load-done that all is answered, waits for the tap's\n" +
			"files, and then for somebody to fetch them.",
		Example: "  vllm-vcr capture load http://127.0.0.1:8000 --model tiny --workload multiturn --seed 7\n" +
			"  vllm-vcr capture load http://127.0.0.1:8000 --model tiny --workload stairs --stairs 1,4,16 --records requests.jsonl.gz",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.cfg.URL = strings.TrimSuffix(args[0], "/")
			return a.captureLoad(cmd.Context(), f)
		},
	}
	f.addFlags(cmd.Flags())
	return cmd
}

func (f *captureFlags) addFlags(flags *pflag.FlagSet) {
	var names []string
	for _, w := range load.Workloads() {
		names = append(names, string(w))
	}
	flags.StringVar(&f.workload, "workload", string(load.Multiturn), "what to play: "+strings.Join(names, ", "))
	flags.Uint64Var(&f.cfg.Seed, "seed", 7, "seed of all that is asked")
	flags.StringVar(&f.cfg.Model, "model", "", "name that the server knows the model by")
	flags.DurationVar(&f.cfg.Idle, "idle-timeout", load.DefaultIdle, "longest silence of the server within a request")
	flags.DurationVar(&f.serverTimeout, "server-timeout", 0, "how long to wait for the server to be healthy (default not at all)")
	flags.StringVar(&f.report, "report", "", "write the report as JSON to this file (default load.json in --trace-dir)")
	flags.StringVar(&f.records, "records", "", "write what the client saw of each request to this file, a line of JSON each, gzipped if it ends in .gz (default requests.jsonl.gz in --trace-dir)")
	flags.StringVar(&f.traceDir, "trace-dir", "", "folder that is shared with the tap of a pod")
	flags.DurationVar(&f.waitForFetch, "wait-for-fetch", 2*time.Hour, "how long to wait in --trace-dir for somebody to fetch what is there")
	flags.DurationVar(&f.tapTime, "tap-timeout", 5*time.Minute, "how long the tap may take to finish its files in --trace-dir")
	for _, field := range load.ShapeFields() {
		flag := flags.VarPF(shapeFlag{&f.cfg.Shape, field}, field.Flag(), "", field.Usage+usedBy(field))
		if field.Kind == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
}

// usedBy names the workloads that a field of a shape is for, and what they take it for unless it is given.
func usedBy(field load.ShapeField) string {
	var users []string
	for _, w := range load.Workloads() {
		if !slices.Contains(load.ShapeKeys(w), field.Key) {
			continue
		}
		user := string(w)
		if usual := load.UsualShape(w).Get(field.Key); usual != "" {
			user += " " + usual
		}
		users = append(users, user)
	}
	return " (" + strings.Join(users, "; ") + ")"
}

// shapeFlag is the flag of a field of a shape.
type shapeFlag struct {
	shape *load.Shape
	field load.ShapeField
}

func (f shapeFlag) Type() string           { return f.field.Kind }
func (f shapeFlag) Set(value string) error { return f.shape.Set(f.field.Key, value) }

func (f shapeFlag) String() string {
	if f.shape == nil { // the zero value, by which pflag tells defaults
		return ""
	}
	return f.shape.Get(f.field.Key)
}

// check finds what is wrong with a command line before anything is sent or written.
func (f *captureFlags) check() (err error) {
	if f.cfg.Workload, err = chooseOne("--workload", load.Workload(f.workload), load.Workloads()...); err != nil {
		return err
	}
	for _, limit := range []struct {
		flag  string
		value time.Duration
	}{{"--idle-timeout", f.cfg.Idle}, {"--wait-for-fetch", f.waitForFetch}, {"--tap-timeout", f.tapTime}} {
		if limit.value <= 0 {
			return fmt.Errorf("%s %v: want more than 0", limit.flag, limit.value)
		}
	}
	if f.serverTimeout < 0 {
		return fmt.Errorf("--server-timeout %v: want 0 or more", f.serverTimeout)
	}
	return f.cfg.Check()
}

func (a *app) captureLoad(ctx context.Context, f captureFlags) error {
	f.cfg.Log = a.log
	if err := f.check(); err != nil {
		return err
	}
	if f.traceDir == "" {
		return infra(a.playLoad(ctx, f))
	}
	return a.loadInPod(ctx, f, pod.Dir{Path: f.traceDir})
}

// infra is an error of what is outside.
func infra(err error) error {
	if err == nil {
		return nil
	}
	return exitError{conformance.ExitInfra, err}
}

// playLoad plays the workload and writes what came of it, whatever that is.
func (a *app) playLoad(ctx context.Context, f captureFlags) error {
	if f.serverTimeout > 0 {
		a.log.Info("waiting for the server", "url", f.cfg.URL)
		if err := load.Await(ctx, f.cfg.URL, f.serverTimeout); err != nil {
			return err
		}
	}
	records, err := openRecords(f.records)
	if err != nil {
		return err
	}
	f.cfg.Each = records.write
	report, err := load.Run(ctx, f.cfg)
	if ctx.Err() != nil {
		err = errors.New("interrupted: the report covers what was asked until then")
	}
	if failed := records.close(); failed != nil {
		err = cmp.Or(err, failed)
	}
	if failed := report.Text(a.stdout); failed != nil {
		err = cmp.Or(err, fmt.Errorf("write report: %w", failed))
	}
	if f.report != "" {
		if failed := writeFile(f.report, func(w io.Writer) error { return report.JSON(w) }); failed != nil {
			err = cmp.Or(err, fmt.Errorf("write report: %w", failed))
		}
	}
	return err
}

// recordsFile is the file of what the client saw; nil if none is wanted.
type recordsFile struct {
	file *recorder.File
	w    *load.RecordWriter
}

func openRecords(path string) (*recordsFile, error) {
	if path == "" {
		return nil, nil
	}
	file, err := recorder.Create(recorder.Destination{Path: path, Overwrite: true})
	if err != nil {
		return nil, fmt.Errorf("write records: %w", err)
	}
	return &recordsFile{file, load.NewRecordWriter(file, trace.IsGzip(path))}, nil
}

func (r *recordsFile) write(rec load.Record) error {
	if r == nil {
		return nil
	}
	return r.w.Write(rec)
}

// close gives the file its name. Of an interrupted load too, it has every request that has ended.
func (r *recordsFile) close() error {
	if r == nil {
		return nil
	}
	err := r.w.Close()
	if _, failed := r.file.Commit(context.Background()); err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("write records: %w", err)
	}
	return nil
}
