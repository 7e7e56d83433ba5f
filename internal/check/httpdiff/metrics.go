package httpdiff

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

const metricsPath = "/metrics"

// A sample is a line of the text format of Prometheus.
type sample struct {
	name   string
	labels map[string]string
	value  float64
}

// samples reads what can be read of a page of metrics.
func samples(page []byte) (all []sample) {
	for line := range bytes.Lines(page) {
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' {
			continue
		}
		s := sample{labels: map[string]string{}}
		end := strings.IndexAny(text, "{ ")
		if end < 0 {
			continue
		}
		s.name, text = text[:end], text[end:]
		if strings.HasPrefix(text, "{") {
			text = text[1:]
			for {
				name, rest, ok := strings.Cut(strings.TrimLeft(text, ", "), "=")
				if !ok || strings.HasPrefix(name, "}") {
					break
				}
				value, err := strconv.QuotedPrefix(rest)
				if err != nil {
					break
				}
				text = rest[len(value):]
				s.labels[name], _ = strconv.Unquote(value)
			}
			_, text, _ = strings.Cut(text, "}")
		}
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		var err error
		if s.value, err = strconv.ParseFloat(fields[0], 64); err == nil {
			all = append(all, s)
		}
	}
	return all
}

// families are the metrics of a page, with their types and the names of their labels.
func families(page []byte) map[string]string {
	kinds := map[string]string{}
	for line := range bytes.Lines(page) {
		if fields := strings.Fields(string(line)); len(fields) == 4 && fields[0] == "#" && fields[1] == "TYPE" {
			kinds[fields[2]] = fields[3]
		}
	}
	labels := map[string]map[string]bool{}
	for _, s := range samples(page) {
		// OpenMetrics leaves "_total" out of the name of a counter, and the older format makes a gauge of when it was
		// created.
		if strings.HasSuffix(s.name, "_created") && kinds[s.name] == "gauge" {
			continue
		}
		family := familyOf(s.name, kinds)
		if labels[family] == nil {
			labels[family] = map[string]bool{}
		}
		for name := range s.labels {
			labels[family][name] = true
		}
	}
	all := map[string]string{}
	for family, names := range labels {
		all[strings.TrimSuffix(family, "_total")] = kinds[family] + " {" + strings.Join(slices.Sorted(maps.Keys(names)), ",") + "}"
	}
	return all
}

func familyOf(name string, kinds map[string]string) string {
	if kinds[name] != "" {
		return name
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count", "_created", "_total"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && kinds[base] != "" {
			return base
		}
	}
	return name
}

// families compares which metrics there are. Those of the language of a server are its own.
func (c *comparison) families(a, b map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(union(a, b))) {
		if !strings.HasPrefix(name, "vllm:") {
			continue
		}
		if x, y := cmp.Or(a[name], missing), cmp.Or(b[name], missing); x != y {
			c.add("metrics "+name, x, y)
		}
	}
}

// counters are the metrics that a request must change by the same on both sides, with the labels that tell their series
// apart. Times are not among them, nor what depends on how many chunks a stream has.
var counters = map[string]string{
	"vllm:request_success_total":                   "finished_reason",
	"vllm:prompt_tokens_total":                     "",
	"vllm:generation_tokens_total":                 "",
	"vllm:prompt_tokens_cached_total":              "",
	"vllm:prefix_cache_queries_total":              "",
	"vllm:prefix_cache_hits_total":                 "",
	"vllm:request_prompt_tokens_sum":               "",
	"vllm:request_prompt_tokens_count":             "",
	"vllm:request_generation_tokens_sum":           "",
	"vllm:request_generation_tokens_count":         "",
	"vllm:request_max_num_generation_tokens_sum":   "",
	"vllm:request_max_num_generation_tokens_count": "",
	"vllm:request_params_n_sum":                    "",
	"vllm:request_params_n_count":                  "",
	"vllm:request_params_max_tokens_sum":           "",
	"vllm:request_params_max_tokens_count":         "",
	"vllm:time_to_first_token_seconds_count":       "",
	"vllm:e2e_request_latency_seconds_count":       "",
	"vllm:request_queue_time_seconds_count":        "",
	"vllm:request_prefill_time_seconds_count":      "",
	"vllm:request_decode_time_seconds_count":       "",
	"vllm:request_inference_time_seconds_count":    "",
}

// ofTokens are the counters that are not compared when a client ended a stream: how far it came is chance.
var ofTokens = []string{"vllm:generation_tokens_total", "vllm:request_generation_tokens_sum", "vllm:request_max_num_generation_tokens_sum"}

// gauges have the same value on both sides when nothing runs.
var gauges = map[string]string{
	"vllm:num_requests_running": "", "vllm:num_requests_waiting": "", "vllm:kv_cache_usage_perc": "", "vllm:engine_sleep_state": "sleep_state",
}

const succeeded = "vllm:request_success_total"

// A reading has the values of the chosen metrics, summed over engines. A name without labels is in has if there is any
// series of it.
type reading struct {
	values map[string]float64
	has    map[string]bool
}

func read(page []byte) reading {
	r := reading{map[string]float64{}, map[string]bool{}}
	for _, s := range samples(page) {
		label, chosen := counters[s.name]
		if !chosen {
			if label, chosen = gauges[s.name]; !chosen {
				continue
			}
		}
		key := s.name
		if label != "" {
			key += fmt.Sprintf("{%s=%q}", label, s.labels[label])
		}
		r.values[key] += s.value
		r.has[s.name] = true
	}
	return r
}

func (r reading) idle() bool {
	return r.values["vllm:num_requests_running"] == 0 && r.values["vllm:num_requests_waiting"] == 0
}

func (r reading) successes() (n float64) {
	for key, value := range r.values {
		if strings.HasPrefix(key, succeeded) {
			n += value
		}
	}
	return n
}

// readings reads the metrics of both sides; ok is false where one has none.
func readings(ctx context.Context, sides [2]*server) (both [2]reading, ok bool) {
	for i, s := range sides {
		page, err := s.get(ctx, metricsPath)
		if err != nil {
			return both, false
		}
		both[i] = read(page.body)
	}
	return both, true
}

// settlePause is the time between two looks at the metrics.
const settlePause = 20 * time.Millisecond

// effect compares what a request changed in the metrics of both sides. They change a moment after an answer, so a
// difference that no entry expects has the time of settle to go away. What only one side has computed counts for
// neither, and is waited for. It returns the readings from which the next request counts.
func (c *comparison) effect(ctx context.Context, before [2]reading, answers [2]*answer, settle time.Duration, expected func(Difference) bool) [2]reading {
	alike := answers[0].ok() == answers[1].ok()
	for end := time.Now().Add(settle); ; {
		now, ok := readings(ctx, c.sides)
		if !ok {
			return before
		}
		var found []Difference
		if alike {
			found = c.changes(before, now)
		}
		settled := !slices.ContainsFunc(found, func(d Difference) bool { return !expected(d) })
		for i := range now {
			finished := c.request.Generates() && answers[i].ok() && now[i].has[succeeded]
			settled = settled && now[i].idle() && (!finished || now[i].successes() > before[i].successes())
		}
		if settled || !time.Now().Before(end) || ctx.Err() != nil {
			c.found = append(c.found, found...)
			return now
		}
		_ = retry.Pause(ctx, settlePause) // the end of ctx is seen above
	}
}

// changes are the differences between what changed on the two sides.
func (c *comparison) changes(before, now [2]reading) (found []Difference) {
	for _, key := range slices.Sorted(maps.Keys(union(now[0].values, now[1].values))) {
		name, _, _ := strings.Cut(key, "{")
		if !now[0].has[name] || !now[1].has[name] {
			continue // which metrics there are is compared by the request for them
		}
		if c.request.Abort > 0 && slices.Contains(ofTokens, name) || c.depth != Values && name != succeeded {
			continue
		}
		var shown [2]string
		for i := range shown {
			if _, is := gauges[name]; is {
				shown[i] = strconv.FormatFloat(now[i].values[key], 'g', 4, 64)
			} else {
				shown[i] = fmt.Sprintf("%+g", now[i].values[key]-before[i].values[key])
			}
		}
		if shown[0] != shown[1] {
			found = append(found, Difference{Request: c.request.Name, What: "metric " + key, A: shown[0], B: shown[1]})
		}
	}
	return found
}
