package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/engine/dataset"
	"github.com/vllm-vcr/conformance/internal/inspect"
	"github.com/vllm-vcr/conformance/trace"
)

// convertOptions are the flags of inspect convert.
type convertOptions struct {
	in, out string
	from    inspect.Format
	to      string
	model   string
	gpu     string
	start   string
	limit   int
	columns string
	steps   string
}

// What inspect convert writes.
const (
	toTrace = "trace"
	toPlan  = "load-plan"
	toOTLP  = "otlp"
	toTable = "parquet"
)

const fromAuto inspect.Format = "auto"

func newInspectConvertCommand(env *environment) *cobra.Command {
	var opts convertOptions
	cmd := &cobra.Command{
		Use:   "convert INPUT",
		Short: "Convert results of load generators and public traces to traces, and traces to other forms",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.in = args[0]
			return runInspectConvert(cmd.Context(), env, opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.out, "output", "o", "", "`FILE` to write; compressed if the name ends in .gz; required")
	oneOf(flags, (*string)(&opts.from), "from", fromAuto, "`FORMAT` of INPUT: auto (by its first bytes), trace, vllm-bench, guidellm, inference-perf, requests (a table in CSV or JSON lines), mooncake, burstgpt or azure",
		append([]inspect.Format{fromAuto}, inspect.Formats()...)...)
	oneOf(flags, &opts.to, "to", toTrace, "`FORMAT` to write: trace, load-plan, otlp, or parquet (into the folder --output)", toTrace, toPlan, toOTLP, toTable)
	flags.StringVar(&opts.steps, "step-stats", "", "`FILE` that record --step-stats-out wrote with the trace, to write as parquet too (default none)")
	flags.StringVar(&opts.columns, "columns", "", "columns of requests, as a `LIST` of VALUE=COLUMN: see inspect calibrate (default usual names)")
	flags.IntVar(&opts.limit, "requests", 0, "convert only so many requests, the first ones of INPUT (default all)")
	flags.StringVar(&opts.model, "model", "", "`NAME` of the model to write into the trace (default that of INPUT)")
	flags.StringVar(&opts.gpu, "gpu", "", "`NAME` of the GPU type to write into the trace (default that of INPUT)")
	flags.StringVar(&opts.start, "start", "", "`TIME` of the first span of otlp, such as 2026-01-31T12:00:00Z; a trace has no date (default now)")
	required(flags, "output")
	least0(flags, "requests")
	return cmd
}

// errEnough ends the reading after as many requests as were wanted.
var errEnough = errors.New("enough")

func runInspectConvert(ctx context.Context, env *environment, opts convertOptions) error {
	to := opts.to
	if opts.steps != "" && to != toTable {
		return errors.New("--step-stats needs --to parquet")
	}
	start, err := env.now(), error(nil)
	if opts.start != "" {
		if start, err = time.Parse(time.RFC3339, opts.start); err != nil {
			return fmt.Errorf("--start %q: want a time such as 2026-01-31T12:00:00Z", opts.start)
		}
	}
	var columns inspect.Columns
	if opts.columns != "" {
		if columns, err = inspect.ParseColumns(opts.columns); err != nil {
			return fmt.Errorf("--columns: %w", err)
		}
	}
	_, r, closeInput, err := openBytes(env, opts.in)
	if err != nil {
		return err
	}
	defer closeInput()
	in, err := inspect.OpenInput(safetext.Line(opts.in), r, inspect.Format(strings.TrimPrefix(string(opts.from), string(fromAuto))), columns)
	if err != nil {
		return err
	}
	if in.Format == inspect.FormatTrace && to == toTrace {
		return fmt.Errorf("%s is a trace already: want --to %s or --to %s", opts.in, toPlan, toOTLP)
	}
	for _, given := range []struct {
		value string
		to    **string
	}{{opts.model, &in.Meta.Model}, {opts.gpu, &in.Meta.GPU}} {
		if given.value != "" {
			*given.to = &given.value
		}
	}
	writeTo := func(write func(io.Writer) error) error { return atomicfile.WriteFunc(opts.out, 0o644, write) }
	if to == toTable {
		if writeTo, err = opts.parquet(ctx, "requests"); err != nil {
			return err
		}
		to = toTrace
	}
	written := 0
	var wrong error
	err = writeTo(func(w io.Writer) error {
		write, finish, err := converter(w, opts.to != toTable && trace.IsGzip(opts.out), to, in.Meta, start)
		if err != nil {
			return err
		}
		err = in.Each(func(r *trace.Record) error {
			if err := write(r); err != nil {
				return err
			}
			if written++; written == opts.limit {
				return errEnough
			}
			return nil
		})
		switch {
		case errors.Is(err, errEnough):
		case err != nil:
			wrong = err
			return err
		case written == 0:
			wrong = fmt.Errorf("%s: it has no requests: nothing to convert", opts.in)
			return wrong
		}
		return finish()
	})
	var full *trace.WriteError
	switch {
	case err == nil:
	case wrong != nil && errors.Is(err, wrong) && !errors.As(err, &full):
		return err
	default:
		return infra(err)
	}
	fmt.Fprintf(env.stdout, "%s: %d requests from %s, as %s\n", safetext.Line(opts.out), written, in.Format, opts.to)
	if opts.steps != "" {
		if err := opts.convertSteps(ctx, env); err != nil {
			return err
		}
	}
	for _, line := range in.Skipped() {
		fmt.Fprintf(env.stdout, "left out: %s\n", safetext.Line(line))
	}
	for _, line := range in.Lacks {
		fmt.Fprintf(env.stdout, "lacks: %s\n", safetext.Line(line))
	}
	return nil
}

// parquet is what writes a table of INPUT into a partition of its own, by the program that knows Parquet.
func (opts *convertOptions) parquet(ctx context.Context, kind string) (func(write func(io.Writer) error) error, error) {
	program, err := process.FindHelper(ctx, dataset.Program, "tables in Parquet need", buildVersion())
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(filepath.Base(opts.in), ".gz")
	name = strings.TrimSuffix(name, filepath.Ext(name))
	path := filepath.Join(opts.out, kind, "trace="+url.PathEscape(name), "part-0.parquet")
	if _, err := os.Stat(path); err == nil {
		return nil, fmt.Errorf("%s: it is there already: remove it, or give another --output", safetext.Line(path))
	}
	return func(write func(io.Writer) error) error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return dataset.WriteParquetBy(ctx, program, kind, path, write)
	}, nil
}

// convertSteps writes --step-stats next to the requests.
func (opts *convertOptions) convertSteps(ctx context.Context, env *environment) error {
	_, r, closeInput, err := openBytes(env, opts.steps)
	if err != nil {
		return err
	}
	defer closeInput()
	writeTo, err := opts.parquet(ctx, "steps")
	if err != nil {
		return err
	}
	return writeTo(func(w io.Writer) error {
		_, err := io.Copy(w, r)
		return err
	})
}

// openBytes opens an input, and unpacks it if it is gzipped.
func openBytes(env *environment, name string) (in input, r io.Reader, closeInput func(), err error) {
	if in, err = inputAt(env, name); err != nil {
		return in, nil, nil, err
	}
	r, closeInput = bytes.NewReader(in.data), func() {}
	if in.file {
		file, err := os.Open(in.name)
		if err != nil {
			return in, nil, nil, err
		}
		r, closeInput = file, func() { file.Close() }
		env.reads(in.name, func() (read, size int64) { return trace.FilePosition(file) })
	}
	packed := bufio.NewReader(r)
	if head, _ := packed.Peek(2); !isGzipped(head) {
		return in, packed, closeInput, nil
	}
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		closeInput()
		return in, nil, nil, fmt.Errorf("%s: %w", in.name, err)
	}
	return in, &bounded{r: unpacked, left: maxInflated}, closeInput, nil
}

// bounded is a reader that ends with an error after so many bytes.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("it inflates to more than %d bytes: unpack it with gunzip and name the result", int64(maxInflated))
	}
	return n, err
}

// converter writes records in a form. finish writes what is left.
func converter(w io.Writer, packed bool, to string, meta trace.Meta, start time.Time) (write func(*trace.Record) error, finish func() error, err error) {
	if to == toOTLP {
		var z *gzip.Writer
		if packed {
			z = gzip.NewWriter(w)
			w = z
		}
		spans := inspect.NewSpanWriter(w, inspect.SpanOptions{Start: start, Meta: meta})
		return spans.Write, func() error {
			if err := spans.Close(); err != nil || z == nil {
				return err
			}
			return z.Close()
		}, nil
	}
	if to == toPlan {
		meta = inspect.LoadPlanMeta(meta)
	}
	tw, err := trace.NewWriter(w, packed, meta)
	if err != nil {
		return nil, nil, err
	}
	write = tw.Gather
	if to == toPlan {
		write = func(r *trace.Record) error {
			planned, err := inspect.LoadPlan(r)
			if err != nil {
				return err
			}
			return tw.Gather(planned)
		}
	}
	return write, tw.Close, nil
}
