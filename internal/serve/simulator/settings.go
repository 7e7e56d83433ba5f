package simulator

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/serve/builtin"
)

const latencyCalculator = "latency-calculator"

// calculateTimes lets only the times count that a value of --latency-calculator chooses, or that have precedence over
// others without it.
func calculateTimes(calculator string, k *latency.Knobs) error {
	constant := k.TimeToFirstToken != 0 || k.TimeToFirstTokenStdDev != 0
	transfer := k.TransferLatency != 0 || k.TransferLatencyStdDev != 0
	switch calculator {
	case "":
	case "constant":
		constant, transfer = true, true
	case "per-token":
		constant, transfer = false, false
		k.TimeToFirstToken, k.TimeToFirstTokenStdDev, k.TransferLatency, k.TransferLatencyStdDev = 0, 0, 0, 0
	default:
		return fmt.Errorf("unknown latency-calculator %s, supported calculators are: constant and per-token", calculator)
	}
	if constant {
		k.PrefillOverhead, k.PrefillPerToken, k.PrefillStdDev = 0, 0, 0
	}
	if transfer {
		k.TransferPerToken, k.TransferStdDev = 0, 0
	}
	if k.PrefillOverhead == 0 && k.PrefillPerToken == 0 {
		k.PrefillStdDev = 0 // of nothing
	}
	if k.TransferPerToken == 0 {
		k.TransferStdDev = 0
	}
	return nil
}

// Times are times that can be changed while engines run. It is a [latency.Model].
type Times struct{ now atomic.Pointer[latency.Knobs] }

func newTimes(k latency.Knobs) *Times {
	t := &Times{}
	t.now.Store(&k)
	return t
}

// Duration implements [latency.Model].
func (t *Times) Duration(s *latency.Step) time.Duration { return t.now.Load().Duration(s) }

// Transfer implements [latency.Model].
func (t *Times) Transfer(r *latency.Request) time.Duration { return t.now.Load().Transfer(r) }

// Settings are what /admin/config shows and changes next to faults and fake metrics. It is [edge.Settings].
type Settings struct {
	s       *Flags
	mu      sync.Mutex
	servers []*builtin.Server
	rate    int              // image-emission-rate
	image   [2]time.Duration // time-to-generate-image, and its deviation
}

// Settings returns those of a server with these options.
func (s *Flags) Settings(o *builtin.Simulator) *Settings {
	return &Settings{s: s, rate: o.ImageRate, image: [2]time.Duration{o.ImageTime, o.ImageTimeStdDev}}
}

// Add makes changes count for more frontends.
func (s *Settings) Add(servers ...*builtin.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers = append(s.servers, servers...)
}

// durationsOf are the times of a [latency.Knobs] by their keys.
func durationsOf(k *latency.Knobs) map[string]*time.Duration {
	return map[string]*time.Duration{
		"time-to-first-token": &k.TimeToFirstToken, "time-to-first-token-std-dev": &k.TimeToFirstTokenStdDev,
		"inter-token-latency": &k.InterTokenLatency, "inter-token-latency-std-dev": &k.InterTokenLatencyStdDev,
		"prefill-overhead": &k.PrefillOverhead, "prefill-time-per-token": &k.PrefillPerToken, "prefill-time-std-dev": &k.PrefillStdDev,
		"kv-cache-transfer-latency": &k.TransferLatency, "kv-cache-transfer-latency-std-dev": &k.TransferLatencyStdDev,
		"kv-cache-transfer-time-per-token": &k.TransferPerToken, "kv-cache-transfer-time-std-dev": &k.TransferStdDev,
	}
}

// Shown implements [edge.Settings].
func (s *Settings) Shown() map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := *s.s.Times.now.Load()
	shown := map[string]any{"time-factor-under-load": max(k.LoadFactor, 1), "image-emission-rate": s.rate, "model": s.s.model, "mode": s.s.get("mode")}
	if shown["mode"] == "text" {
		shown["mode"] = "random"
	}
	for key, d := range durationsOf(&k) {
		shown[key] = d.String()
	}
	for i := range Table {
		f := &Table[i]
		own := s.s.flags.Lookup(f.Name)
		if _, has := shown[f.Name]; has || own == nil || f.Action != Same && f.Action != Own || slices.Contains(secretFlags, f.Name) {
			continue
		}
		text := own.Value.String()
		if v := s.s.values[f.Name]; v != nil && f.Kind == "list" {
			shown[f.Name] = append([]string{}, v.texts...)
			continue
		} else if v != nil {
			text = s.s.text(f.Name)
		}
		shown[f.Name] = typed(f.Kind, text)
	}
	shown["max-model-len"] = s.s.modelLen
	return shown
}

// secretFlags are not shown here: other settings show faults and metrics, and keys are files.
var secretFlags = []string{"config", "seed", "fake-metrics", "failure-injection-rate", "failure-types", "ssl-certfile", "ssl-keyfile"}

// typed is a value of a flag as JSON has it.
func typed(kind, text string) any {
	switch kind {
	case "int", "number":
		return json.Number(cmp.Or(text, "0"))
	case "bool", "switch":
		return text == "true"
	case "list":
		return strings.FieldsFunc(strings.Trim(text, "[]"), func(r rune) bool { return r == ',' })
	}
	return text
}

// Change implements [edge.Settings]. A time is a text such as "1s", or a number of nanoseconds, as in the simulator.
func (s *Settings) Change(values map[string]json.RawMessage) (apply func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, rate, image, calculator := *s.s.Times.now.Load(), s.rate, s.image, s.s.text(latencyCalculator)
	durations := durationsOf(&k)
	durations["time-to-generate-image"], durations["time-to-generate-image-std-dev"] = &image[0], &image[1]
	for key, raw := range values {
		var text string
		var number float64
		isText := json.Unmarshal(raw, &text) == nil
		if !isText {
			err = json.Unmarshal(raw, &number)
		}
		at, isTime := durations[key]
		switch {
		case key == latencyCalculator && isText:
			calculator, err = text, calculateTimes(text, new(latency.Knobs)) // of k when all values are there
		case key == "time-factor-under-load":
			if k.LoadFactor = number; err == nil && number < 1 {
				err = errors.New("time factor under load cannot be less than 1.0")
			}
		case key == "image-emission-rate":
			if rate = int(number); err == nil && (number < 0 || number > 100) {
				err = errors.New("image emission rate should be between 0 and 100")
			}
		case isTime && isText:
			*at, err = time.ParseDuration(text)
		case isTime:
			*at = time.Duration(number)
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		delete(values, key)
	}
	if err := calculateTimes(calculator, &k); err != nil {
		return nil, err
	}
	if err := k.Validate(); err != nil {
		return nil, err
	}
	if image[0] < 0 || image[1] < 0 || float64(image[1]) > 0.3*float64(image[0]) {
		return nil, errors.New("time to generate image standard deviation cannot be more than 30% of time to generate image")
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.s.Times.now.Store(&k)
		s.rate, s.image = rate, image
		if calculator != s.s.text(latencyCalculator) {
			s.s.values[latencyCalculator].texts = []string{calculator}
		}
		for _, server := range s.servers {
			server.SetImages(rate, image[0], image[1])
		}
	}, nil
}
