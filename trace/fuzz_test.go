package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// reference reads a record line with encoding/json alone, by the rules of the
// package documentation. It shares nothing with the parser but Validate.
func reference(line []byte) (*Record, error) {
	if !utf8.Valid(line) || !json.Valid(line) || line[0] != '{' {
		return nil, errors.New("not a JSON object in UTF-8")
	}
	if err := referenceTokens(line); err != nil {
		return nil, err
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(line, &m); err != nil {
		return nil, err
	}
	r := &Record{Concurrency: 1, FinishReason: FinishAbsent}
	var ref refDecoder
	r.PromptTokens = int(ref.uint(m["prompt_tokens"], math.MaxInt))
	r.OutputTokens = int(ref.uint(m["output_tokens"], math.MaxInt))
	r.TTFTMs = ref.float(m["ttft_ms"])
	if v, ok := m["cached_tokens"]; ok {
		r.CachedTokens = int(ref.uint(v, math.MaxInt))
	}
	if v, ok := m["concurrency"]; ok {
		r.Concurrency = ref.uint(v, math.MaxUint64)
	}
	r.ITLMs = refSlice(&ref, m["itl_ms"], ref.float)
	r.ITLTokens = refSlice(&ref, m["itl_tokens"], ref.uint32)
	r.BlockHashes = refSlice(&ref, m["block_hashes"], ref.uint64)
	r.MMHashes = refSlice(&ref, m["mm_hashes"], ref.str)
	r.PromptTokenIDs = refSlice(&ref, m["prompt_token_ids"], ref.uint32)
	r.OutputTokenIDs = refSlice(&ref, m["output_token_ids"], ref.uint32)
	if v := m["arrival_ms"]; present(v) {
		r.ArrivalMs = new(ref.float(v))
	}
	if v := m["itl_summary"]; present(v) {
		o := ref.object(v)
		r.ITLSummary = &ITLSummary{MeanMs: ref.float(o["mean_ms"]), Count: int(ref.uint(o["count"], math.MaxInt))}
	}
	if v := m["itl_ctx"]; present(v) {
		o := ref.object(v)
		r.ITLCtx = &ITLCtx{
			NumRunning:    refSlice(&ref, nullIsBad(o["num_running"]), ref.uint32),
			PrefillTokens: refSlice(&ref, nullIsBad(o["prefill_tokens"]), ref.uint32),
		}
	}
	if v := m["finish_reason"]; present(v) {
		var ok bool
		r.FinishReason, ok = ParseFinishReason(ref.str(v))
		ref.bad = ref.bad || !ok
	}
	if v := m["ended_by_frontend"]; present(v) {
		r.EndedByFrontend = ref.bool(v)
	}
	if v := m["engine_clock"]; present(v) {
		r.EngineClock = EngineClock(ref.str(v))
	}
	if v := m["tap_times"]; present(v) {
		o := ref.object(v)
		r.TapTimes = &TapTimes{TTFTMs: ref.float(nullIsBad(o["ttft_ms"])), ITLMs: refSlice(&ref, nullIsBad(o["itl_ms"]), ref.float)}
	}
	if v := m["request_error"]; present(v) {
		o := ref.object(v)
		r.Error = new(RequestError)
		if v, ok := o["code"]; ok {
			r.Error.Code = ref.str(v)
		}
		if v, ok := o["message"]; ok {
			r.Error.Message = ref.str(v)
		}
		if v, ok := o["retryable"]; ok {
			r.Error.Retryable = ref.bool(v)
		}
	}
	if ref.bad {
		return nil, errors.New("a field of the wrong type")
	}
	return r, r.Validate()
}

func present(v json.RawMessage) bool { return len(v) > 0 && string(v) != "null" }

// nullIsBad turns an absent or null required array into one nobody takes.
func nullIsBad(v json.RawMessage) json.RawMessage {
	if present(v) {
		return v
	}
	return json.RawMessage(`0`)
}

// refDecoder decodes single values and remembers a failure.
type refDecoder struct{ bad bool }

var integer = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)

func (d *refDecoder) uint(v json.RawMessage, most uint64) uint64 {
	n, err := strconv.ParseUint(string(v), 10, 64)
	d.bad = d.bad || err != nil || n > most || !integer.Match(v)
	return n
}

func (d *refDecoder) uint32(v json.RawMessage) uint32 { return uint32(d.uint(v, math.MaxUint32)) }
func (d *refDecoder) uint64(v json.RawMessage) uint64 { return d.uint(v, math.MaxUint64) }

func (d *refDecoder) float(v json.RawMessage) (f float64) {
	d.bad = d.bad || !present(v) || json.Unmarshal(v, &f) != nil
	return f
}

func (d *refDecoder) str(v json.RawMessage) (s string) {
	d.bad = d.bad || !present(v) || json.Unmarshal(v, &s) != nil
	return s
}

func (d *refDecoder) bool(v json.RawMessage) (b bool) {
	d.bad = d.bad || !present(v) || json.Unmarshal(v, &b) != nil
	return b
}

func (d *refDecoder) object(v json.RawMessage) (m map[string]json.RawMessage) {
	d.bad = d.bad || json.Unmarshal(v, &m) != nil
	return m
}

func refSlice[T any](d *refDecoder, v json.RawMessage, element func(json.RawMessage) T) []T {
	if !present(v) {
		return nil
	}
	var raws []json.RawMessage
	if json.Unmarshal(v, &raws) != nil {
		d.bad = true
		return nil
	}
	out := make([]T, 0, len(raws))
	for _, raw := range raws {
		out = append(out, element(raw))
	}
	return out
}

// referenceTokens refuses what encoding/json lets pass: known keys twice,
// numbers beyond a float64 that nobody decodes, deep nesting.
func referenceTokens(line []byte) error {
	dec := json.NewDecoder(bytes.NewReader(line))
	type level struct {
		object, atValue bool
		key             string
		seen            map[string]bool
	}
	var stack []level
	path := func() string {
		var keys []string
		for _, l := range stack[:max(0, len(stack)-1)] {
			keys = append(keys, l.key)
		}
		return strings.Join(keys, ".")
	}
	for {
		tok, err := dec.Token()
		if err != nil {
			if err.Error() == "EOF" {
				return nil
			}
			return err
		}
		if delim, ok := tok.(json.Delim); ok && (delim == '}' || delim == ']') {
			stack = stack[:len(stack)-1]
			continue
		}
		if len(stack) > 0 {
			top := &stack[len(stack)-1]
			if top.object && !top.atValue {
				top.key, top.atValue = tok.(string), true
				if top.seen[top.key] && knownAt(path(), top.key) {
					return errors.New("a known key twice")
				}
				top.seen[top.key] = true
				continue
			}
			top.atValue = false
		}
		if delim, ok := tok.(json.Delim); ok {
			stack = append(stack, level{object: delim == '{', seen: map[string]bool{}})
		}
		if len(stack) > maxDepth || len(stack) == maxDepth && !isDelim(tok) {
			return errors.New("too deep")
		}
	}
}

func isDelim(tok json.Token) bool {
	_, ok := tok.(json.Delim)
	return ok
}

func knownAt(path, key string) bool {
	switch path {
	case "":
		return fieldOf([]byte(key)) != unknown
	case "itl_summary":
		return key == "mean_ms" || key == "count"
	case "request_error":
		return key == "code" || key == "message" || key == "retryable"
	case "tap_times":
		return key == "ttft_ms" || key == "itl_ms"
	case "itl_ctx":
		return key == "num_running" || key == "prefill_tokens"
	}
	return false
}

// seedLines are the lines of the accept table and some of real traces.
func seedLines(f *testing.F) [][]byte {
	var lines [][]byte
	for _, tt := range acceptCases {
		if len(tt.line) < 4096 {
			lines = append(lines, []byte(tt.line))
		}
	}
	for _, path := range goldenPaths(f) {
		lines = append(lines, bytes.SplitN(inflate(f, path), []byte("\n"), 4)[:3]...)
	}
	return lines
}

// FuzzRecord holds the parser to encoding/json: both take the same lines, and
// read the same values from them.
func FuzzRecord(f *testing.F) {
	for _, line := range seedLines(f) {
		f.Add(line)
	}
	half := regexp.MustCompile(`(?i)\\ud[89a-f]`)
	f.Fuzz(func(t *testing.T, line []byte) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || bytes.ContainsRune(line, '\n') || half.Match(line) {
			return // surrogates: encoding/json replaces halves, the parser refuses them
		}
		var got Record
		gotErr := new(recordParser).parse(line, &got)
		want, wantErr := reference(line)
		if (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("the parser says %v, encoding/json says %v", gotErr, wantErr)
		}
		if gotErr != nil {
			return
		}
		if diff := cmp.Diff(want, &got); diff != "" {
			t.Fatalf("(-encoding/json +parser):\n%s", diff)
		}
		again := got
		require.NoErrorf(t, (&recordParser{keepExtra: true}).parse(line, &again), "with extra keys kept")
		again.Extra = nil
		if diff := cmp.Diff(want, &again); diff != "" {
			t.Fatalf("into used storage (-encoding/json +parser):\n%s", diff)
		}
	})
}

// FuzzReader feeds any bytes: the reader must end, name a line in its error,
// and what it read must survive being written and read again.
func FuzzReader(f *testing.F) {
	for _, line := range seedLines(f) {
		f.Add(line, false, false)
	}
	rec := []byte("\n{\"meta\":{\"x\":[]}}\n\n{\"prompt_tokens\":1,\"output_tokens\":1,\"ttft_ms\":1,\"y\":\"\\ud83d\"}\n")
	f.Add(rec, false, true)
	packed := pack(f, string(rec))
	f.Add(packed, true, true)
	f.Add(packed[:len(packed)-5], true, false)
	f.Add(append(bytes.Clone(packed), packed...), true, false)
	f.Fuzz(func(t *testing.T, data []byte, gz, strict bool) {
		opt := Options{Strict: strict, KeepExtra: true, MaxBytes: 1 << 20}
		tr, err := readBytes(data, gz, opt)
		if err != nil {
			wantError(t, err, "t.jsonl: line ")
			return
		}
		if strict && len(tr.Warnings) > 0 {
			t.Fatalf("a strict read warns: %q", tr.Warnings)
		}
		out := writeTrace(t, gz, tr.Meta, tr.Records...)
		back, err := readBytes(out, gz, Options{Strict: strict, KeepExtra: true})
		require.NoErrorf(t, err, "what was written is refused\n%q", out)
		for i := range tr.Records {
			tr.Records[i].Line = i + 2
		}
		if diff := cmp.Diff(tr.Records, back.Records); diff != "" {
			t.Fatalf("records (-read +read again):\n%s", diff)
		}
		if diff := cmp.Diff(tr.Meta, back.Meta); diff != "" {
			t.Fatalf("meta (-read +read again):\n%s", diff)
		}
	})
}

// FuzzSteps is FuzzReader for the sidecar.
func FuzzSteps(f *testing.F) {
	f.Add([]byte(stepLine))
	f.Add([]byte("{\"ts_ms\":1e5,\"scheduler\":{}}\n\n{\"ts_ms\":2,\"scheduler\":{\"prefix_cache_stats\":{}}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		steps, err := readSteps(string(data))
		if err != nil {
			wantError(t, err, "s.jsonl: line ")
		}
		var out bytes.Buffer
		w := NewStepWriter(&out, false)
		for i := range steps {
			require.NoError(t, w.Write(&steps[i]))
			steps[i].Line = i + 1
		}
		back, err := readSteps(out.String())
		require.NoError(t, err)
		if diff := cmp.Diff(steps, back); diff != "" {
			t.Fatalf("(-read +read again):\n%s", diff)
		}
	})
}
