package convert

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/vllm-vcr/conformance/internal/inspect"
	"github.com/vllm-vcr/conformance/trace"
)

// Plan is a record as a plan for a load generator: when the request came, its lengths, and the hashes of its prompt. It has no
// times of answers, tokens or ids.
func Plan(r *trace.Record) (*trace.Record, error) {
	if r.ArrivalMs == nil {
		return nil, errNoArrival
	}
	return untimed(&trace.Record{PromptTokens: r.PromptTokens, OutputTokens: r.OutputTokens, ArrivalMs: r.ArrivalMs, BlockHashes: r.BlockHashes}), nil
}

var errNoArrival = errors.New("no arrival_ms: when the request came is not known")

// PlanMeta is the meta of a plan.
func PlanMeta(meta trace.Meta) trace.Meta {
	source := "load-plan"
	return trace.Meta{Model: meta.Model, BlockSize: meta.BlockSize, Source: &source}
}

// SpanOptions of [SpanWriter].
type SpanOptions struct {
	// Start is the time of arrival_ms 0, which a trace does not have.
	Start time.Time
	Meta  trace.Meta
}

// A SpanWriter writes requests as OpenTelemetry spans, in the JSON form of OTLP: each line is one ExportTraceServiceRequest, as the
// collector's otlpjsonfile receiver reads it and /v1/traces takes it. A request is the span llm_request with the names of
// attributes that vLLM uses (vllm/tracing/utils.py), and two spans below it, prefill and decode. The requests of a
// conversation are one trace; each is linked to the one before.
type SpanWriter struct {
	w       io.Writer
	opt     SpanOptions
	pending ptrace.Traces
	turns   inspect.Turns[turn]
	count   int
}

// turn is a request that a later one may continue.
type turn struct {
	trace pcommon.TraceID
	span  pcommon.SpanID
}

// perLine is how many requests are in a line.
const perLine = 256

// NewSpanWriter returns a writer to w. Close writes what is left.
func NewSpanWriter(w io.Writer, opt SpanOptions) *SpanWriter {
	return &SpanWriter{w: w, opt: opt, pending: ptrace.NewTraces()}
}

// Write adds a request.
func (s *SpanWriter) Write(r *trace.Record) error {
	if r.ArrivalMs == nil {
		return errNoArrival
	}
	number := s.count
	s.count++
	id := sha256.Sum256(fmt.Appendf(nil, "%d %d %d %v %v", number, r.PromptTokens, r.OutputTokens, *r.ArrivalMs, r.TTFTMs))
	arrival, first, end := *r.ArrivalMs, *r.ArrivalMs+r.TTFTMs, r.EndMs(*r.ArrivalMs)
	traceID := pcommon.TraceID(id[:16])
	before, isTurn := s.turns.Parent(r)
	if isTurn {
		traceID = before.trace
	}
	spans := s.spans()
	add := func(name string, id []byte, kind ptrace.SpanKind, from, to float64) ptrace.Span {
		span := spans.AppendEmpty()
		span.SetTraceID(traceID)
		span.SetSpanID(pcommon.SpanID(id))
		span.SetName(name)
		span.SetKind(kind)
		span.SetStartTimestamp(s.time(from))
		span.SetEndTimestamp(s.time(max(from, to)))
		return span
	}
	request := add("llm_request", id[16:24], ptrace.SpanKindServer, arrival, end)
	attributes := request.Attributes()
	attributes.PutInt("gen_ai.usage.prompt_tokens", int64(r.PromptTokens))
	attributes.PutInt("gen_ai.usage.completion_tokens", int64(r.OutputTokens))
	attributes.PutDouble("gen_ai.latency.time_to_first_token", r.TTFTMs/1e3)
	attributes.PutDouble("gen_ai.latency.e2e", (end-arrival)/1e3)
	attributes.PutInt("vllm_vcr.record", int64(number))
	attributes.PutInt("vllm_vcr.cached_tokens", int64(r.CachedTokens))
	attributes.PutInt("vllm_vcr.concurrency", int64(min(r.Concurrency, math.MaxInt32)))
	if model := trace.Or(s.opt.Meta.Model, ""); model != "" {
		attributes.PutStr("gen_ai.response.model", model)
	}
	if r.FinishReason != trace.FinishAbsent {
		attributes.PutStr("vllm_vcr.finish_reason", r.FinishReason.String())
	}
	if r.FinishReason == trace.FinishError {
		request.Status().SetCode(ptrace.StatusCodeError)
	}
	if isTurn {
		link := request.Links().AppendEmpty()
		link.SetTraceID(before.trace)
		link.SetSpanID(before.span)
	}
	parent := request.SpanID()
	s.turns.Add(r, end, turn{traceID, parent})
	other := sha256.Sum256(id[:])
	if r.OutputTokens > 0 {
		add("prefill", other[:8], ptrace.SpanKindInternal, arrival, first).SetParentSpanID(parent)
	}
	if r.OutputTokens > 1 {
		add("decode", other[8:16], ptrace.SpanKindInternal, first, end).SetParentSpanID(parent)
	}
	if s.count%perLine == 0 {
		return s.Close()
	}
	return nil
}

// spans are those of the line that is being filled.
func (s *SpanWriter) spans() ptrace.SpanSlice {
	if s.pending.ResourceSpans().Len() > 0 {
		return s.pending.ResourceSpans().At(0).ScopeSpans().At(0).Spans()
	}
	resource := s.pending.ResourceSpans().AppendEmpty()
	attributes := resource.Resource().Attributes()
	attributes.PutStr("service.name", "vllm")
	put := func(key string, value *string) {
		if trace.Or(value, "") != "" {
			attributes.PutStr(key, *value)
		}
	}
	put("service.version", s.opt.Meta.VLLMVersion)
	put("vllm_vcr.gpu", s.opt.Meta.GPU)
	put("vllm_vcr.source", s.opt.Meta.Source)
	scope := resource.ScopeSpans().AppendEmpty()
	scope.Scope().SetName("vllm-vcr")
	return scope.Spans()
}

func (s *SpanWriter) time(ms float64) pcommon.Timestamp {
	return pcommon.Timestamp(s.opt.Start.UnixNano() + int64(ms*1e6))
}

// Close writes what is left.
func (s *SpanWriter) Close() error {
	if s.pending.SpanCount() == 0 {
		return nil
	}
	line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(s.pending)
	s.pending = ptrace.NewTraces()
	if err == nil {
		_, err = s.w.Write(append(line, '\n'))
	}
	return err
}
