package simulator

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestFakeMetrics(t *testing.T) {
	for _, test := range []struct{ name, text, want, err string }{
		{name: "numbers", text: `{"running-requests":3,"kv-cache-usage":0.5}`, want: `vllm:num_requests_running{model_name="m",engine="0"} 3`},
		{name: "usage", text: `{"kv-cache-usage":0.5}`, want: `vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.5`},
		{name: "ramp", text: `{"waiting-requests":"ramp:0:10:10s"}`, want: `vllm:num_requests_waiting{model_name="m",engine="0"} 2`},
		{name: "ramp after its end", text: `{"waiting-requests":"ramp:0:10:1s"}`, want: "waiting{model_name=\"m\",engine=\"0\"} 10\n"},
		{name: "rampreset", text: `{"waiting-requests":"rampreset:10:20:2s"}`, want: "waiting{model_name=\"m\",engine=\"0\"} 12\n"},
		{name: "squarewave", text: `{"waiting-requests":"squarewave:1:9:4s"}`, want: "waiting{model_name=\"m\",engine=\"0\"} 9\n"},
		{name: "oscillate", text: `{"waiting-requests":"oscillate:2:10:5s"}`, want: "waiting{model_name=\"m\",engine=\"0\"} 10\n"},
		{name: "buckets", text: `{"ttft-buckets-values":[1,2]}`, want: "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",engine=\"0\",le=\"0.005\"} 3\n"},
		{name: "count", text: `{"ttft-buckets-values":[1,2]}`, want: "vllm:time_to_first_token_seconds_count{model_name=\"m\",engine=\"0\"} 3\n"},
		{name: "observed", text: `{"request-prompt-tokens":[7,8]}`, want: "vllm:request_prompt_tokens_bucket{model_name=\"m\",engine=\"0\",le=\"10\"} 2\n"},
		{name: "sum of the observed", text: `{"request-prompt-tokens":[7,8]}`, want: "vllm:prompt_tokens_total{model_name=\"m\",engine=\"0\"} 15\n"},
		{name: "total", text: `{"request-prompt-tokens":[7,8],"total-prompt-tokens":99}`, want: "vllm:prompt_tokens_total{model_name=\"m\",engine=\"0\"} 99\n"},
		{name: "success", text: `{"request-success-total":{"stop":4}}`, want: "finished_reason=\"stop\"} 4\n"},
		{name: "adapters", text: `{"loras":[{"running":"a,b","waiting":"c","timestamp":12}]}`, want: "vllm:lora_requests_info{running_lora_adapters=\"a,b\",waiting_lora_adapters=\"c\"} 12\n"},
		{name: "adapters as texts", text: `{"loras":["{\"running\":\"a\"}"]}`, want: `running_lora_adapters="a"`},
		{name: "cache hits", text: `{"prefix-cache-hits":1,"prefix-cache-queries":2}`, want: "vllm:prefix_cache_hits_total{model_name=\"m\",engine=\"0\"} 1\n"},
		{name: "null", text: `{"running-requests":null}`, want: "running{model_name=\"m\",engine=\"0\"} 0\n"},
		{name: "negative", text: `{"running-requests":-1}`, err: "fake metrics request counters cannot be negative"},
		{name: "too much usage", text: `{"kv-cache-usage":"ramp:0:2:1s"}`, err: "fake metrics KV cache usage must be between 0 and 1"},
		{name: "too many buckets", text: `{"tpot-buckets-values":[` + strings.Repeat("1,", 20) + `1]}`, err: "too long: 21 numbers for 20 buckets"},
		{name: "a reason", text: `{"request-success-total":{"bored":4}}`, err: "invalid finish reason in request-success-total: bored"},
		{name: "a function", text: `{"running-requests":"sine:0:1:1s"}`, err: "want oscillate, ramp, rampreset or squarewave"},
		{name: "half a function", text: `{"running-requests":"ramp:0:1"}`, err: "need func:start:end:period"},
		{name: "no time", text: `{"running-requests":"ramp:0:1:0s"}`, err: "a time above 0"},
		{name: "hits alone", text: `{"prefix-cache-hits":1}`, err: "must be specified together"},
		{name: "more hits", text: `{"prefix-cache-hits":3,"prefix-cache-queries":2}`, err: "cannot exceed"},
		{name: "unknown", text: `{"foo":1}`, err: `unknown field "foo"`},
		{name: "two objects", text: `{} {}`, err: "something follows"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := ParseFakeMetrics([]byte(test.text))
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			require.Contains(t, string((&Fake{Model: "m"}).render(m, 2500*time.Millisecond, time.Now())), test.want)
			text, err := json.Marshal(m)
			require.NoError(t, err)
			if again, err := ParseFakeMetrics(text); err != nil || !jsonEqual(again, m) {
				t.Errorf("%s is not read as before: %v", text, err)
			}
		})
	}
}

func jsonEqual(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

// Fake metrics of the simulator have its labels, and counts of buckets for numbers of tokens.
func TestSimulatorFakeMetrics(t *testing.T) {
	m, err := ParseFakeMetrics([]byte(`{"request-prompt-tokens": [10, 20, 30], "request-max-generation-tokens": [1], "request-success-total": {"stop": 2}, "tpot-buckets-values": [],
		"loras": [{"running": "a,b", "waiting": "c", "timestamp": 1257894567}]}`))
	require.NoError(t, err)
	now, imitating := time.Now(), &Fake{Model: "m", Imitate: true, MaxLoRAs: 3, MaxModelLen: 1024}
	got := string(imitating.render(m, 0, now))
	for _, want := range []string{
		`vllm:request_prompt_tokens_bucket{model_name="m",le="2"} 30`,
		`vllm:request_prompt_tokens_bucket{model_name="m",le="1000"} 60`,
		`vllm:prompt_tokens_total{model_name="m"} 200`,
		`vllm:max_num_generation_tokens_bucket{model_name="m",le="1"} 1`,
		`vllm:request_success_total{finish_reason="stop",model_name="m"} 2`,
		`vllm:lora_requests_info{max_lora="3",running_lora_adapters="a,b",waiting_lora_adapters="c"} 1.257894567e+09`,
	} {
		require.True(t, strings.Contains(got, want+"\n"), "want %s in\n%s", want, got)
	}
	require.True(t, !strings.Contains(got, "inter_token_latency"), "an empty list does not take its metric away:\n%s", got)
	if m, err = m.updated([]byte(`{"request-prompt-tokens": [1], "loras": []}`)); err != nil {
		t.Fatal(err)
	}
	got = string(imitating.render(m, 0, time.Unix(5, 0)))
	if !strings.Contains(got, `{max_lora="3",running_lora_adapters="",waiting_lora_adapters=""} 5`+"\n") || !strings.Contains(got, `vllm:prompt_tokens_total{model_name="m"} 1`+"\n") {
		t.Errorf("an empty list of adapters, and other lengths:\n%s", got)
	}
	if m, err = m.updated([]byte(`{"request-prompt-tokens": []}`)); err != nil {
		t.Fatal(err)
	}
	if got := string((&Fake{Model: "m"}).render(m, 0, now)); strings.Contains(got, "prompt_tokens_total") {
		t.Errorf("an empty list does not take its total away:\n%s", got)
	}
	require.True(t, !strings.Contains(got, "engine=") && !strings.Contains(got, `le="2000"`), "a label engine, or a bucket beyond the context:\n%s", got)
}
