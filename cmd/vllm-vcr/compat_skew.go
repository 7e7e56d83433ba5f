package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/engine/nixl/pairs"
	"github.com/vllm-vcr/conformance/internal/upstream/acceptance"
	"github.com/vllm-vcr/conformance/internal/upstream/skew"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// The engines that compat skew --measure puts behind each frontend.
const (
	playedEngines = "player"
	realEngines   = "real"
)

// skewOptions are the flags of compat skew.
type skewOptions struct {
	in               inputs
	frontend, engine string
	format, output   string
	measure, check   bool
	prefill, python  bool
	engines          string
	lines            []string
	install          engineOptions
	cache            string
	jobs             int
}

func newCompatSkewCommand(env *environment) *cobra.Command {
	var opts skewOptions
	cmd := &cobra.Command{
		Use:   "skew",
		Short: "Show which frontends of vLLM work with engines of other lines",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return fmt.Errorf("lines are flags: --frontend %s --engine %s", args[0], args[1])
			}
			return cobra.NoArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return runCompatSkew(cmd.Context(), env, opts) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.frontend, "frontend", "", "`LINE` of the frontend; with --engine, the exit code is 0 only if the two work together")
	flags.StringVar(&opts.engine, "engine", "", "`LINE` of the engine")
	flags.BoolVar(&opts.python, "python", false, "the Python client of the frontend's line instead of vllm-rs; with --measure, --frontend must name the line, whose engine for CPUs is installed")
	formatFlag(flags, &opts.format, formText, "output format: text, json, markdown or html", formText, formJSON, formMarkdown, "html")
	flags.StringVarP(&opts.output, "output", "o", "", outputUsage)
	flags.BoolVar(&opts.prefill, "prefill", false, "show which prefill lines work with which decode lines instead (NixlConnector); text, or json with --format")
	grouped(flags, "Question")
	flags.BoolVar(&opts.measure, "measure", false, "measure the pairs with released frontends instead of showing the table of this build")
	flags.BoolVar(&opts.check, "check", false, "with --measure, compare with the table of this build; exit code 1 if a verdict differs")
	oneOf(flags, &opts.engines, "engines", playedEngines, "with --measure, the engines: player, or real (released engines for CPUs, which are installed: up to 6 GB each)", playedEngines, realEngines)
	flags.StringSliceVar(&opts.lines, "engine-line", nil, "with --measure, only engines of this `LINE`; repeatable (default all lines of compat.toml)")
	flags.IntVar(&opts.jobs, "jobs", defaultAcceptJobs, "number of pairs that are measured at the same time")
	above0(flags, "jobs")
	opts.install.addFlags(flags)
	flags.StringVar(&opts.cache, "cache-dir", "", "`FOLDER` for the model of the frontends (default vllm-vcr in the user's cache directory)")
	exclusive(flags, "prefill", "measure")
	exclusive(flags, "prefill", "frontend")
	exclusive(flags, "prefill", "engine")
	exclusive(flags, "prefill", "python")
	grouped(flags, "Measurement")
	opts.in.addFlags(flags)
	return cmd
}

func runCompatSkew(ctx context.Context, env *environment, opts skewOptions) error {
	if !opts.measure && (opts.check || opts.engines == realEngines || len(opts.lines) > 0) {
		return fmt.Errorf("--check, --engines and --engine-line need --measure")
	}
	if opts.prefill {
		return writePairs(env, opts)
	}
	if opts.python && opts.measure && opts.frontend == "" {
		return fmt.Errorf("--python with --measure needs --frontend LINE: each line takes up to 6 GB")
	}
	var table *skew.Table
	var err error
	if opts.measure {
		table, err = measureSkew(ctx, env, opts)
	} else {
		table, err = opts.narrow(skew.Measured())
	}
	if err != nil {
		return err
	}
	if opts.check {
		if differences := skew.Measured().Difference(table); len(differences) > 0 {
			return exitError{conformance.ExitFail, fmt.Errorf("%d of %d pairs differ from the table of this build:\n%s", len(differences), len(table.Cells), strings.Join(differences, "\n"))}
		}
	}
	err = writeResult(env, opts.output, func(w io.Writer) error {
		switch {
		case opts.format == formJSON:
			return jsonout.Write(w, table)
		case opts.format == formMarkdown:
			return table.Markdown(w)
		case opts.format == "html":
			return table.HTML(w)
		case len(table.Cells) == 1:
			_, err := fmt.Fprintln(w, table.Cells[0])
			return err
		}
		return table.Text(w)
	})
	if err != nil {
		return infra(err)
	}
	if opts.frontend != "" && opts.engine != "" && table.Cells[0].Verdict != skew.Works {
		return exitError{conformance.ExitFail, errReported}
	}
	return nil
}

// writePairs prints a line for each prefill and decode line.
func writePairs(env *environment, opts skewOptions) error {
	table, err := pairs.Table()
	if err != nil {
		return infra(err)
	}
	if opts.format != formText && opts.format != formJSON {
		return fmt.Errorf("--prefill: --format %s: want %s or %s", opts.format, formText, formJSON)
	}
	err = writeResult(env, opts.output, func(w io.Writer) error {
		if opts.format == formJSON {
			return jsonout.Write(w, table)
		}
		for _, p := range table {
			if _, err := fmt.Fprintln(w, p); err != nil {
				return err
			}
		}
		return nil
	})
	return infra(err)
}

// narrow keeps the pairs of the lines that were given.
func (opts skewOptions) narrow(all *skew.Table) (*skew.Table, error) {
	narrowed := *all
	narrowed.Cells = nil
	for _, c := range all.Cells {
		if (opts.frontend == "" && !opts.python || opts.is(c.Frontend)) && (opts.engine == "" || protocol.LineOf(opts.engine) == c.Engine) {
			narrowed.Cells = append(narrowed.Cells, c)
		}
	}
	if len(narrowed.Cells) == 0 {
		return nil, fmt.Errorf("the table of this build has no pair of frontend %q and engine %q: it has %s", opts.frontend, opts.engine, strings.Join(all.Lines(), ", "))
	}
	return &narrowed, nil
}

// is tells whether a frontend of the table is asked for.
func (opts skewOptions) is(frontend string) bool {
	line, python := strings.CutSuffix(frontend, skew.Python)
	return python == opts.python && (opts.frontend == "" || protocol.LineOf(opts.frontend) == line)
}

// measureSkew measures the pairs of the lines.
func measureSkew(ctx context.Context, env *environment, opts skewOptions) (*skew.Table, error) {
	matrix, _, err := loadInputs(env, &opts.in)
	if err != nil {
		return nil, err
	}
	model, err := acceptanceModel(opts.cache)
	if err != nil {
		return nil, infra(fmt.Errorf("model directory: %w", err))
	}
	steps := openSteps(env)
	defer steps.close()
	table := &skew.Table{Schema: skew.Schema}
	m := skew.Measurement{Model: model, Jobs: opts.jobs, Log: env.log, Progress: func(done, of int) {
		if done*10/of > (done-1)*10/of {
			steps.show("skew", fmt.Sprintf("%d of %d pairs", done, of))
		}
	}}
	for _, line := range matrix.Lines {
		version, err := compat.ParseVersion(line.Tag)
		if err != nil || compat.IsTracker(line.Name) {
			continue
		}
		release := version.String()
		if opts.frontend == "" || protocol.LineOf(opts.frontend) == line.Name {
			frontend := skew.Frontend{Line: line.Name}
			if opts.python {
				installed, err := opts.install.ensure(ctx, steps, release)
				if err != nil {
					return nil, infra(err)
				}
				var stop func()
				frontend.Binary = installed.Python
				if frontend.Before, stop, err = acceptance.StartPython(ctx, installed.Python, model); err != nil {
					return nil, infra(err)
				}
				defer stop()
			} else {
				installed, err := local.EnsureFrontend(ctx, opts.install.options(steps, "frontend "+release, release))
				if err != nil {
					return nil, infra(err)
				}
				frontend.Binary = installed.VLLMRS
			}
			m.Frontends = append(m.Frontends, frontend)
			table.Frontends = append(table.Frontends, release)
		}
		if opts.engine != "" && protocol.LineOf(opts.engine) != line.Name || len(opts.lines) > 0 && !slices.ContainsFunc(opts.lines, func(l string) bool { return protocol.LineOf(l) == line.Name }) {
			continue
		}
		engine := skew.Engine{Line: line.Name, Version: release}
		if opts.engines == realEngines {
			installed, err := opts.install.ensure(ctx, steps, release)
			if err != nil {
				return nil, infra(err)
			}
			start, stop, err := acceptance.StartEngine(ctx, installed.Python, model)
			if err != nil {
				return nil, infra(err)
			}
			defer stop()
			engine.Start = start
		}
		m.Engines, table.Engines = append(m.Engines, engine), append(table.Engines, release)
	}
	if len(m.Frontends) == 0 || len(m.Engines) == 0 {
		return nil, fmt.Errorf("compat.toml has no such line: it has %s", strings.Join(skew.Measured().Lines(), ", "))
	}
	if table.Cells, err = m.Make(ctx); err != nil {
		return nil, infra(err)
	}
	if opts.engine == "" && opts.python || opts.frontend == "" && (opts.engines == realEngines || len(opts.lines) > 0) {
		table = skew.Measured().Merge(table.Cells) // a part was measured: it is written with the rest
	}
	return table, nil
}
