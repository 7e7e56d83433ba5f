package frontendsuite

import (
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

var update = flag.Bool("update", false, "write what the installed vllm-rs send to the folder expected")

// TestExpected: the vllm-rs of each line sends what the folder expected has.
func TestExpected(t *testing.T) {
	versions := testenv.FrontendVersions()
	if *update {
		versions = testenv.Frontends(t)
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			line := compat.Line{Name: protocol.LineOf(version), Tag: "v" + version}
			server, err := vllmrs.Start(t.Context(), vllmrs.Options{
				Binary: testenv.Frontend(t, version), ModelDir: testenv.ModelDir(t), Args: []string{"--tool-call-parser", "hermes"},
				Env: []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES=" + adapterPath},
			})
			require.NoError(t, err)
			defer server.Close()
			env := &check.Env{
				Context: t.Context(), Log: slog.New(slog.DiscardHandler), Frontend: &check.FrontendUnderTest{Handshake: server.Handshake(), URL: server.URL()},
				Timeouts: check.Timeouts{Connect: 20 * time.Second, Idle: 20 * time.Second},
			}
			s, err := openFrontend(t.Context(), env, &check.Golden{}, line)
			require.NoError(t, err)
			defer s.Close()
			require.NoError(t, s.refused)
			k := &frontendCase{frontendSession: s, Outcome: &check.Outcome{}, limit: env.Timeouts.Idle, whole: t.Context(), ctx: s.ctx}
			if *update {
				k.capture(t)
				return
			}
			k.requests()
			k.lora()
			for _, f := range k.Failures {
				t.Errorf("%s %s: %s", f.Code, f.Path, f.Message)
			}
			t.Log(k.Asserted, k.Note)
		})
	}
}

// capture writes what reaches the engine.
func (k *frontendCase) capture(t *testing.T) {
	all, err := probes()
	require.NoError(t, err)
	k.learn()
	k.notTaken = map[int][]string{}
	x := expectation{Sampler: k.sampled, Fields: map[string]map[string]any{}}
	whole := map[string]map[string]any{}
	for i, p := range all {
		if p.Adapter {
			k.ask("load an adapter", http.MethodPost, "/v1/load_lora_adapter", object{"lora_name": adapterName, "lora_path": adapterPath})
		}
		h, prompt := k.probe(p)
		if h == nil {
			continue
		}
		if i == 0 {
			x.EOS = uint32(h.request.Sampling.EOSTokenID)
			k.eos = &x.EOS
		}
		got, err := flatten(k.codec.Profile(), h.frames[1])
		require.NoError(t, err)
		k.symbolic(got, h, prompt)
		whole[p.Name] = got
		x.Fields[p.Name] = map[string]any{}
		before := map[string]any{}
		for _, base := range basesOf(all, p.Name) {
			if base != p.Name {
				before = whole[base]
			}
		}
		for _, path := range differing(before, got) {
			x.Fields[p.Name][path] = got[path]
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "{\"sampler\": %s, \"eos\": %d, \"fields\": {", asText(t, x.Sampler), x.EOS)
	separator := "\n"
	for _, name := range slices.Sorted(maps.Keys(x.Fields)) {
		fmt.Fprintf(&text, "%s%s: %s", separator, asText(t, name), asText(t, x.Fields[name]))
		separator = ",\n"
	}
	text.WriteString("\n}}\n")
	require.NoError(t, os.WriteFile("expected/"+k.line.Name+".json", []byte(text.String()), 0o644))
	t.Log(k.notTaken, k.Failures)
}

func asText(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}
