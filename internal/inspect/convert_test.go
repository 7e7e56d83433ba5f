package inspect

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// TestResults: what the load generators themselves wrote of small runs against vllm-vcr serve (without what requests and answers said).
func TestResults(t *testing.T) {
	at := func(ms float64) *float64 { return &ms }
	tests := []struct {
		file     string
		format   Format
		model    string
		requests int
		first    trace.Record
		lacks    string
	}{
		{
			"vllm-bench-0.33.0.json", FormatVLLMBench, "tiny", 6,
			// The frontend ends a stream with an event without a token, which vllm bench counts as an output.
			trace.Record{
				PromptTokens: 30, OutputTokens: 6, TTFTMs: 24.906, ITLMs: []float64{26.758, 0.049, 3.042, 5.408, 4.559}, Concurrency: 2, ArrivalMs: at(0),
				FinishReason: trace.FinishAbsent,
			},
			"last gaps are put together",
		},
		{
			"guidellm-0.8.1.json", FormatGuideLLM, "tiny", 4,
			trace.Record{
				PromptTokens: 30, OutputTokens: 5, TTFTMs: 22.77, ITLSummary: &trace.ITLSummary{MeanMs: 8.772, Count: 4}, Concurrency: 2, ArrivalMs: at(0.766),
				FinishReason: trace.FinishAbsent,
			},
			"only their mean",
		},
		{
			"inference-perf-0.7.0.json", FormatInferencePerf, "", 4,
			trace.Record{
				PromptTokens: 48, OutputTokens: 9, TTFTMs: 83.56, ITLMs: []float64{2.739, 35.038, 0.008, 0.006, 2.054, 3.025, 16.048, 0.031}, Concurrency: 1, ArrivalMs: at(0),
				FinishReason: trace.FinishAbsent,
			},
			"prefix cache",
		},
	}
	for _, test := range tests {
		t.Run(test.file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", "results", test.file))
			require.NoError(t, err)
			in, records := opened(t, test.file, text, "")
			if model := trace.Or(in.Meta.Model, ""); in.Format != test.format || model != test.model || len(records) != test.requests || len(in.Skipped()) > 0 {
				t.Errorf("%s of %q with %d requests, left out %q", in.Format, model, len(records), in.Skipped())
			}
			require.Contains(t, strings.Join(in.Lacks, "\n"), test.lacks)
			require.NoDiff(t, cmp.Diff(test.first, records[0]), "first record (-want +got)")
		})
	}
}

// opened are the records of a file.
func opened(t *testing.T, name string, text []byte, format Format) (*Input, []trace.Record) {
	t.Helper()
	in, err := OpenInput(name, bytes.NewReader(text), format, nil)
	require.NoError(t, err)
	var records []trace.Record
	require.NoError(t, in.Each(func(r *trace.Record) error {
		records = append(records, *r)
		return r.Validate()
	}))
	return in, records
}

// TestFinite: what Python writes for numbers that JSON has not is nothing, but for what is in texts.
func TestFinite(t *testing.T) {
	tests := []struct{ text, want string }{
		{`{"a":NaN,"b":[Infinity,-Infinity,-1]}`, `{"a":null,"b":[null,null,-1]}`},
		{`{"NaN":"a \"NaN\" \\","b":NaN}`, `{"NaN":"a \"NaN\" \\","b":null}`},
		{`{"a":1}`, `{"a":1}`},
		{`"NaN`, `"NaN`},
	}
	for _, test := range tests {
		require.Equal(t, string(finite([]byte(test.text))), test.want, "%s became", test.text)
	}
}

// TestFormats: a format is known by the beginning of a file.
func TestFormats(t *testing.T) {
	tests := []struct {
		text string
		want Format
	}{
		{`{"meta":{"model":"x"}}`, FormatTrace},
		{`{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1}`, FormatTrace},
		{"\ufeff{\"timestamp\": 0, \"input_length\": 6758}", FormatMooncake},
		{`{"metadata":{"version":1},"args":{"target":"x"},"benchmarks":[{"a":` + strings.Repeat("1", 1000), FormatGuideLLM},
		{`{"date":"x","endpoint_type":"vllm","input_lens":[1,`, FormatVLLMBench},
		{` [ {"start_time"`, FormatInferencePerf},
		{"Timestamp,Model,Request tokens,Response tokens\n", FormatBurstGPT},
		{"\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n", FormatAzure},
		{`{"hello":"world"}`, ""},
		{`{`, ""},
		{``, ""},
	}
	for _, test := range tests {
		require.Equal(t, formatOf([]byte(test.text)), test.want, "%.60q", test.text)
	}
}

// FuzzOpen: no input makes the reader panic, and what it reads are valid records or an error.
func FuzzOpen(f *testing.F) {
	names, err := filepath.Glob("testdata/results/*")
	require.NoError(f, err)
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte("Timestamp,Request tokens,Response tokens\n1,2,3\n1,\n"))
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,1,1\n"))
	f.Add([]byte(`{"timestamp":0,"input_length":-5,"output_length":3,"hash_ids":[1]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		in, err := OpenInput("f", bytes.NewReader(text), "", nil)
		if err != nil {
			return
		}
		spans := NewSpanWriter(new(bytes.Buffer), SpanOptions{})
		_ = in.Each(func(r *trace.Record) error {
			if err := r.Validate(); err != nil {
				return err
			}
			if planned, err := LoadPlan(r); err == nil {
				require.NoError(t, planned.Validate())
			}
			_ = spans.Write(r)
			return nil
		})
		require.NoError(t, spans.Close())
	})
}
