package main

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/recorder"
	"github.com/vllm-vcr/conformance/trace"
)

// TestGiven: each flag that is given, and no other, replaces the earlier run's.
func TestGiven(t *testing.T) {
	values := map[string]string{
		"record-tokens": "false", "record-prompts": "false", "record-aborted": "false", "block-size": "32", "model": "new", "gpu": "new",
		"tensor-parallel-size": "2", "max-num-seqs": "2", "vllm-version": "v0.2.0", "engine-config": "new", "config-hash": "new",
	}
	earlier := recorder.Options{
		RecordTokens: true, RecordPrompts: true, RecordAborted: true, BlockSize: 16, Model: "old", GPU: "old",
		TP: 1, MaxNumSeqs: 1, VLLMVersion: "v0.1.0", EngineConfig: "old", ConfigHash: "old", Recorder: "old",
	}
	parse := func(t *testing.T, names ...string) recorder.Options {
		var opts recordOptions
		flags := pflag.NewFlagSet("record", pflag.ContinueOnError)
		opts.addFlags(flags)
		for _, name := range names {
			require.NoError(t, flags.Set(name, values[name]))
		}
		opts.cfg.Observe.Recorder = "new"
		return given(flags, opts.cfg.Observe, earlier)
	}
	none := earlier
	none.Recorder = "new"
	require.NoDiff(t, cmp.Diff(none, parse(t)), "without flags, -want +got")
	for name := range values {
		if got := parse(t, name); changes(got, none) != 1 {
			t.Errorf("--%s changes %d options:\n%s", name, changes(got, none), cmp.Diff(none, got))
		}
	}
	all := make([]string, 0, len(values))
	for name := range values {
		all = append(all, name)
	}
	want := recorder.Options{
		BlockSize: 32, Model: "new", GPU: "new", TP: 2, MaxNumSeqs: 2, VLLMVersion: "v0.2.0", EngineConfig: "new", ConfigHash: "new", Recorder: "new",
	}
	require.NoDiff(t, cmp.Diff(want, parse(t, all...)), "-want +got")
}

// changes counts the options that differ.
func changes(a, b recorder.Options) int {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	n := 0
	for i := range va.NumField() {
		if !va.Field(i).Equal(vb.Field(i)) {
			n++
		}
	}
	return n
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
		if got := recordExitCode(test.err); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}
