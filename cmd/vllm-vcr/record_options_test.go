package main

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/recorder"
	"github.com/vllm-vcr/conformance/trace"
)

// TestGiven: a flag that is given, and no other, replaces the option of the earlier run.
func TestGiven(t *testing.T) {
	earlier := recorder.Options{RecordTokens: true, BlockSize: 16, Model: "old", GPU: "old", MaxNumSeqs: 1, VLLMVersion: "v0.1.0", Recorder: "old"}
	parse := func(args ...string) recorder.Options {
		var opts recordOptions
		flags := pflag.NewFlagSet("record", pflag.ContinueOnError)
		opts.addFlags(flags)
		require.NoError(t, flags.Parse(args))
		return given(flags, earlier)
	}
	require.NoDiff(t, cmp.Diff(earlier, parse()), "without flags, -want +got")
	want := earlier
	want.RecordTokens, want.Model, want.MaxNumSeqs = false, "new", 2
	require.NoDiff(t, cmp.Diff(want, parse("--record-tokens=false", "--model=new", "--max-num-seqs=2")), "-want +got")
}

func TestRecordExitCode(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want int
	}{
		{"recorded", nil, conformance.ExitOK},
		{"other line", fmt.Errorf("engine 0: %w", errors.Join(io.EOF, &recorder.LineError{Want: "v0.33.0", Got: "0.32.0"})), conformance.ExitFail},
		{"faulty input", fmt.Errorf("%w; what was derived", &trace.Error{Line: 3}), conformance.ExitUsage},
		{"nothing begun", exitError{conformance.ExitUsage, io.EOF}, conformance.ExitUsage},
		{"anything else", io.ErrUnexpectedEOF, conformance.ExitInfra},
	} {
		require.Equal(t, recordExitCode(test.err), test.want, "%s", test.name)
	}
}
