package simulator

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
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/serve/edge"
)

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

// Fake are fake metrics that can be changed. It is [edge.Settings].
type Fake struct {
	// Model is a label.
	Model string
	// Imitate makes them those of the simulator: there is no label engine, finished_reason is finish_reason, and
	// numbers of tokens are counts of buckets.
	Imitate bool
	// MaxLoRAs is a label with Imitate, and MaxModelLen the largest bound of numbers of tokens.
	MaxLoRAs, MaxModelLen int

	mu      sync.Mutex
	metrics *FakeMetrics // nil without any
	since   time.Time    // when its functions began
}

// Set shows metrics from now on; nil shows the real ones.
func (f *Fake) Set(m *FakeMetrics, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.metrics, f.since = m, now
}

// Metrics is for [edge.Policy].
func (f *Fake) Metrics() (text []byte, complete bool) {
	f.mu.Lock()
	m, since := f.metrics, f.since
	f.mu.Unlock()
	if m == nil {
		return nil, false
	}
	return f.render(m, time.Since(since), time.Now()), f.Imitate
}

// Shown implements [edge.Settings].
func (f *Fake) Shown() map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return map[string]any{fakeMetricsKey: f.metrics}
}

const fakeMetricsKey = "fake-metrics"

// Change implements [edge.Settings].
func (f *Fake) Change(values map[string]json.RawMessage) (apply func(), err error) {
	value, given := values[fakeMetricsKey]
	if !given {
		return func() {}, nil
	}
	delete(values, fakeMetricsKey)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.metrics == nil {
		server := "server"
		if f.Imitate {
			server = "simulator"
		}
		return nil, fmt.Errorf("the %s is reporting real metrics; fake metrics cannot be updated", server)
	}
	m, err := f.metrics.updated(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", fakeMetricsKey, err)
	}
	return func() { f.Set(m, time.Now()) }, nil
}

// ServeHTTP answers POST /fake_metrics, which older releases of the simulator have in the place of /admin/config.
func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, edge.MaxAdmin))
	if err == nil {
		var apply func()
		if apply, err = f.Change(map[string]json.RawMessage{fakeMetricsKey: body}); err == nil {
			apply()
		}
	}
	if err != nil {
		edge.Refuse(w, http.StatusInternalServerError, "Failed to update fake metrics: "+err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// bounds are those of buckets of numbers of tokens.
func (f *Fake) bounds() []float64 {
	n := 1
	for n < len(tokenBounds) && tokenBounds[n] <= float64(f.MaxModelLen) {
		n++
	}
	return tokenBounds[:n]
}

// render writes metrics so long after the start of their functions.
func (f *Fake) render(m *FakeMetrics, passed time.Duration, now time.Time) []byte {
	var out bytes.Buffer
	own := []edge.Label{{Name: "model_name", Value: f.Model}, {Name: "engine", Value: "0"}}
	var adapter []edge.Label
	if f.Imitate {
		own = own[:1]
		adapter = []edge.Label{{Name: "max_lora", Value: strconv.Itoa(f.MaxLoRAs)}}
	}
	gauge := func(name, help string, v *FakeValue, whole bool) {
		if v == nil {
			v = &FakeValue{}
		}
		value := v.at(passed)
		if whole {
			value = math.Trunc(value)
		}
		edge.WriteHead(&out, name, "gauge", help)
		edge.WriteSample(&out, name, value, own...)
	}
	gauge("vllm:num_requests_running", "Number of requests in model execution batches.", m.Running, true)
	gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", m.Waiting, true)
	gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", m.CacheUsage, false)
	if loras := m.LoRAs; loras != nil {
		if len(loras) == 0 { // none runs any more
			loras = []FakeLoRA{{Timestamp: float64(now.Unix())}}
		}
		edge.WriteHead(&out, "vllm:lora_requests_info", "gauge", edge.LoRAHelp)
		for _, l := range loras {
			labels, form := append(slices.Clone(adapter), edge.Label{Name: "running_lora_adapters", Value: l.Running}, edge.Label{Name: "waiting_lora_adapters", Value: l.Waiting}), byte('f')
			if f.Imitate {
				form = 'g' // as 1.257894567e+09
			}
			edge.WriteNumber(&out, "vllm:lora_requests_info", strconv.FormatFloat(l.Timestamp, form, -1, 64), labels)
		}
	}
	for _, h := range m.histograms() {
		if len(h.counts) == 0 {
			continue // an empty list takes the metric away
		}
		if f.Imitate && h.observed {
			h.observed, h.bounds = false, f.bounds()
		}
		h.render(&out, own)
		if f.Imitate && h.key == "request-max-generation-tokens" {
			h.name = "vllm:max_num_generation_tokens"
			h.render(&out, own)
		}
	}
	counter := func(name, help string, n *int64, parts []int64) {
		total := 0.0
		for i, part := range parts {
			if f.Imitate { // as many requests of the length that the bucket ends with
				bounds := f.bounds()
				part *= int64(bounds[min(i, len(bounds)-1)])
			}
			total += float64(part)
		}
		if n != nil {
			total = float64(*n)
		} else if len(parts) == 0 {
			return
		}
		edge.WriteHead(&out, name, "counter", help)
		edge.WriteSample(&out, name+"_total", total, own...)
	}
	counter("vllm:prompt_tokens", "Number of prefill tokens processed.", m.PromptSum, m.Prompts)
	counter("vllm:generation_tokens", "Number of generation tokens processed.", m.GenSum, m.Generated)
	counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", m.Queries, nil)
	counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", m.Hits, nil)
	if m.Success != nil {
		edge.WriteHead(&out, "vllm:request_success", "counter", "Count of successfully processed requests.")
		for _, reason := range slices.Sorted(maps.Keys(m.Success)) {
			labels := append(slices.Clone(own), edge.Label{Name: "finished_reason", Value: reason})
			if f.Imitate {
				labels = append([]edge.Label{{Name: "finish_reason", Value: reason}}, own...)
			}
			edge.WriteSample(&out, "vllm:request_success_total", float64(m.Success[reason]), labels...)
		}
	}
	return out.Bytes()
}

// render writes a histogram. Of counts the sum is not known: each is taken for the middle of its bucket.
func (h *fakeHistogram) render(out *bytes.Buffer, labels []edge.Label) {
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
	edge.WriteHead(out, h.name, "histogram", "Fake histogram of "+h.key+".")
	var total int64
	for i, n := range counts {
		total += n
		bound := "+Inf"
		if i < len(h.bounds) {
			bound = strconv.FormatFloat(h.bounds[i], 'f', -1, 64)
		}
		edge.WriteSample(out, h.name+"_bucket", float64(total), append(slices.Clone(labels), edge.Label{Name: "le", Value: bound})...)
	}
	edge.WriteSample(out, h.name+"_sum", sum, labels...)
	edge.WriteSample(out, h.name+"_count", float64(total), labels...)
}
