package inspect

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/trace"
)

// A Format is that of a file that is read as a trace. Results of load generators have the times that clients saw. Public traces
// say when requests came and how long they and their answers were, and no times of answers. What each lacks is in [Input.Lacks].
type Format string

// The formats.
const (
	FormatVLLMBench     Format = "vllm-bench"
	FormatGuideLLM      Format = "guidellm"
	FormatInferencePerf Format = "inference-perf"
	FormatMooncake      Format = "mooncake"
	FormatBurstGPT      Format = "burstgpt"
	FormatAzure         Format = "azure"
	// FormatTrace is that of this project: nothing has to be read as another.
	FormatTrace Format = "trace"
)

// Formats are all formats.
func Formats() []Format {
	return []Format{FormatTrace, FormatVLLMBench, FormatGuideLLM, FormatInferencePerf, FormatRequests, FormatMooncake, FormatBurstGPT, FormatAzure}
}

// Input is a file of one of the formats that is read as a trace.
type Input struct {
	Format Format
	Meta   trace.Meta
	// Lacks says what a recorded trace has and this input has not.
	Lacks []string

	// each calls yield for every record, in the order of the file. The record is valid during the call only.
	each func(yield func(*trace.Record) error) error
	left map[string]int // requests that were left out, by the reason
	t    *trace.Reader  // of a trace
}

// Each calls yield for every record, in the order of the file, until one of them is an error. The record is valid during the call
// only.
func (in *Input) Each(yield func(*trace.Record) error) error { return in.each(yield) }

// Skipped says what was left out, once Each has returned.
func (in *Input) Skipped() (lines []string) {
	if in.t != nil {
		return in.t.Warnings()
	}
	for reason, n := range in.left {
		lines = append(lines, safetext.Count(n, "request")+" "+reason)
	}
	slices.Sort(lines)
	return lines
}

func (in *Input) skip(reason string) { in.left[reason]++ }

// MaxBytes is how large a JSON document may be that is read as a whole: 1 GiB.
const MaxBytes = 1 << 30

// OpenInput begins to read an input; an empty format is that which its beginning shows. name is for messages. r has to be readable
// until Each has returned. Columns are those of a table of requests, nil for usual names.
func OpenInput(name string, r io.Reader, format Format, columns Columns) (*Input, error) {
	buffered := bufio.NewReaderSize(r, peeked)
	if format == "" && columns != nil {
		format = FormatRequests
	}
	if format == "" {
		head, err := buffered.Peek(peeked)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if format = formatOf(head); format == "" {
			return nil, fmt.Errorf("%s: its format is not known: it begins with %.60q; name the format with --from, one of %s", name, bytes.TrimSpace(head), safetext.Words(Formats()))
		}
	}
	in := &Input{Format: format, left: map[string]int{}}
	source := string(format)
	in.Meta.Source = &source
	var err error
	switch format {
	case FormatVLLMBench:
		err = in.document(name, buffered, in.vllmBench)
	case FormatGuideLLM:
		err = in.document(name, buffered, in.guideLLM)
	case FormatInferencePerf:
		err = in.document(name, buffered, in.inferencePerf)
	case FormatRequests:
		err = in.document(name, buffered, in.requests(columns))
	case FormatMooncake:
		in.mooncake(name, buffered)
	case FormatBurstGPT, FormatAzure:
		err = in.table(name, buffered)
	case FormatTrace:
		if in.t, err = trace.NewReader(buffered, name, false, trace.Options{}); err == nil {
			in.Meta, in.each = in.t.Meta(), in.records
		}
	default:
		err = fmt.Errorf("format %q: want one of %s", format, safetext.Words(Formats()))
	}
	return in, err
}

// ReadInput reads all of an input as a trace. A trace is read as it is, and a table of requests if there are columns.
func ReadInput(name string, r io.Reader, columns Columns) (*trace.Trace, *Input, error) {
	in, err := OpenInput(name, r, "", columns)
	if err != nil {
		return nil, nil, err
	}
	t := &trace.Trace{Name: name, Meta: in.Meta}
	if in.t != nil {
		t, err = in.t.ReadAll()
		return t, in, err
	}
	err = in.Each(func(r *trace.Record) error {
		t.Records = append(t.Records, *r)
		return nil
	})
	return t, in, err
}

// records are those of a trace.
func (in *Input) records(yield func(*trace.Record) error) error {
	var r trace.Record
	for {
		if err := in.t.Next(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := yield(&r); err != nil {
			return fmt.Errorf("%s:%d: %w", in.t.Name(), r.Line, err)
		}
	}
}

// peeked is how many bytes show a format.
const peeked = 64 << 10

// formatOf recognizes the format by the beginning of a file, "" if it is unknown.
func formatOf(head []byte) Format {
	head = bytes.TrimSpace(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")))
	switch {
	case len(head) == 0:
		return ""
	case head[0] == '[':
		return FormatInferencePerf
	case head[0] == '{':
		return formatOfKeys(topKeys(head))
	}
	header, _, _ := strings.Cut(string(head), "\n")
	switch {
	case strings.Contains(header, "Request tokens"):
		return FormatBurstGPT
	case strings.Contains(header, "ContextTokens"):
		return FormatAzure
	case Columns(nil).requests(func(name string) bool {
		return slices.ContainsFunc(strings.Split(header, ","), func(text string) bool { return strings.TrimSpace(text) == name })
	}):
		return FormatRequests
	}
	return ""
}

func formatOfKeys(has map[string]bool) Format {
	switch {
	case has["meta"], has["prompt_tokens"] && has["ttft_ms"]:
		return FormatTrace
	case has["input_length"]:
		return FormatMooncake
	case has["benchmarks"], has["metadata"] && (has["args"] || has["config"]):
		return FormatGuideLLM
	case has["endpoint_type"], has["backend"] && has["model_id"], has["request_throughput"]:
		return FormatVLLMBench
	case Columns(nil).requests(func(name string) bool { return has[name] }):
		return FormatRequests
	}
	return ""
}

// topKeys are the keys of the object that text begins with, as far as text goes.
func topKeys(text []byte) map[string]bool {
	keys := map[string]bool{}
	dec := json.NewDecoder(bytes.NewReader(text))
	if _, err := dec.Token(); err != nil {
		return keys
	}
	for dec.More() {
		key, err := dec.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return keys
		}
		keys[name] = true
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return keys
		}
	}
	return keys
}

// document reads a whole JSON document, and keeps the records that read finds in it.
func (in *Input) document(name string, r io.Reader, read func(data []byte) ([]trace.Record, error)) error {
	data, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case len(data) > MaxBytes:
		return fmt.Errorf("%s: it has more than %d bytes: split it", name, MaxBytes)
	}
	records, err := read(finite(data))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(records) == 0 {
		return fmt.Errorf("%s: no request in it has an answer: nothing to convert%s", name, in.leftOut())
	}
	fromFirst(records)
	in.each = func(yield func(*trace.Record) error) error {
		for i := range records {
			if err := yield(&records[i]); err != nil {
				return fmt.Errorf("%s: request %d: %w", name, i, err)
			}
		}
		return nil
	}
	return nil
}

func (in *Input) leftOut() string {
	if lines := in.Skipped(); len(lines) > 0 {
		return " (" + strings.Join(lines, ", ") + ")"
	}
	return ""
}

// decode reads one JSON value, and nothing behind it.
func decode(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(into); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return fmt.Errorf("%s is a JSON %s: want %s", wrong.Field, wrong.Value, wrong.Type)
		}
		return err
	}
	if rest := bytes.TrimSpace(data[dec.InputOffset():]); len(rest) > 0 {
		return fmt.Errorf("there is more than one result in it (another begins at byte %d): split it", dec.InputOffset())
	}
	return nil
}

// textOrNotFinite is a text of JSON, or what Python's json writes for numbers that JSON has not.
var textOrNotFinite = lazyregexp.New(`"(?:[^"\\]|\\.)*"?|NaN|-?Infinity`)

// finite replaces NaN, Infinity and -Infinity by null.
func finite(data []byte) []byte {
	if !bytes.Contains(data, []byte("NaN")) && !bytes.Contains(data, []byte("Infinity")) {
		return data
	}
	return textOrNotFinite().ReplaceAllFunc(data, func(found []byte) []byte {
		if found[0] == '"' {
			return found
		}
		return []byte("null")
	})
}

// fromFirst counts arrivals from the first one, and says for records of an unknown load level how many requests were in flight
// when they came.
func fromFirst(records []trace.Record) {
	first := math.Inf(1)
	for i := range records {
		if at := records[i].ArrivalMs; at != nil {
			first = min(first, *at)
		}
	}
	var begins []int
	var ends []float64
	for i := range records {
		r := &records[i]
		if r.ArrivalMs != nil {
			*r.ArrivalMs = math.Round((*r.ArrivalMs-first)*1e3) / 1e3 // a large clock is not exact
			begins, ends = append(begins, i), append(ends, r.EndMs(*r.ArrivalMs))
		}
	}
	slices.Sort(ends)
	slices.SortStableFunc(begins, func(a, b int) int { return cmp.Compare(*records[a].ArrivalMs, *records[b].ArrivalMs) })
	ended := 0
	for n, i := range begins {
		for ended < len(ends) && ends[ended] <= *records[i].ArrivalMs {
			ended++
		}
		if r := &records[i]; r.Concurrency == 0 {
			r.Concurrency = uint64(max(1, n+1-ended))
		}
	}
	for i := range records {
		records[i].Concurrency = max(1, records[i].Concurrency)
	}
}

// setGaps enters the times between the outputs of an answer. Where there are fewer outputs than tokens, it is unknown how many
// tokens each had: they are spread evenly. Where there are more, the last ones are taken for one.
func (in *Input) setGaps(r *trace.Record, gaps []float64) {
	if limit := max(r.OutputTokens-1, 0); len(gaps) > limit {
		in.lack("the number of outputs of some requests is larger than that of their tokens: their last gaps are put together")
		kept := slices.Clone(gaps[:limit])
		for _, ms := range gaps[limit:] {
			if limit > 0 {
				kept[limit-1] += ms
			}
		}
		gaps = kept
	}
	r.ITLMs = gaps
	if r.ITLMs == nil {
		r.ITLMs = []float64{}
	}
	if outputs := len(gaps) + 1; outputs < r.OutputTokens {
		in.lack("how many tokens each output had, where a request has fewer outputs than tokens: they are spread evenly")
		r.ITLTokens = make([]uint32, len(gaps))
		for i := range gaps {
			r.ITLTokens[i] = uint32((i+2)*r.OutputTokens/outputs - (i+1)*r.OutputTokens/outputs)
		}
	}
}

func (in *Input) lack(what string) {
	if !slices.Contains(in.Lacks, what) {
		in.Lacks = append(in.Lacks, what)
	}
}

// untimed adds to the lengths of a record of a public trace what a valid record needs.
func untimed(r *trace.Record) *trace.Record {
	r.FinishReason, r.Concurrency = trace.FinishAbsent, 1
	if r.OutputTokens > 1 {
		r.ITLSummary = &trace.ITLSummary{Count: r.OutputTokens - 1}
	}
	return r
}

// lacksTimes is what all public traces lack.
var lacksTimes = []string{
	"all times of answers: time to first token and gaps are 0, so use it as a load (capture load --workload arrivals), not for statistics",
	"token ids",
}

// milliseconds of a time in seconds, without the noise of a large clock.
func ofSeconds(s float64) float64 { return math.Round(s*1e6) / 1e3 }
