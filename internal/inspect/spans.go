package inspect

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/vllm-vcr/conformance/trace"
)

// LoadPlan is a record as a plan for a load generator: when the request came, its lengths, and the hashes of its prompt. It has no
// times of answers, tokens or ids.
func LoadPlan(r *trace.Record) (*trace.Record, error) {
	if r.ArrivalMs == nil {
		return nil, errNoArrival
	}
	return untimed(&trace.Record{PromptTokens: r.PromptTokens, OutputTokens: r.OutputTokens, ArrivalMs: r.ArrivalMs, BlockHashes: r.BlockHashes}), nil
}

var errNoArrival = errors.New("no arrival_ms: when the request came is not known")

// LoadPlanMeta is the meta of a plan.
func LoadPlanMeta(meta trace.Meta) trace.Meta {
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
	pending []otlpSpan
	turns   Turns[turn]
	count   int
}

// turn is a request that a later one may continue.
type turn struct {
	trace, span string
}

// perLine is how many requests are in a line.
const perLine = 256

// NewSpanWriter returns a writer to w. Close writes what is left.
func NewSpanWriter(w io.Writer, opt SpanOptions) *SpanWriter {
	return &SpanWriter{w: w, opt: opt}
}

// otlpSpan is a span of OTLP (opentelemetry-proto, collector/trace/v1). In JSON its 64-bit numbers are texts and its ids are
// in hex.
type otlpSpan struct {
	TraceID    string           `json:"traceId"`
	SpanID     string           `json:"spanId"`
	ParentID   string           `json:"parentSpanId,omitempty"`
	Name       string           `json:"name"`
	Kind       int              `json:"kind"`
	Start      string           `json:"startTimeUnixNano"`
	End        string           `json:"endTimeUnixNano"`
	Attributes []map[string]any `json:"attributes,omitempty"`
	Links      []otlpLink       `json:"links,omitempty"`
	Status     map[string]int   `json:"status,omitempty"`
}

// otlpLink is another span that a span belongs to.
type otlpLink struct {
	TraceID string `json:"traceId"`
	SpanID  string `json:"spanId"`
}

const (
	kindInternal, kindServer = 1, 2
	statusError              = 2
)

// attribute is an attribute of a span whose value is a string, an int or a float64.
func attribute(key string, value any) map[string]any {
	kind := "stringValue"
	switch v := value.(type) {
	case int:
		kind, value = "intValue", strconv.Itoa(v)
	case float64:
		kind = "doubleValue"
	}
	return map[string]any{"key": key, "value": map[string]any{kind: value}}
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
	request := otlpSpan{
		TraceID: hex.EncodeToString(id[:16]), SpanID: hex.EncodeToString(id[16:24]), Name: "llm_request", Kind: kindServer,
		Start: s.nano(arrival), End: s.nano(max(arrival, end)),
		Attributes: []map[string]any{
			attribute("gen_ai.usage.prompt_tokens", r.PromptTokens), attribute("gen_ai.usage.completion_tokens", r.OutputTokens),
			attribute("gen_ai.latency.time_to_first_token", r.TTFTMs/1e3), attribute("gen_ai.latency.e2e", (end-arrival)/1e3),
			attribute("vllm_vcr.record", number), attribute("vllm_vcr.cached_tokens", r.CachedTokens), attribute("vllm_vcr.concurrency", int(min(r.Concurrency, math.MaxInt32))),
		},
	}
	if model := trace.Or(s.opt.Meta.Model, ""); model != "" {
		request.Attributes = append(request.Attributes, attribute("gen_ai.response.model", model))
	}
	if r.FinishReason != trace.FinishAbsent {
		request.Attributes = append(request.Attributes, attribute("vllm_vcr.finish_reason", r.FinishReason.String()))
	}
	if r.FinishReason == trace.FinishError {
		request.Status = map[string]int{"code": statusError}
	}
	if before, ok := s.turns.Parent(r); ok {
		request.TraceID = before.trace
		request.Links = []otlpLink{{before.trace, before.span}}
	}
	s.turns.Add(r, end, turn{request.TraceID, request.SpanID})
	s.pending = append(s.pending, request)
	if r.OutputTokens > 0 {
		part := func(name, id string, from, to float64) otlpSpan {
			return otlpSpan{
				TraceID: request.TraceID, SpanID: id, ParentID: request.SpanID, Name: name, Kind: kindInternal,
				Start: s.nano(from), End: s.nano(max(from, to)),
			}
		}
		other := sha256.Sum256(id[:])
		s.pending = append(s.pending, part("prefill", hex.EncodeToString(other[:8]), arrival, first))
		if r.OutputTokens > 1 {
			s.pending = append(s.pending, part("decode", hex.EncodeToString(other[8:16]), first, end))
		}
	}
	if s.count%perLine == 0 {
		return s.flush()
	}
	return nil
}

func (s *SpanWriter) nano(ms float64) string {
	return strconv.FormatInt(s.opt.Start.UnixNano()+int64(ms*1e6), 10)
}

// Close writes what is left.
func (s *SpanWriter) Close() error {
	if len(s.pending) == 0 {
		return nil
	}
	return s.flush()
}

func (s *SpanWriter) flush() error {
	attributes := []map[string]any{attribute("service.name", "vllm")}
	for _, known := range []struct {
		key   string
		value *string
	}{{"service.version", s.opt.Meta.VLLMVersion}, {"vllm_vcr.gpu", s.opt.Meta.GPU}, {"vllm_vcr.source", s.opt.Meta.Source}} {
		if value := trace.Or(known.value, ""); value != "" {
			attributes = append(attributes, attribute(known.key, value))
		}
	}
	type object = map[string]any
	line, err := json.Marshal(object{"resourceSpans": []object{{
		"resource":   object{"attributes": attributes},
		"scopeSpans": []object{{"scope": object{"name": "vllm-vcr"}, "spans": s.pending}},
	}}})
	s.pending = s.pending[:0]
	if err == nil {
		_, err = s.w.Write(append(line, '\n'))
	}
	return err
}
