package edge

import (
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// Fake metrics of the simulator have its labels, and counts of buckets for numbers of tokens.
func TestSimulatorFakeMetrics(t *testing.T) {
	m, err := ParseFakeMetrics([]byte(`{"request-prompt-tokens": [10, 20, 30], "request-max-generation-tokens": [1], "request-success-total": {"stop": 2}, "tpot-buckets-values": [],
		"loras": [{"running": "a,b", "waiting": "c", "timestamp": 1257894567}]}`))
	require.NoError(t, err)
	now := time.Now()
	got := string(newFakeState(m, now).render("m", now, &Simulator{MaxLoRAs: 3, MaxModelLen: 1024}))
	for _, want := range []string{
		`vllm:request_prompt_tokens_bucket{model_name="m",le="2"} 30`,
		`vllm:request_prompt_tokens_bucket{model_name="m",le="1000"} 60`,
		`vllm:prompt_tokens_total{model_name="m"} 200`,
		`vllm:max_num_generation_tokens_bucket{model_name="m",le="1"} 1`,
		`vllm:request_success_total{finish_reason="stop",model_name="m"} 2`,
		`vllm:lora_requests_info{max_lora="3",running_lora_adapters="a,b",waiting_lora_adapters="c"} 1.257894567e+09`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("want %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, "inter_token_latency") {
		t.Errorf("an empty list does not take its metric away:\n%s", got)
	}
	if m, err = m.updated([]byte(`{"request-prompt-tokens": [1], "loras": []}`)); err != nil {
		t.Fatal(err)
	}
	got = string(newFakeState(m, time.Unix(5, 0)).render("m", time.Unix(5, 0), &Simulator{MaxLoRAs: 3, MaxModelLen: 1024}))
	if !strings.Contains(got, `{max_lora="3",running_lora_adapters="",waiting_lora_adapters=""} 5`+"\n") || !strings.Contains(got, `vllm:prompt_tokens_total{model_name="m"} 1`+"\n") {
		t.Errorf("an empty list of adapters, and other lengths:\n%s", got)
	}
	if m, err = m.updated([]byte(`{"request-prompt-tokens": []}`)); err != nil {
		t.Fatal(err)
	}
	if got := string(newFakeState(m, now).render("m", now, nil)); strings.Contains(got, "prompt_tokens_total") {
		t.Errorf("an empty list does not take its total away:\n%s", got)
	}
	if strings.Contains(got, "engine=") || strings.Contains(got, `le="2000"`) {
		t.Errorf("a label engine, or a bucket beyond the context:\n%s", got)
	}
}
