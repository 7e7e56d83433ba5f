package wirediff_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

var update = flag.Bool("update", false, "rewrite the expected renderings under testdata")

// formats are the renderers, by the ending of their files.
var formats = map[string]func(io.Writer, *wirediff.Diff) error{
	"txt":   wirediff.Text,
	"json":  wirediff.JSON,
	"md":    func(w io.Writer, d *wirediff.Diff) error { return wirediff.Markdown(w, d, wirediff.MarkdownLimit) },
	"sarif": func(w io.Writer, d *wirediff.Diff) error { return wirediff.SARIF(w, d, "compat.toml", "1.0.0") },
}

func render(t testing.TB, format string, d *wirediff.Diff) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, formats[format](&b, d))
	return b.Bytes()
}

// fixture is a comparison with something at every level, a gap, and a profile that
// this build cannot speak.
func fixture(t testing.TB) *wirediff.Diff {
	t.Helper()
	a, b := load(t, "0.33"), load(t, "0.33")
	a.Commit, b.Commit = "0123abcde", ""
	b.Line, b.Version = "0.34", "0.34.0.dev12+gabcdef012"
	output := b.Structs["EngineCoreOutput"]
	output.At = 200
	output.Fields = append(output.Fields,
		protocol.Field{Name: "trailer", Type: "int | None", At: 240}, protocol.Field{Name: "checksum", Type: "int", Required: true, At: 241})
	for i := range output.Fields {
		output.Fields[i].At = 210 + i
	}
	b.Structs["EngineCoreOutput"] = output
	lora := b.Structs["LoRARequest"]
	lora.Module, lora.At = "vllm/lora/types.py", 5
	b.Structs["LoRARequest"] = lora
	b.Utilities["defragment"] = protocol.Utility{
		Signature: "(self, share: float=0.5) -> None", Result: protocol.ResultNone,
		Place: protocol.Place{Module: "vllm/v1/engine/core.py", At: 700}, Calls: []string{"share"},
	}
	delete(b.Utilities, "pin_lora")
	pin := a.Utilities["pin_lora"]
	pin.Place = protocol.Place{Module: "vllm/v1/engine/core.py", At: 650}
	a.Utilities["pin_lora"] = pin
	metrics := b.Metrics()
	renamed, waiting, latency := metrics["vllm:kv_cache_usage_perc"], metrics["vllm:num_requests_waiting"], metrics["vllm:e2e_request_latency_seconds"]
	waiting.Labels, latency.Buckets = append(waiting.Labels, "priority"), "0.5, 5, 50"
	metrics["vllm:kv_cache_usage_ratio"], metrics["vllm:num_requests_waiting"], metrics["vllm:e2e_request_latency_seconds"] = renamed, waiting, latency
	metrics["vllm:queue_depth"] = protocol.Metric{Kind: "gauge", Labels: []string{"model_name"}, Place: protocol.Place{Module: "vllm/v1/metrics/loggers.py", At: 9}}
	delete(metrics, "vllm:kv_cache_usage_perc")
	delete(metrics, "vllm:watermark_requests_total")
	b.SetMetrics(metrics)
	d := wirediff.Compare(a, b)
	d.Gaps = append(d.Gaps, wirediff.Gap{
		Release: b.Version, Place: protocol.Place{Module: "vllm/v1/outputs.py", At: 7}, What: "struct LogprobsLists", Why: "it is declared under a condition",
	})
	return d
}

func TestRenderings(t *testing.T) {
	d := fixture(t)
	for format := range formats {
		t.Run(format, func(t *testing.T) {
			path := filepath.Join("testdata", "fixture", "diff."+format+".golden")
			got := render(t, format, d)
			if *update {
				require.NoError(t, os.WriteFile(path, got, 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(string(want), string(got)), "-want +got")
			if again := render(t, format, fixture(t)); !bytes.Equal(got, again) {
				t.Error("a second run writes something else")
			}
		})
	}
}

// TestForeignText: nothing that stands in a profile is a command to a terminal or a
// CI, nor markup.
func TestForeignText(t *testing.T) {
	const bad = "::error::x ##vso[y] <script>|`*[a](b)\x1b[31m\u202e\U000e0001 \n::add-mask::z\r\x00\x7f\xff"
	d := edited(func(p *protocol.Profile) { p.Commit = bad; p.SetMetrics(map[string]protocol.Metric{}) }, func(p *protocol.Profile) {
		p.Version, p.Commit = bad, bad
		p.Constants[bad] = protocol.Constant{Place: protocol.Place{Module: bad, At: 3}, Value: raw("1")}
		p.Utilities[bad] = protocol.Utility{Signature: bad, Result: bad, Calls: []string{bad}}
		p.SetMetrics(map[string]protocol.Metric{bad: {Kind: bad, Labels: []string{bad}, Buckets: bad, Place: protocol.Place{Module: bad, At: 3}}})
		p.Messages[bad] = protocol.Message{Encoding: bad}
		p.Enums[bad] = protocol.Enum{}
		s := parseStruct(t, "map a:int")
		s.Fields[0].Name, s.Fields[0].Type, s.Module = bad, bad, bad
		p.Structs[bad] = s
	})
	d.Gaps = append(d.Gaps, wirediff.Gap{Release: bad, Place: protocol.Place{Module: bad}, What: bad, Why: bad})
	d.Codec = bad
	command := regexp.MustCompile(`(?m)^\s*::|##\w*\[`)
	for format := range formats {
		got := string(render(t, format, d))
		require.Equal(t, command.FindString(got), "", "%s has a command", format)
		for _, r := range got {
			if !unicode.IsPrint(r) && r != '\n' {
				t.Errorf("%s has %U", format, r)
				break
			}
		}
		require.True(t, format != "md" || (!strings.Contains(got, "<script") && !strings.Contains(got, "`") && !strings.Contains(got, "[a]")), "markup gets through:\n%s", got)
		require.True(t, (format != "json" && format != "sarif") || json.Valid([]byte(got)), "%s is no JSON", format)
	}
	var back struct{ Codec string }
	if err := json.Unmarshal(render(t, "json", d), &back); err != nil || back.Codec != strings.ToValidUTF8(bad, "\uFFFD") {
		t.Errorf("the JSON says %q: %v", back.Codec, err)
	}
}

// TestMarkdownLimit: what does not fit is counted, the least important first.
func TestMarkdownLimit(t *testing.T) {
	d := wirediff.Compare(load(t, "0.23"), load(t, "0.33"))
	counts := regexp.MustCompile(`Left out because the text would be too long: .*(\d+) informational changes?(, \d+ NIXL changes)?\.`)
	for _, limit := range []int{700, 2000, 5000, 20000} {
		var b strings.Builder
		require.NoError(t, wirediff.Markdown(&b, d, limit))
		got := b.String()
		if len(got) > limit || !counts.MatchString(got) {
			t.Errorf("limit %d: %d bytes, which end in %q", limit, len(got), got[max(0, len(got)-200):])
		}
		shown := strings.Count(got, "<code>")
		left := 0
		for _, n := range regexp.MustCompile(`(\d+) (breaking|compatible|informational) change`).FindAllStringSubmatch(got[strings.LastIndex(got, "Left out"):], -1) {
			var count int
			require.NoError(t, json.Unmarshal([]byte(n[1]), &count))
			left += count
		}
		require.True(t, shown+left == len(d.Changes), "limit %d: %d shown and %d left out of %d", limit, shown, left, len(d.Changes))
	}
	if whole := render(t, "md", d); bytes.Contains(whole, []byte("Left out")) || len(whole) > wirediff.MarkdownLimit {
		t.Errorf("all of ten lines does not fit into an issue: %d bytes", len(whole))
	}
}
