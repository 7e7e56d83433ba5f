package trace

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Record is one finished request. In every slice, map and pointer nil means
// that the key is absent; an empty slice is an empty array.
type Record struct {
	// PromptTokens is the full prompt length in tokens, image placeholders
	// included.
	PromptTokens int
	// CachedTokens is how many of them came from the local prefix cache or an
	// external KV transfer. Absent reads as 0.
	CachedTokens int
	// OutputTokens is how many tokens were generated.
	OutputTokens int
	// TTFTMs is the time from arrival to the first output with a token, ms.
	TTFTMs float64
	// ITLMs are the gaps between consecutive output chunks, ms: one per chunk
	// after the first, however many tokens a chunk has.
	ITLMs []float64
	// ITLTokens is parallel to ITLMs: the tokens of the chunk that closed the
	// gap. Absent means one each.
	ITLTokens []uint32
	// ITLSummary takes the place of ITLMs where only a mean is known.
	ITLSummary *ITLSummary
	// Concurrency is the number of requests in flight at arrival, this one
	// included, or the load level of a load generator. Absent reads as 1.
	Concurrency uint64
	// ArrivalMs is the arrival, ms since the capture's zero: the first
	// request in what this project records, the tap's start in what others do.
	ArrivalMs *float64
	// EngineClock is whether TTFTMs and ITLMs are by the timestamps of the engine's messages, and why not. Absent: by when the
	// recorder received them. This project's own key.
	EngineClock EngineClock
	// TapTimes are the times by when the recorder received the messages, where TTFTMs and ITLMs are by the engine's timestamps
	// and one of them differs by more than a millisecond. This project's own key.
	TapTimes *TapTimes
	// ITLCtx is the engine's state at each gap.
	ITLCtx *ITLCtx
	// BlockHashes is the chain of the prompt's full blocks, see [BlockHashes].
	BlockHashes []uint64
	// MMHashes has one content hash per multimodal item, in request order.
	MMHashes []string
	// PromptTokenIDs is the prompt, PromptTokens ids. This project's own key;
	// sensitive, and only recorded on request.
	PromptTokenIDs []uint32
	// OutputTokenIDs are the generated ids, OutputTokens of them. Sensitive,
	// and only recorded on request.
	OutputTokenIDs []uint32
	// FinishReason is FinishAbsent if the record has none.
	FinishReason FinishReason
	// EndedByFrontend reports whether the frontend ended the request by an ABORT, after
	// OutputTokens tokens: it found a stop string, or its client left. The engine would
	// have gone on. This project's own key; FinishReason is FinishAbort.
	EndedByFrontend bool
	// Error is what the engine gave as the reason of FinishError, nil if it gave
	// none. This project's own key.
	Error *RequestError
	// Extra holds the keys this package does not know, if the reader was
	// asked to keep them. The writer writes them after the others, sorted.
	Extra map[string]json.RawMessage
	// Line is the record's physical line, 1-based; 0 if it was not read.
	Line int
}

// RequestError is why an engine ended a request with FinishError (vllm/outputs.py, since
// 0.33). A frontend answers HTTP 400 to the code "validation_error", 503 where the
// client may try again, and 500 otherwise.
type RequestError struct {
	Code string
	// Message is for a person. It may quote the request: only recorded on request.
	Message   string
	Retryable bool
}

// ReplayEnd is how a replay of the record ends: by its reason, or because it has as many
// tokens as were recorded.
func (r *Record) ReplayEnd() FinishReason {
	if r.FinishReason == FinishAbsent || r.EndedByFrontend {
		return FinishLength
	}
	return r.FinishReason
}

// EngineClock is what a recorder has made of the timestamps of an engine's messages (EngineCoreOutputs.timestamp).
type EngineClock string

const (
	// ClockUsed: the times are by the timestamps.
	ClockUsed EngineClock = "used"
	// ClockUnproven: the recorder had not seen enough messages yet to know that they are times in seconds.
	ClockUnproven EngineClock = "unproven"
	// ClockZero: a timestamp was 0 or less, or no number.
	ClockZero EngineClock = "zero"
	// ClockConstant: two successive messages had the same timestamp.
	ClockConstant EngineClock = "constant"
	// ClockBackwards: a message had an earlier timestamp than the one before it.
	ClockBackwards EngineClock = "backwards"
	// ClockAnother: the timestamps do not advance as the recorder's clock does, such as those in milliseconds.
	ClockAnother EngineClock = "another"
)

// TapTimes are times by when a recorder received messages.
type TapTimes struct {
	TTFTMs float64
	// ITLMs is parallel to [Record].ITLMs, and never nil after a read.
	ITLMs []float64
}

// ITLSummary is the mean of gaps that were not recorded one by one.
type ITLSummary struct {
	// MeanMs is the mean gap, ms.
	MeanMs float64
	// Count is the number of gaps.
	Count int
}

// ITLCtx is what the engine did in the step that closed each gap. Both slices
// are parallel to Record.ITLMs and never nil after a read.
type ITLCtx struct {
	// NumRunning is the engine's running requests, at least 1.
	NumRunning []uint32
	// PrefillTokens is the prompt tokens of the requests that got their first
	// token in the same step; 0 marks a clean decode step.
	PrefillTokens []uint32
}

// Chunks returns the token counts of the record's output chunks in order. The
// first chunk has what the gaps leave of OutputTokens, at least 1; a record
// that passes the strict reader sums up to OutputTokens. Chunks is nil where
// there is no output, or no gap to tell how more than one token was cut.
func (r *Record) Chunks() []int {
	if r.OutputTokens == 0 || r.ITLMs == nil && r.OutputTokens > 1 {
		return nil
	}
	sizes := make([]int, 1, len(r.ITLMs)+1)
	for i := range r.ITLMs {
		n := 1
		if i < len(r.ITLTokens) {
			n = int(r.ITLTokens[i])
		}
		sizes = append(sizes, n)
	}
	sizes[0] = max(1, r.OutputTokens-r.gapTokens())
	return sizes
}

// EndMs is when the last output came of a request that came at arrival, both in ms on the same clock. With an arrival of 0 it is the
// duration. Where the gaps have only a mean, it counts for each of them.
func (r *Record) EndMs(arrival float64) float64 {
	end := arrival + r.TTFTMs
	for _, ms := range r.ITLMs {
		end += ms
	}
	if r.ITLMs == nil && r.ITLSummary != nil {
		end += r.ITLSummary.MeanMs * float64(r.ITLSummary.Count)
	}
	return end
}

// gapTokens is the number of tokens the gaps delivered.
func (r *Record) gapTokens() int {
	if r.ITLTokens == nil {
		return len(r.ITLMs)
	}
	sum := 0
	for _, n := range r.ITLTokens {
		sum += int(n)
	}
	return sum
}

// Validate checks that the record's counts agree with each other. Reader and
// Writer both apply it.
func (r *Record) Validate() error {
	if err := r.validateCounts(); err != nil {
		return err
	}
	if err := r.validateTimes(); err != nil {
		return err
	}
	if err := r.validateGaps(); err != nil {
		return err
	}
	if err := lengthIs("output_token_ids", r.OutputTokenIDs, r.OutputTokens, "output_tokens"); err != nil {
		return err
	}
	return lengthIs("prompt_token_ids", r.PromptTokenIDs, r.PromptTokens, "prompt_tokens")
}

func (r *Record) validateCounts() error {
	for _, c := range []struct {
		field string
		n     int
	}{
		{"prompt_tokens", r.PromptTokens},
		{"cached_tokens", r.CachedTokens},
		{"output_tokens", r.OutputTokens},
	} {
		if c.n < 0 {
			return invalid(c.field, "want at least 0, got %d", c.n)
		}
	}
	if r.ITLSummary != nil && r.ITLSummary.Count < 0 {
		return invalid("itl_summary.count", "want at least 0, got %d", r.ITLSummary.Count)
	}
	if r.FinishReason > FinishRepetition && r.FinishReason != FinishAbsent {
		return invalid("finish_reason", "unknown code %d", uint8(r.FinishReason))
	}
	if r.EndedByFrontend && r.FinishReason != FinishAbort {
		return invalid("ended_by_frontend", "want the finish_reason abort, got %s", r.FinishReason)
	}
	if r.Error != nil && r.FinishReason != FinishError {
		return invalid("request_error", "want the finish_reason error, got %s", r.FinishReason)
	}
	return nil
}

// maxMs is further from 0 than any time of a recording: 30,000 years. Sums and differences of
// how exactly times within it tell steps apart.
const maxMs = 1e15

func (r *Record) validateTimes() error {
	far := func(field string, ms float64) error {
		if math.Abs(ms) <= maxMs {
			return nil
		}
		return invalid(field, "want a time between %g and %g ms, got %g", -maxMs, maxMs, ms)
	}
	if r.ArrivalMs != nil {
		if err := far("arrival_ms", *r.ArrivalMs); err != nil {
			return err
		}
	}
	for i, ms := range r.ITLMs {
		if math.Abs(ms) <= maxMs {
			continue
		}
		return far(fmt.Sprintf("itl_ms[%d]", i), ms)
	}
	if s := r.ITLSummary; s != nil {
		if err := far("itl_summary.mean_ms", s.MeanMs); err != nil {
			return err
		}
		if err := far("itl_summary", s.MeanMs*float64(s.Count)); err != nil {
			return err
		}
	}
	return far("ttft_ms", r.TTFTMs)
}

func (r *Record) validateGaps() error {
	if r.OutputTokens > 1 && r.ITLMs == nil && r.ITLSummary == nil {
		return invalid("itl_ms", "missing: output_tokens is %d, so itl_ms or itl_summary is needed", r.OutputTokens)
	}
	if ctx := r.ITLCtx; ctx != nil {
		if len(ctx.NumRunning) != len(r.ITLMs) {
			return invalid("itl_ctx.num_running", "want %d entries as in itl_ms, got %d", len(r.ITLMs), len(ctx.NumRunning))
		}
		if len(ctx.PrefillTokens) != len(r.ITLMs) {
			return invalid("itl_ctx.prefill_tokens", "want %d entries as in itl_ms, got %d", len(r.ITLMs), len(ctx.PrefillTokens))
		}
	}
	if t := r.TapTimes; t != nil && len(t.ITLMs) != len(r.ITLMs) {
		return invalid("tap_times.itl_ms", "want %d entries as in itl_ms, got %d", len(r.ITLMs), len(t.ITLMs))
	}
	if r.ITLTokens == nil {
		return nil
	}
	if len(r.ITLTokens) != len(r.ITLMs) {
		return invalid("itl_tokens", "want %d entries as in itl_ms, got %d", len(r.ITLMs), len(r.ITLTokens))
	}
	for i, n := range r.ITLTokens {
		if n == 0 {
			return invalid("itl_tokens", "entry %d is 0; a chunk has at least one token", i)
		}
	}
	return r.validateFirstChunk("itl_tokens")
}

// validateFirstChunk checks that the gaps leave the first chunk a token. With
// no gaps there is nothing to check.
func (r *Record) validateFirstChunk(field string) error {
	if sum := r.gapTokens(); sum > 0 && sum >= r.OutputTokens {
		return invalid(field, "the gaps deliver %d tokens, but output_tokens is %d and the first chunk has at least one", sum, r.OutputTokens)
	}
	return nil
}

// lengthIs compares the length of an array of ids, if there is one, with the
// count that announces it.
func lengthIs(field string, ids []uint32, want int, as string) error {
	if ids != nil && len(ids) != want {
		return invalid(field, "want %d entries as in %s, got %d", want, as, len(ids))
	}
	return nil
}

func invalid(field, format string, args ...any) error {
	return &Error{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// FinishReason is why a request ended. Its values are vLLM's wire codes
// (vllm/v1/engine: class FinishReason).
//
// The zero value is FinishStop, as on the wire: set FinishAbsent in a Record
// made by hand if nothing is known.
type FinishReason uint8

const (
	FinishStop       FinishReason = 0
	FinishLength     FinishReason = 1
	FinishAbort      FinishReason = 2
	FinishError      FinishReason = 3
	FinishRepetition FinishReason = 4
	// FinishAbsent is a record without finish_reason. It has no wire code.
	FinishAbsent FinishReason = 255
)

var finishNames = [...]string{"stop", "length", "abort", "error", "repetition"}

// String returns the reason as a trace spells it, lower case, and "absent" for
// FinishAbsent.
func (f FinishReason) String() string {
	switch {
	case int(f) < len(finishNames):
		return finishNames[f]
	case f == FinishAbsent:
		return "absent"
	}
	return fmt.Sprintf("finish_reason(%d)", uint8(f))
}

// Wire returns the code a player sends for the reason: its value, and the code
// of FinishLength for FinishAbsent, because a stream replayed from a record
// without a reason ends when its tokens do.
func (f FinishReason) Wire() uint8 {
	if f == FinishAbsent {
		return uint8(FinishLength)
	}
	return uint8(f)
}

// ParseFinishReason is the reverse of String for the five reasons of the wire.
// The spelling is exact.
func ParseFinishReason(s string) (FinishReason, bool) {
	if i := slices.Index(finishNames[:], s); i >= 0 {
		return FinishReason(i), true
	}
	return FinishAbsent, false
}
