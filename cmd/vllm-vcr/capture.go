package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/load"
)

// captureFlags are the flags of capture load.
type captureFlags struct {
	cfg              load.Config
	workload, report string
}

func (a *app) captureCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "capture",
		Short: "Make the traffic that goldens are recorded of",
	}, a.captureLoadCommand())
}

func (a *app) captureLoadCommand() *cobra.Command {
	f := captureFlags{cfg: load.Config{}}
	cmd := &cobra.Command{
		Use:   "load URL",
		Short: "Play a workload against an OpenAI-compatible server",
		Long: "Ask a server all that a workload has, and count the answers. The seed decides what is asked.\n\n" +
			"multiturn has 30 conversations of 6 turns, 8 at a time, half of them greedy and half sampled. edge has one\n" +
			"request of each kind: every sampling parameter, logprobs, structured output, several choices, clients that\n" +
			"hang up, calls that act on the engine. What an older line does not know it may refuse with a status 4xx,\n" +
			"which is reported; anything else that goes without a whole answer ends the workload with exit code 3.",
		Example: "  vllm-vcr capture load http://127.0.0.1:8000 --model tiny --workload multiturn --seed 7",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.cfg.URL = args[0]
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
	flags.StringVar(&f.report, "report", "", "write the report as JSON to this file")
}

func (a *app) captureLoad(ctx context.Context, f captureFlags) error {
	cfg := f.cfg
	cfg.Log = a.log
	var err error
	if cfg.Workload, err = chooseOne("--workload", load.Workload(f.workload), load.Workloads()...); err != nil {
		return err
	}
	if cfg.Idle <= 0 {
		return fmt.Errorf("--idle-timeout %v: want more than 0", cfg.Idle)
	}
	if err := cfg.Check(); err != nil {
		return err
	}
	report, err := load.Run(ctx, cfg)
	if ctx.Err() != nil {
		err = errors.New("interrupted: the report covers what was asked until then")
	}
	if failed := report.Text(a.stdout); failed != nil {
		err = cmp.Or(err, fmt.Errorf("write report: %w", failed))
	}
	if f.report != "" {
		if failed := writeFile(f.report, func(w io.Writer) error { return report.JSON(w) }); failed != nil {
			err = cmp.Or(err, fmt.Errorf("write report: %w", failed))
		}
	}
	if err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	return nil
}
