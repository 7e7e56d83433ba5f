package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/trace"
	"github.com/vllm-vcr/conformance/player"
)

// playFlags are the flags of play.
type playFlags struct {
	opt          player.Options
	replayTokens string
	match, pace  string
	vocab        uint32
}

func (a *app) playCommand() *cobra.Command {
	var f playFlags
	cmd := &cobra.Command{
		Use:   "play",
		Short: "Be the engine core of a vLLM line: replay a recording behind a frontend",
		Long: "Dial a vLLM frontend's handshake address, register as an engine of the chosen line, and answer its\n" +
			"requests with recorded tokens in recorded chunks, or with seeded random tokens. Start the frontend\n" +
			"with --data-parallel-size-local 0, so that it waits for an engine instead of starting one.\n\n" +
			"Ends on SIGINT or SIGTERM, or when the frontend goes away.",
		Example: "  vllm-rs serve MODEL --data-parallel-size 1 --data-parallel-size-local 0 \\\n" +
			"      --data-parallel-address 127.0.0.1 --data-parallel-rpc-port 29550 --port 8000 &\n" +
			"  vllm-vcr play --handshake-address tcp://127.0.0.1:29550 --replay-tokens trace.jsonl.gz",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.play(cmd.Context(), f) },
	}
	f.addFlags(cmd.Flags())
	return cmd
}

func (f *playFlags) addFlags(flags *pflag.FlagSet) {
	o := &f.opt
	flags.StringVar(&o.Handshake, "handshake-address", "tcp://127.0.0.1:29550", "where the frontend listens for engines")
	flags.StringVar(&o.VLLMVersion, "vllm-version", "auto", "release or line to be, nightly, or auto: the recording's, else the newest")
	flags.StringVar(&f.replayTokens, "replay-tokens", "", "trace whose recorded tokens are served (.gz is inflated)")
	flags.StringVar(&f.match, "replay-match", string(player.MatchIndex), "how a request finds its record: index (the N of request id replay-N) or prefix (its prompt)")
	flags.BoolVar(&o.Strict, "strict", false, "end a request that no record answers with an error, instead of random tokens")
	flags.StringVar(&f.pace, "pace", string(player.PaceInstant), "when outputs leave: instant, or recorded (as long after the request as in the recording)")
	flags.Uint64Var(&o.Seed, "seed", 0, "seed of random tokens")
	flags.Uint32Var(&f.vocab, "vocab-size", 0, "random ids are drawn below this (default 32000)")
	flags.IntVar(&o.EngineIndex, "engine-index", 0, "index of the engine in its group, and its socket identity")
	flags.IntVar(&o.MaxModelLen, "max-model-len", 0, "context length in tokens to register (default the recording's, else 1048576)")
	flags.IntVar(&o.MaxNumSeqs, "max-num-seqs", 0, "requests that run at once (default the recording's, else 128)")
	flags.IntVar(&o.MaxNumBatchedTokens, "max-num-batched-tokens", 0, "token budget of a step to register (default the recording's, else 2048)")
	flags.IntVar(&o.BlockSize, "block-size", 0, "tokens per KV block to register (default the recording's, else 16)")
	flags.IntVar(&o.NumGPUBlocks, "num-gpu-blocks", 0, "KV blocks to register (default the recording's, else 8192)")
	flags.StringVar(&o.ParallelConfigHash, "parallel-config-hash", "", "hash to say READY with, for a Python frontend of a MoE model")
	flags.DurationVar(&o.HandshakeTimeout, "handshake-timeout", 0, "how long to wait for the frontend (default 5m)")
}

// options are the player's options but for the trace and the log.
func (f *playFlags) options() (opt player.Options, err error) {
	opt = f.opt
	opt.Vocab = f.vocab
	if opt.Match, err = chooseOne("--replay-match", player.Match(f.match), player.MatchIndex, player.MatchPrefix); err != nil {
		return opt, err
	}
	if opt.Pace, err = chooseOne("--pace", player.Pace(f.pace), player.PaceInstant, player.PaceRecorded); err != nil {
		return opt, err
	}
	if opt.EngineIndex < 0 || opt.EngineIndex > math.MaxUint16 {
		return opt, fmt.Errorf("--engine-index %d: want 0 to %d, it is an identity of two bytes", opt.EngineIndex, math.MaxUint16)
	}
	if !strings.HasPrefix(opt.Handshake, "tcp://") && !strings.HasPrefix(opt.Handshake, "ipc://") {
		return opt, fmt.Errorf("--handshake-address %q: want tcp://HOST:PORT or ipc://PATH", opt.Handshake)
	}
	if opt.VLLMVersion == "auto" {
		opt.VLLMVersion = ""
	}
	return opt, nil
}

func (a *app) play(ctx context.Context, f playFlags) error {
	opt, err := f.options()
	if err != nil {
		return err
	}
	opt.Log = a.log
	if f.replayTokens != "" {
		t, err := trace.Read(f.replayTokens, trace.Options{})
		if err != nil {
			return err
		}
		for _, warning := range t.Warnings {
			a.log.Warn(warning)
		}
		opt.Trace = t
	}
	p, err := player.New(opt)
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-p.Ready():
			fmt.Fprintf(a.stderr, "vllm-vcr: playing line %s behind %s\n", p.Line(), opt.Handshake)
		case <-ctx.Done():
		}
	}()
	err = p.Run(ctx)
	if errors.Is(err, player.ErrFrontendGone) {
		a.log.Warn("the frontend went away, so the player ends", "error", err)
		return nil
	}
	if err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	return nil
}
