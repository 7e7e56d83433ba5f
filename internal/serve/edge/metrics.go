package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An Engine is what the metrics of vLLM's Python server tell of an engine, and vllm-rs does not.
type Engine struct {
	Index int
	// CacheConfig are the labels of vllm:cache_config_info, but for engine.
	CacheConfig []Label
	// MaxLoRAs is how many adapters can run in one step; 0 is an engine without LoRA.
	MaxLoRAs int
	// SleepLevel is 0 for an engine that is awake.
	SleepLevel int
}

// A Label is one of a metric.
type Label struct{ Name, Value string }

// metricsType is that of the text format.
const metricsType = "text/plain; version=0.0.4; charset=utf-8"

// maxMetrics bounds what is read of a frontend's metrics, in bytes.
const maxMetrics = 16 << 20

// serveMetrics answers with fake metrics, or completes those of the frontend. It leaves the request to the frontend where it has
// nothing to add.
func (e *Edge) serveMetrics(w http.ResponseWriter, r *http.Request, x *exchange) bool {
	var text []byte
	switch fake := e.fake.Load(); {
	case fake != nil:
		text = fake.render(e.opt.ModelName, time.Now(), e.opt.Simulator)
		if e.opt.Simulator != nil {
			break // it shows these alone
		}
		text = complete(text, e.engines(x.rank.index), e.opt.ModelName, time.Now(), e.opt.Simulator)
	case e.opt.Engines == nil:
		return false
	default:
		answer, err := e.get(r, x, "/metrics")
		if err != nil {
			e.answerAway(w, r, err)
			return true
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			e.relay(w, r, answer, x, nil)
			return true
		}
		text, err = io.ReadAll(io.LimitReader(answer.Body, maxMetrics))
		if err != nil {
			e.answerAway(w, r, err)
			return true
		}
		text = complete(text, e.engines(x.rank.index), e.opt.ModelName, time.Now(), e.opt.Simulator)
	}
	w.Header().Set("Content-Type", metricsType)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // the client may be gone
	return true
}

func (e *Edge) engines(rank int) []Engine {
	if e.opt.Engines == nil {
		return nil
	}
	return e.opt.Engines(rank)
}

// complete adds to metrics in the text format what the Python server of vLLM exports beside them.
func complete(text []byte, engines []Engine, model string, now time.Time, simulator *Simulator) []byte {
	if len(engines) == 0 {
		return text
	}
	maxLoRAs := 0
	for _, e := range engines {
		maxLoRAs = max(maxLoRAs, e.MaxLoRAs)
	}
	const lora = "vllm:lora_requests_info"
	var out bytes.Buffer
	has := make(map[string]bool) // a sample of it, or its type
	labelled := false
	for line := range bytes.Lines(text) {
		name := line[:max(0, bytes.IndexAny(line, "{ \n"))]
		if bytes.HasPrefix(line, []byte("# ")) {
			if words := bytes.Fields(line); len(words) > 2 {
				has[string(words[2])] = true
				if maxLoRAs > 0 && string(words[2]) == lora {
					continue // written anew, with its samples
				}
			}
		} else if maxLoRAs > 0 && string(name) == lora {
			if !labelled {
				writeHead(&out, lora, "gauge", loraHelp)
				labelled = true
			}
			if !bytes.Contains(line, []byte("max_lora=")) {
				line = bytes.Replace(line, []byte("{"), fmt.Appendf(nil, `{max_lora="%d",`, maxLoRAs), 1)
			}
		}
		out.Write(line)
	}
	if out.Len() > 0 && out.Bytes()[out.Len()-1] != '\n' {
		out.WriteByte('\n')
	}
	if maxLoRAs > 0 && !labelled {
		writeHead(&out, lora, "gauge", loraHelp)
		writeSample(&out, lora, float64(now.UnixMilli())/1000, Label{"max_lora", strconv.Itoa(maxLoRAs)}, Label{"running_lora_adapters", ""}, Label{"waiting_lora_adapters", ""})
	}
	if cache := "vllm:cache_config_info"; !has[cache] && engines[0].CacheConfig != nil {
		writeHead(&out, cache, "gauge", "Information of the LLMEngine CacheConfig")
		for _, e := range engines {
			labels := append(slices.Clone(e.CacheConfig), Label{"engine", strconv.Itoa(e.Index)})
			if simulator != nil {
				labels = []Label{{"block_size", strconv.Itoa(simulator.BlockSize)}, {"num_gpu_blocks", strconv.Itoa(simulator.Blocks)}}
			}
			writeSample(&out, cache, 1, labels...)
		}
	}
	if state := "vllm:engine_sleep_state"; !has[state] {
		writeHead(&out, state, "gauge", "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "+
			"weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.")
		for _, e := range engines {
			for level, name := range []string{"awake", "weights_offloaded", "discard_all"} {
				value := 0.0
				if e.SleepLevel == level {
					value = 1
				}
				writeSample(&out, state, value, Label{"engine", strconv.Itoa(e.Index)}, Label{"model_name", model}, Label{"sleep_state", name})
			}
		}
	}
	return out.Bytes()
}

const loraHelp = "Running stats on lora requests."

func writeHead(out *bytes.Buffer, name, kind, help string) {
	fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func writeSample(out *bytes.Buffer, name string, value float64, labels ...Label) {
	writeNumber(out, name, strconv.FormatFloat(value, 'f', -1, 64), labels)
}

func writeNumber(out *bytes.Buffer, name, value string, labels []Label) {
	out.WriteString(name)
	for i, l := range labels {
		out.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(out, `%s="%s"`, l.Name, labelEscapes.Replace(l.Value))
	}
	if len(labels) > 0 {
		out.WriteByte('}')
	}
	fmt.Fprintf(out, " %s\n", value)
}

// FakeMetrics are the fake metrics of llm-d-inference-sim, with its names.
type FakeMetrics struct {
	Running    *FakeValue       `json:"running-requests,omitempty"`
	Waiting    *FakeValue       `json:"waiting-requests,omitempty"`
	CacheUsage *FakeValue       `json:"kv-cache-usage,omitempty"`
	LoRAs      []FakeLoRA       `json:"loras,omitzero"`
	TTFT       []int64          `json:"ttft-buckets-values,omitempty"`
	TPOT       []int64          `json:"tpot-buckets-values,omitempty"`
	RequestTPO []int64          `json:"request-tpot-buckets-values,omitempty"`
	E2E        []int64          `json:"e2erl-buckets-values,omitempty"`
	Queue      []int64          `json:"queue-time-buckets-values,omitempty"`
	Inference  []int64          `json:"inf-time-buckets-values,omitempty"`
	Prefill    []int64          `json:"prefill-time-buckets-values,omitempty"`
	Decode     []int64          `json:"decode-time-buckets-values,omitempty"`
	Prompts    []int64          `json:"request-prompt-tokens,omitempty"`
	Generated  []int64          `json:"request-generation-tokens,omitempty"`
	MaxTokens  []int64          `json:"request-params-max-tokens,omitempty"`
	MaxGen     []int64          `json:"request-max-generation-tokens,omitempty"`
	Success    map[string]int64 `json:"request-success-total,omitempty"`
	PromptSum  *int64           `json:"total-prompt-tokens,omitempty"`
	GenSum     *int64           `json:"total-generation-tokens,omitempty"`
	Hits       *int64           `json:"prefix-cache-hits,omitempty"`
	Queries    *int64           `json:"prefix-cache-queries,omitempty"`
}

// FakeLoRA is a sample of vllm:lora_requests_info.
type FakeLoRA struct {
	Running   string  `json:"running"`
	Waiting   string  `json:"waiting"`
	Timestamp float64 `json:"timestamp"`
}

// UnmarshalJSON takes also an object in a string, as the simulator has it in YAML.
func (l *FakeLoRA) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		data = []byte(text)
	}
	type plain FakeLoRA
	return strict(data, (*plain)(l))
}

// FakeValue is a number, or a function of the time: fun:start:end:period.
type FakeValue struct {
	fun        string // "" for the number start
	start, end float64
	period     time.Duration
}

// UnmarshalJSON reads a number or the text of a function.
func (v *FakeValue) UnmarshalJSON(data []byte) error {
	*v = FakeValue{}
	if json.Unmarshal(data, &v.start) == nil {
		return nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	parts := strings.Split(text, ":")
	if len(parts) != 4 {
		return fmt.Errorf("%q: need func:start:end:period in fake metric generation function", text)
	}
	var errs [3]error
	v.fun = parts[0]
	v.start, errs[0] = strconv.ParseFloat(parts[1], 64)
	v.end, errs[1] = strconv.ParseFloat(parts[2], 64)
	v.period, errs[2] = time.ParseDuration(parts[3])
	switch {
	case errors.Join(errs[:]...) != nil || math.IsNaN(v.start+v.end) || math.IsInf(v.start+v.end, 0) || v.period <= 0:
		return fmt.Errorf("%q: want two numbers and a time above 0 behind the name of the function", text)
	case !slices.Contains([]string{"oscillate", "ramp", "rampreset", "squarewave"}, v.fun):
		return fmt.Errorf("%q: want oscillate, ramp, rampreset or squarewave", text)
	}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (v FakeValue) MarshalJSON() ([]byte, error) {
	if v.fun == "" {
		return json.Marshal(v.start)
	}
	return json.Marshal(fmt.Sprintf("%s:%v:%v:%s", v.fun, v.start, v.end, v.period))
}

// at is the value so long after the start.
func (v *FakeValue) at(passed time.Duration) float64 {
	periods := float64(passed) / float64(v.period)
	_, part := math.Modf(periods)
	switch v.fun {
	case "oscillate": // from start to end and back
		return v.start + (v.end-v.start)*(1-math.Cos(2*math.Pi*part))/2
	case "ramp":
		return v.start + (v.end-v.start)*min(periods, 1)
	case "rampreset":
		return v.start + (v.end-v.start)*part
	case "squarewave":
		if part < 0.5 {
			return v.start
		}
		return v.end
	}
	return v.start
}

func strict(data []byte, to any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("something follows the JSON object")
	}
	return nil
}

// ParseFakeMetrics reads a JSON object.
func ParseFakeMetrics(data []byte) (*FakeMetrics, error) {
	var m FakeMetrics
	if err := strict(data, &m); err != nil {
		return nil, err
	}
	return &m, m.check()
}

// updated is a copy with other values for the members of data.
func (m *FakeMetrics) updated(data []byte) (*FakeMetrics, error) {
	old, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	var both, change map[string]json.RawMessage
	if err := json.Unmarshal(old, &both); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &change); err != nil {
		return nil, err
	}
	maps.DeleteFunc(change, func(_ string, value json.RawMessage) bool { return string(value) == "null" }) // as if it was not there
	for histogram, total := range map[string]string{"request-prompt-tokens": "total-prompt-tokens", "request-generation-tokens": "total-generation-tokens"} {
		if change[histogram] != nil && change[total] == nil {
			delete(both, total) // it follows from the new lengths
		}
	}
	maps.Copy(both, change)
	whole, err := json.Marshal(both)
	if err != nil {
		return nil, err
	}
	return ParseFakeMetrics(whole)
}

// Bounds of the buckets of histograms, as in vLLM, in seconds.
var (
	ttftBounds    = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	tpotBounds    = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	latencyBounds = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	tokenBounds   = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000}
	finishReasons = []string{"stop", "length", "abort", "error", "repetition", "tool_calls", "remote_decode", "cache_threshold"}
)

// A fakeHistogram is a metric, with counts of its buckets or with observed values.
type fakeHistogram struct {
	key, name string
	bounds    []float64
	counts    []int64
	observed  bool
}

func (m *FakeMetrics) histograms() []fakeHistogram {
	return []fakeHistogram{
		{"ttft-buckets-values", "vllm:time_to_first_token_seconds", ttftBounds, m.TTFT, false},
		{"tpot-buckets-values", "vllm:inter_token_latency_seconds", tpotBounds, m.TPOT, false},
		{"tpot-buckets-values", "vllm:time_per_output_token_seconds", tpotBounds, m.TPOT, false},
		{"request-tpot-buckets-values", "vllm:request_time_per_output_token_seconds", tpotBounds, m.RequestTPO, false},
		{"e2erl-buckets-values", "vllm:e2e_request_latency_seconds", latencyBounds, m.E2E, false},
		{"queue-time-buckets-values", "vllm:request_queue_time_seconds", latencyBounds, m.Queue, false},
		{"inf-time-buckets-values", "vllm:request_inference_time_seconds", latencyBounds, m.Inference, false},
		{"prefill-time-buckets-values", "vllm:request_prefill_time_seconds", latencyBounds, m.Prefill, false},
		{"decode-time-buckets-values", "vllm:request_decode_time_seconds", latencyBounds, m.Decode, false},
		{"request-prompt-tokens", "vllm:request_prompt_tokens", tokenBounds, m.Prompts, true},
		{"request-generation-tokens", "vllm:request_generation_tokens", tokenBounds, m.Generated, true},
		{"request-params-max-tokens", "vllm:request_params_max_tokens", tokenBounds, m.MaxTokens, true},
		{"request-max-generation-tokens", "vllm:request_max_num_generation_tokens", tokenBounds, m.MaxGen, true},
	}
}

func (m *FakeMetrics) check() error {
	for _, v := range []*FakeValue{m.Running, m.Waiting} {
		if v != nil && (v.start < 0 || v.end < 0) {
			return errors.New("fake metrics request counters cannot be negative")
		}
	}
	if v := m.CacheUsage; v != nil && (min(v.start, v.end) < 0 || max(v.start, v.end) > 1) {
		return errors.New("fake metrics KV cache usage must be between 0 and 1")
	}
	for _, h := range m.histograms() {
		if !h.observed && len(h.counts) > len(h.bounds)+1 {
			return fmt.Errorf("%s: fake array is too long: %d numbers for %d buckets", h.key, len(h.counts), len(h.bounds)+1)
		}
		if slices.ContainsFunc(h.counts, func(n int64) bool { return n < 0 }) {
			return fmt.Errorf("%s: fake metrics cannot contain negative values", h.key)
		}
	}
	for reason, n := range m.Success {
		if !slices.Contains(finishReasons, reason) {
			return fmt.Errorf("invalid finish reason in request-success-total: %s (valid reasons: %s)", reason, strings.Join(finishReasons, ", "))
		}
		if n < 0 {
			return fmt.Errorf("fake metrics request-success-total.%s cannot be negative, got %d", reason, n)
		}
	}
	for _, n := range []*int64{m.PromptSum, m.GenSum, m.Hits, m.Queries} {
		if n != nil && *n < 0 {
			return errors.New("fake metrics counters cannot be negative")
		}
	}
	if (m.Hits == nil) != (m.Queries == nil) {
		return errors.New("fake metrics prefix-cache-hits and prefix-cache-queries must be specified together")
	}
	if m.Hits != nil && *m.Hits > *m.Queries {
		return errors.New("fake metrics prefix-cache-hits cannot exceed prefix-cache-queries")
	}
	return nil
}

// A fakeState is fake metrics whose functions have begun.
type fakeState struct {
	metrics *FakeMetrics
	since   time.Time
}

func newFakeState(m *FakeMetrics, since time.Time) *fakeState { return &fakeState{m, since} }

// render writes the metrics. In those of the simulator there is no label engine, and finished_reason is finish_reason.
func (s *fakeState) render(model string, now time.Time, simulator *Simulator) []byte {
	var out bytes.Buffer
	m, own := s.metrics, []Label{{"model_name", model}, {"engine", "0"}}
	var adapter []Label
	if simulator != nil {
		own = own[:1]
		adapter = []Label{{"max_lora", strconv.Itoa(simulator.MaxLoRAs)}}
	}
	gauge := func(name, help string, v *FakeValue, whole bool) {
		if v == nil {
			v = &FakeValue{}
		}
		value := v.at(now.Sub(s.since))
		if whole {
			value = math.Trunc(value)
		}
		writeHead(&out, name, "gauge", help)
		writeSample(&out, name, value, own...)
	}
	gauge("vllm:num_requests_running", "Number of requests in model execution batches.", m.Running, true)
	gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", m.Waiting, true)
	gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", m.CacheUsage, false)
	if loras := m.LoRAs; loras != nil {
		if len(loras) == 0 { // none runs any more
			loras = []FakeLoRA{{Timestamp: float64(now.Unix())}}
		}
		writeHead(&out, "vllm:lora_requests_info", "gauge", loraHelp)
		for _, l := range loras {
			labels, form := append(slices.Clone(adapter), Label{"running_lora_adapters", l.Running}, Label{"waiting_lora_adapters", l.Waiting}), byte('f')
			if simulator != nil {
				form = 'g' // as 1.257894567e+09
			}
			writeNumber(&out, "vllm:lora_requests_info", strconv.FormatFloat(l.Timestamp, form, -1, 64), labels)
		}
	}
	for _, h := range m.histograms() {
		if len(h.counts) == 0 {
			continue // an empty list takes the metric away
		}
		if simulator != nil && h.observed {
			h.observed, h.bounds = false, simulator.tokenBounds()
		}
		h.render(&out, own)
		if simulator != nil && h.key == "request-max-generation-tokens" {
			h.name = "vllm:max_num_generation_tokens"
			h.render(&out, own)
		}
	}
	counter := func(name, help string, n *int64, parts []int64) {
		total := 0.0
		for i, part := range parts {
			if simulator != nil { // as many requests of the length that the bucket ends with
				bounds := simulator.tokenBounds()
				part *= int64(bounds[min(i, len(bounds)-1)])
			}
			total += float64(part)
		}
		if n != nil {
			total = float64(*n)
		} else if len(parts) == 0 {
			return
		}
		writeHead(&out, name, "counter", help)
		writeSample(&out, name+"_total", total, own...)
	}
	counter("vllm:prompt_tokens", "Number of prefill tokens processed.", m.PromptSum, m.Prompts)
	counter("vllm:generation_tokens", "Number of generation tokens processed.", m.GenSum, m.Generated)
	counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", m.Queries, nil)
	counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", m.Hits, nil)
	if m.Success != nil {
		writeHead(&out, "vllm:request_success", "counter", "Count of successfully processed requests.")
		for _, reason := range slices.Sorted(maps.Keys(m.Success)) {
			labels := append(slices.Clone(own), Label{"finished_reason", reason})
			if simulator != nil {
				labels = append([]Label{{"finish_reason", reason}}, own...)
			}
			writeSample(&out, "vllm:request_success_total", float64(m.Success[reason]), labels...)
		}
	}
	return out.Bytes()
}

// render writes a histogram. Of counts the sum is not known: each is taken for the middle of its bucket.
func (h *fakeHistogram) render(out *bytes.Buffer, labels []Label) {
	counts, sum := make([]int64, len(h.bounds)+1), 0.0
	if h.observed {
		for _, n := range h.counts {
			at, _ := slices.BinarySearch(h.bounds, float64(n))
			counts[at]++
			sum += float64(n)
		}
	} else {
		copy(counts, h.counts)
		for i, n := range counts {
			low := 0.0
			if i > 0 {
				low = h.bounds[i-1]
			}
			sum += float64(n) * (low + h.bounds[min(i, len(h.bounds)-1)]) / 2
		}
	}
	writeHead(out, h.name, "histogram", "Fake histogram of "+h.key+".")
	var total int64
	for i, n := range counts {
		total += n
		bound := "+Inf"
		if i < len(h.bounds) {
			bound = strconv.FormatFloat(h.bounds[i], 'f', -1, 64)
		}
		writeSample(out, h.name+"_bucket", float64(total), append(slices.Clone(labels), Label{"le", bound})...)
	}
	writeSample(out, h.name+"_sum", sum, labels...)
	writeSample(out, h.name+"_count", float64(total), labels...)
}
