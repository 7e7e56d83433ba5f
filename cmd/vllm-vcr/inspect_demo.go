package main

import (
	"encoding/hex"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/inspect"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

func newInspectDemoCommand(env *environment) *cobra.Command {
	var opt inspect.DemoOptions
	var out string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Write a synthetic trace, to try the other commands",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			t, err := inspect.Demo(opt)
			if err != nil {
				return fmt.Errorf("--requests: %w", err)
			}
			if err := markAsPlayed(&t.Meta); err != nil {
				return err
			}
			if err := writeTrace(out, t); err != nil {
				return infra(err)
			}
			_, err = fmt.Fprintf(env.stdout, "%s: %d requests of a synthetic trace, seed %d\n", safetext.Line(out), len(t.Records), opt.Seed)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&out, "output", "o", "", "trace `FILE` to write, .jsonl or .jsonl.gz; required")
	required(flags, "output")
	flags.Uint64Var(&opt.Seed, "seed", 0, "seed for lengths and times (default 0)")
	flags.IntVar(&opt.Requests, "requests", inspect.DefaultDemoRequests, fmt.Sprintf("number of requests, at most %d", inspect.MaxDemoRequests))
	return cmd
}

// markAsPlayed gives a trace the registration of our own player, by which golden add knows that it is not of a released engine.
func markAsPlayed(meta *trace.Meta) error {
	codec, err := protocol.CodecFor(protocol.Newest())
	if err != nil {
		return err
	}
	ready := protocol.DefaultReady(codec.Profile().Version)
	ready.InstanceID = protocol.PlayerInstance + inspect.DemoSource
	ready.BlockSize, ready.MaxNumSeqs = *meta.BlockSize, int(*meta.MaxNumSeqs)
	raw := hex.EncodeToString(codec.AppendPlayerReady(nil, &ready))
	meta.ReadyResponseHex, meta.VLLMVersion = &raw, &ready.VLLMVersion
	return nil
}

// writeTrace writes a whole trace, gzipped if the name says so.
func writeTrace(path string, t *trace.Trace) error {
	return atomicfile.WriteFunc(path, 0o644, func(w io.Writer) error {
		tw, err := trace.NewWriter(w, trace.IsGzip(path), t.Meta)
		if err != nil {
			return err
		}
		for i := range t.Records {
			if err := tw.Gather(&t.Records[i]); err != nil {
				return err
			}
		}
		return tw.Close()
	})
}
