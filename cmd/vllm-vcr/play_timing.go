package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// timingOptions say how long the player's steps take.
type timingOptions struct {
	pace   string
	traces []string
	knobs  latency.Knobs
	scale  float64
}

const paceAuto = "auto"

func (opts *timingOptions) add(flags *pflag.FlagSet) {
	k := &opts.knobs
	flags.StringVar(&opts.pace, "pace", paceAuto, "when outputs leave: instant, recorded (as long after the request as in the recording), modelled\n"+
		"(as --latency-trace or the times below say), or auto: modelled if there is a model, else instant")
	flags.StringArrayVar(&opts.traces, "latency-trace", nil, "trace that the times of steps are learned from, with --max-num-batched-tokens as in its engine; may be repeated")
	durations := []struct {
		value *time.Duration
		name  string
		usage string
	}{
		{&k.TimeToFirstToken, "time-to-first-token", "mean time that the computation of a prompt takes, such as 150ms"},
		{&k.TimeToFirstTokenStdDev, "time-to-first-token-std-dev", "standard deviation of that"},
		{&k.InterTokenLatency, "inter-token-latency", "mean time of a step with decodes"},
		{&k.InterTokenLatencyStdDev, "inter-token-latency-std-dev", "standard deviation of that"},
		{&k.PrefillOverhead, "prefill-overhead", "time that each prompt takes, in place of --time-to-first-token"},
		{&k.PrefillPerToken, "prefill-time-per-token", "time that each token of a prompt takes that was not cached"},
		{&k.PrefillStdDev, "prefill-time-std-dev", "standard deviation of these two together"},
		{&k.TransferLatency, "kv-cache-transfer-latency", "mean time that the KV cache of a prompt takes to arrive from another engine"},
		{&k.TransferLatencyStdDev, "kv-cache-transfer-latency-std-dev", "standard deviation of that"},
		{&k.TransferPerToken, "kv-cache-transfer-time-per-token", "time that each token of such a prompt takes, in place of --kv-cache-transfer-latency"},
		{&k.TransferStdDev, "kv-cache-transfer-time-std-dev", "standard deviation of that"},
	}
	for _, d := range durations {
		flags.DurationVar(d.value, d.name, 0, d.usage)
	}
	flags.Float64Var(&opts.scale, "time-scale", 1, "all recorded and modelled times are divided by this: 100 plays an hour in 36 seconds")
	flags.Float64Var(&k.LoadFactor, "time-factor-under-load", 1, "what these times are multiplied by with --max-num-seqs requests running; with one it is 1")
}

// model puts pace and model into the options. Each engine of a group has a model of its own.
func (opts *timingOptions) model(opt *player.Options, configHash string) (func() (latency.Model, error), error) {
	pace, err := chooseOne("--pace", player.Pace(opts.pace), paceAuto, player.PaceInstant, player.PaceRecorded, player.PaceModelled)
	if err != nil {
		return nil, err
	}
	if !(opts.scale > 0) || math.IsInf(opts.scale, 0) {
		return nil, fmt.Errorf("--time-scale %v: want a number above 0", opts.scale)
	}
	opt.Timing.Scale = opts.scale
	if err := opts.knobs.Validate(); err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	modelled := len(opts.traces) > 0 || opts.knobs != latency.Knobs{LoadFactor: opts.knobs.LoadFactor}
	switch {
	case pace == paceAuto && modelled:
		pace = player.PaceModelled
	case pace == paceAuto:
		pace = player.PaceInstant
	case pace == player.PaceModelled && !modelled:
		return nil, errors.New("--pace modelled: say how long steps take, by --latency-trace or by times such as --time-to-first-token")
	case pace != player.PaceModelled && modelled:
		return nil, fmt.Errorf("--pace %s: the times of --latency-trace and its like count at --pace modelled only", pace)
	case pace == player.PaceRecorded && opt.Trace == nil:
		return nil, errors.New("--pace recorded: there is no recording; give --replay-tokens")
	}
	opt.Timing.Pace = pace
	if pace != player.PaceModelled {
		return func() (latency.Model, error) { return nil, nil }, nil
	}
	if len(opts.traces) == 0 {
		return func() (latency.Model, error) { knobs := opts.knobs; return &knobs, nil }, nil
	}
	traces := make([]*trace.Trace, len(opts.traces))
	for i, path := range opts.traces {
		if traces[i], err = readTrace(path, configHash); err != nil {
			return nil, err
		}
		for _, warning := range traces[i].Warnings {
			opt.Log.Warn(warning)
		}
	}
	fit := latency.FitOptions{Budget: opt.Limits.MaxNumBatchedTokens, Knobs: opts.knobs}
	return func() (latency.Model, error) { return latency.NewFit(fit, traces...) }, nil
}
