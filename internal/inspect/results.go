package inspect

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/vllm-vcr/conformance/trace"
)

// vllmBench reads what vllm bench serve writes with --save-result and --save-detailed (vllm/benchmarks/serve.py). Times are in
// seconds.
func (in *Input) vllmBench(data []byte) ([]trace.Record, error) {
	var result struct {
		Model          string      `json:"model_id"`
		MaxConcurrency *uint64     `json:"max_concurrency"`
		InputLens      []int       `json:"input_lens"`
		OutputLens     []int       `json:"output_lens"`
		TTFTs          []*float64  `json:"ttfts"`
		ITLs           [][]float64 `json:"itls"`
		StartTimes     []float64   `json:"start_times"`
		Errors         []string    `json:"errors"`
	}
	if err := decode(data, &result); err != nil {
		return nil, err
	}
	n := len(result.InputLens)
	if n == 0 || result.TTFTs == nil {
		return nil, errors.New("it has no input_lens and ttfts: run vllm bench serve with --save-result and --save-detailed")
	}
	for _, list := range []struct {
		name   string
		length int
		may    bool // be missing
	}{
		{"output_lens", len(result.OutputLens), false},
		{"ttfts", len(result.TTFTs), false},
		{"itls", len(result.ITLs), false},
		{"start_times", len(result.StartTimes), true},
		{"errors", len(result.Errors), true},
	} {
		if list.length != n && (list.length > 0 || !list.may) {
			return nil, fmt.Errorf("%s has %d entries, and input_lens %d: want one for each request", list.name, list.length, n)
		}
	}
	if result.Model != "" {
		in.Meta.Model = &result.Model
	}
	in.Lacks = []string{"which part of a prompt was in the prefix cache", "token ids, hashes of prompts, and which request continues another", "the reason why an answer ended"}
	if len(result.StartTimes) == 0 {
		in.lack("when requests came (start_times, which older releases do not write): timeline, calibrate and play cannot use it")
	}
	var records []trace.Record
	for i := range n {
		switch {
		case len(result.Errors) > 0 && result.Errors[i] != "":
			in.skip("failed")
			continue
		case result.OutputLens[i] < 1 || result.TTFTs[i] == nil:
			in.skip("without an answer")
			continue
		}
		r := trace.Record{
			PromptTokens: result.InputLens[i], OutputTokens: result.OutputLens[i], TTFTMs: ofSeconds(*result.TTFTs[i]), FinishReason: trace.FinishAbsent,
		}
		if len(result.StartTimes) > 0 {
			at := ofSeconds(result.StartTimes[i])
			r.ArrivalMs = &at
		}
		if result.MaxConcurrency != nil {
			r.Concurrency = *result.MaxConcurrency
		}
		gaps := make([]float64, len(result.ITLs[i]))
		for k, s := range result.ITLs[i] {
			gaps[k] = ofSeconds(s)
		}
		in.setGaps(&r, gaps)
		records = append(records, r)
	}
	return records, nil
}

// A guideRequest is one request of a report of guidellm (guidellm/schemas/request_stats.py). Times are in seconds, but for what
// is named otherwise.
type guideRequest struct {
	PromptTokens *int     `json:"prompt_tokens"`
	OutputTokens *int     `json:"output_tokens"`
	TTFT         *float64 `json:"time_to_first_token_ms"`
	ITL          *float64 `json:"inter_token_latency_ms"`
	Cached       *int     `json:"cached_tokens"`
	Start        *float64 `json:"request_start_time"`
	OldStart     *float64 `json:"start_time"`
}

func (in *Input) guideLLM(data []byte) ([]trace.Record, error) {
	var report struct {
		Args struct {
			Model  string `json:"model"`
			Target string `json:"target"`
		} `json:"args"`
		Config struct {
			Spec struct {
				Backend struct {
					Model  string `json:"model"`
					Target string `json:"target"`
				} `json:"backend"`
			} `json:"spec"`
		} `json:"config"`
		Benchmarks []struct {
			Config struct {
				Strategy struct {
					Type           string  `json:"type_"`
					Streams        *uint64 `json:"streams"`
					MaxConcurrency *uint64 `json:"max_concurrency"`
				} `json:"strategy"`
			} `json:"config"`
			Requests struct {
				Successful []guideRequest `json:"successful"`
				Incomplete []struct{}     `json:"incomplete"`
				Errored    []struct{}     `json:"errored"`
			} `json:"requests"`
		} `json:"benchmarks"`
	}
	if err := decode(data, &report); err != nil {
		return nil, err
	}
	if len(report.Benchmarks) == 0 {
		return nil, errors.New("it has no benchmarks: want the JSON report of guidellm run")
	}
	for _, name := range []string{report.Args.Model, report.Config.Spec.Backend.Model, report.Args.Target, report.Config.Spec.Backend.Target} {
		if name != "" && in.Meta.Model == nil {
			in.Meta.Model = &name
		}
	}
	in.Lacks = []string{
		"the gap between each two tokens: only their mean for each request",
		"token ids and hashes of prompts", "the reason why an answer ended",
	}
	var records []trace.Record
	for b := range report.Benchmarks {
		bench := &report.Benchmarks[b]
		level := uint64(0)
		switch s := bench.Config.Strategy; {
		case s.Type == "synchronous":
			level = 1
		case s.Type == "concurrent" && s.Streams != nil:
			level = *s.Streams
		}
		in.left["failed"] += len(bench.Requests.Errored)
		in.left["unfinished at the end of a benchmark"] += len(bench.Requests.Incomplete)
		for i := range bench.Requests.Successful {
			q := &bench.Requests.Successful[i]
			if q.PromptTokens == nil || q.OutputTokens == nil {
				return nil, fmt.Errorf("benchmarks[%d].requests.successful[%d]: no prompt_tokens or output_tokens: let guidellm keep what each request was", b, i)
			}
			r, ok := in.guideRecord(q)
			if !ok {
				in.skip("without a time to first token: want streamed answers")
				continue
			}
			r.Concurrency = level
			records = append(records, r)
		}
	}
	for reason, n := range in.left {
		if n == 0 {
			delete(in.left, reason)
		}
	}
	return records, nil
}

func (in *Input) guideRecord(q *guideRequest) (r trace.Record, ok bool) {
	if q.TTFT == nil || *q.OutputTokens < 1 {
		return r, false
	}
	r = trace.Record{PromptTokens: *q.PromptTokens, OutputTokens: *q.OutputTokens, TTFTMs: ofSeconds(*q.TTFT / 1e3), FinishReason: trace.FinishAbsent}
	if q.Cached != nil {
		r.CachedTokens = *q.Cached
	} else {
		in.lack("which part of a prompt was in the prefix cache")
	}
	start := cmp.Or(q.Start, q.OldStart)
	if start != nil {
		at := ofSeconds(*start)
		r.ArrivalMs = &at
	} else {
		in.lack("when requests came: timeline, calibrate and play cannot use it")
	}
	if r.OutputTokens > 1 {
		r.ITLSummary = &trace.ITLSummary{Count: r.OutputTokens - 1}
		if q.ITL != nil {
			r.ITLSummary.MeanMs = ofSeconds(*q.ITL / 1e3)
		}
	}
	return r, true
}

// inferencePerf reads per_request_lifecycle_metrics.json of inference-perf (inference_perf/reportgen/base.py
// build_per_request_lifecycle_entry). Times are in seconds of one clock.
func (in *Input) inferencePerf(data []byte) ([]trace.Record, error) {
	type tokens struct {
		Output *int      `json:"output_tokens"`
		Times  []float64 `json:"output_token_times"`
		Usage  *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
			Details    *struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"server_usage"`
	}
	var requests []struct {
		Start *float64 `json:"start_time"`
		End   *float64 `json:"end_time"`
		Info  *struct {
			Input    int     `json:"input_tokens"`
			Response *tokens `json:"response_metrics"`
			tokens           // of older releases
		} `json:"info"`
		Error *struct{} `json:"error"`
	}
	if err := decode(data, &requests); err != nil {
		return nil, err
	}
	in.Lacks = []string{"token ids, hashes of prompts, and which request continues another", "the reason why an answer ended"}
	var records []trace.Record
	for i := range requests {
		q := &requests[i]
		switch {
		case q.Error != nil:
			in.skip("failed")
			continue
		case q.Info == nil || q.Start == nil || q.End == nil:
			return nil, fmt.Errorf("request %d has no info, start_time or end_time: want per_request_lifecycle_metrics.json, written with report.request_lifecycle.per_request: true", i)
		}
		got := cmp.Or(q.Info.Response, &q.Info.tokens)
		at := ofSeconds(*q.Start)
		r := trace.Record{PromptTokens: q.Info.Input, FinishReason: trace.FinishAbsent, ArrivalMs: &at}
		if got.Output != nil {
			r.OutputTokens = *got.Output
		}
		u := got.Usage
		if u != nil && u.Completion > 0 {
			r.PromptTokens, r.OutputTokens = max(u.Prompt, 1), u.Completion
		}
		if u != nil && u.Completion > 0 && u.Details != nil {
			r.CachedTokens = u.Details.Cached
		} else {
			in.lack("which part of a prompt was in the prefix cache")
		}
		if r.OutputTokens < 1 {
			in.skip("without an answer")
			continue
		}
		if len(got.Times) == 0 {
			in.lack("times of tokens of answers that were not streamed: their whole time counts as time to first token")
			got.Times = []float64{*q.End}
		}
		r.TTFTMs = ofSeconds(got.Times[0] - *q.Start)
		gaps := make([]float64, len(got.Times)-1)
		for k := range gaps {
			gaps[k] = ofSeconds(got.Times[k+1] - got.Times[k])
		}
		in.setGaps(&r, gaps)
		records = append(records, r)
	}
	return records, nil
}
