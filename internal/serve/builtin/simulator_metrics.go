package builtin

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// alsoCalled are metrics that the simulator has by another name, or by a name that vLLM had once.
var alsoCalled = map[string]string{
	"vllm:inter_token_latency_seconds":       "vllm:time_per_output_token_seconds",
	"vllm:request_max_num_generation_tokens": "vllm:max_num_generation_tokens",
}

// simulatorMetrics writes metrics as llm-d-inference-sim has them: without the label engine, with finish_reason for
// finished_reason and before the name of the model, and with bounds of buckets without a useless ".0".
func simulatorMetrics(text []byte) []byte {
	out := make([]byte, 0, len(text)+len(text)/4)
	var copied []byte // of a metric that has two names
	family, twin := "", ""
	for line := range bytes.Lines(text) {
		line := string(line)
		if head, isHead := strings.CutPrefix(line, "# HELP "); isHead {
			out = append(out, copied...)
			copied = copied[:0]
			family, _, _ = strings.Cut(head, " ")
			twin = alsoCalled[family]
		}
		if !strings.HasPrefix(line, "#") {
			line = simulatorSample(line)
		}
		out = append(out, line...)
		if twin != "" {
			copied = append(copied, strings.Replace(line, family, twin, 1)...)
		}
	}
	return append(out, copied...)
}

// simulatorSample is one line.
func simulatorSample(line string) string {
	name, rest, ok := strings.Cut(line, "{")
	labels, value, closed := strings.Cut(rest, "} ")
	if !ok || !closed {
		return line
	}
	if before, after, found := strings.Cut(labels, `,engine="`); found {
		_, after, _ = strings.Cut(after, `"`)
		labels = before + after
	}
	if before, reason, found := strings.Cut(labels, `,finished_reason="`); found {
		labels = `finish_reason="` + reason + "," + before
	}
	if before, bound, found := strings.Cut(labels, `,le="`); found {
		if n, err := strconv.ParseFloat(strings.TrimSuffix(bound, `"`), 64); err == nil && bound != `+Inf"` {
			labels = before + `,le="` + strconv.FormatFloat(n, 'g', -1, 64) + `"`
		}
	}
	return name + "{" + labels + "} " + value
}

// appendAdapters writes which adapters ran and waited at the same time, and when that was so last.
func (m *metrics) appendAdapters(b []byte, most int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.engines[0].adapters) == 0 {
		return b
	}
	b = append(b, "# HELP vllm:lora_requests_info Running stats on lora requests.\n# TYPE vllm:lora_requests_info gauge\n"...)
	for i := range m.engines {
		for names, at := range m.engines[i].adapters {
			b = fmt.Appendf(b, "vllm:lora_requests_info{max_lora=\"%d\",running_lora_adapters=\"%s\",waiting_lora_adapters=\"%s\"} %s\n", most,
				labelEscapes.Replace(names[0]), labelEscapes.Replace(names[1]), strconv.FormatFloat(at, 'f', -1, 64))
		}
	}
	return b
}
