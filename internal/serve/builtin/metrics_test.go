package builtin

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// notHere are the metrics of the Python server that the builtin frontend does not have, with the reason for each.
var notHere = map[string]string{
	"vllm:cache_config_info":        "the server in front adds it (internal/serve/edge): it knows the options of the engine",
	"vllm:engine_sleep_state":       "the server in front adds it",
	"vllm:lora_requests_info":       "once an adapter was used; before that, the server in front adds it",
	"vllm:corrupted_requests_total": "vLLM has it with VLLM_COMPUTE_NANS_IN_LOGITS=1 only; a player has no logits",
	"vllm:watermark_requests_total": "vLLM has it with a watermark_config only, which a player does not take",

	"vllm:diffusion_num_denoising_steps_total":  "of diffusion models, whose statistics a player gives as those of speculative decoding",
	"vllm:diffusion_num_canvas_positions_total": "of diffusion models",
	"vllm:diffusion_num_committed_tokens_total": "of diffusion models",

	"vllm:websocket_connections_active":          "this frontend has no WebSocket endpoint (/v1/realtime)",
	"vllm:websocket_connections_total":           "no WebSocket endpoint",
	"vllm:websocket_connection_duration_seconds": "no WebSocket endpoint",
}

// TestMetricsOfTheLine: names, kinds, labels and buckets are those that the Python server of the newest line declares.
// A new line with a new metric fails here: serve it, or say in notHere why not.
func TestMetricsOfTheLine(t *testing.T) {
	const context = 8192
	m := newMetrics("m", 2, context)
	m.measure(operation{sleepOperation, "sleep"})()
	m.measure(operation{weightOperation, "update"})()
	for i := range m.engines {
		m.step(i, &player.EngineStats{
			External: &protocol.CacheStats{}, Spec: &protocol.SpecDecodingStats{AcceptedPerPos: []int{1}},
			Evictions: []protocol.Eviction{{Lifetime: 3, Idle: 2, ReuseGaps: []float64{1, 1}}},
		})
	}
	text := string(m.render())
	got := served(t, text)
	profile, err := protocol.LoadProfile(protocol.Newest())
	require.NoError(t, err)
	want := map[string]string{}
	for name, declared := range profile.Metrics() {
		if notHere[name] == "" {
			if declared.Buckets == "build_1_2_5_buckets(max_model_len)" {
				declared.Buckets = numbers(tokenBounds(context))
			}
			want[name] = describe(declared.Kind, declared.Labels, declared.Buckets)
		}
	}
	require.NoDiff(t, cmp.Diff(want, got), "-declared by vLLM %s +served", profile.Version)
	for name := range notHere {
		if _, is := profile.Metrics()[name]; !is || got[name] != "" {
			t.Errorf("%s is not declared by vLLM %s, or is served: remove it from notHere", name, profile.Version)
		}
	}
	for _, sample := range []string{
		`vllm:kv_block_lifetime_seconds_sum{model_name="m",engine="1"} 3`, `vllm:kv_block_idle_before_evict_seconds_sum{model_name="m",engine="1"} 2`,
		`vllm:kv_block_reuse_gap_seconds_count{model_name="m",engine="1"} 2`,
	} {
		require.True(t, strings.Contains(text, sample+"\n"), "there is no %s", sample)
	}
}

// served are the metrics of a text, by name: their kinds, labels and buckets.
func served(t *testing.T, text string) map[string]string {
	metrics, kinds := map[string]string{}, map[string]string{}
	labels, bounds := map[string][]string{}, map[string][]float64{}
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); words[0] == "#" {
			if words[1] == "TYPE" {
				kinds[words[2]] = words[3]
			}
			continue
		}
		name, rest, _ := strings.Cut(line, "{")
		inner, _, _ := strings.Cut(rest, "}")
		if bare, is := strings.CutSuffix(name, "_bucket"); is {
			_, bound, _ := strings.Cut(inner, `le="`)
			if number, err := strconv.ParseFloat(strings.TrimSuffix(bound, `"`), 64); err == nil && bound != `+Inf"` && !slices.Contains(bounds[bare], number) {
				bounds[bare] = append(bounds[bare], number)
			}
			continue
		}
		bare := name
		for _, suffix := range []string{"_sum", "_count"} {
			if kinds[strings.TrimSuffix(name, suffix)] == "histogram" {
				bare = strings.TrimSuffix(name, suffix)
			}
		}
		labels[bare] = nil
		for label := range strings.SplitSeq(inner, `",`) {
			name, _, _ := strings.Cut(label, "=")
			labels[bare] = append(labels[bare], name)
		}
	}
	for name, kind := range kinds {
		require.True(t, labels[name] != nil, "%s has no sample", name)
		metrics[name] = describe(kind, labels[name], numbers(bounds[name]))
	}
	return metrics
}

func describe(kind string, labels []string, buckets string) string {
	return fmt.Sprintf("%s {%s} %s", kind, strings.Join(slices.Sorted(slices.Values(labels)), ","), buckets)
}

func numbers(bounds []float64) string {
	texts := make([]string, len(bounds))
	for i, bound := range bounds {
		texts[i] = strconv.FormatFloat(bound, 'f', -1, 64)
	}
	return strings.Join(texts, ", ")
}

// TestMetricsOfAdapters: pickers read which adapters run.
func TestMetricsOfAdapters(t *testing.T) {
	url, _, _ := serving(t, func(o *player.Options) { o.LoRA.MaxLoRAs = 1 })
	for _, request := range [][2]string{{"/v1/load_lora_adapter", `{"lora_name": "a", "lora_path": "/tmp"}`}, {"/v1/completions", `{"model": "a", "prompt": "Hi"}`}} {
		answer, err := post(t.Context(), url, request[0], request[1])
		require.NoError(t, err)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d", request[0], answer.StatusCode)
		}
	}
	answer, err := http.Get(url + "/metrics")
	require.NoError(t, err)
	defer answer.Body.Close()
	page, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	if want := `vllm:lora_requests_info{max_lora="1",running_lora_adapters="a",waiting_lora_adapters=""} `; !strings.Contains(string(page), want) {
		t.Errorf("the metrics lack %s", want)
	}
}
