package frontendsuite

import (
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
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

var update = flag.Bool("update", false, "write what the installed frontends send to the folder expected")

// adapters are the variables of a frontend that takes adapters at run time.
var adapters = []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES=" + adapterPath}

// TestExpected: the vllm-rs of each line sends what the folder expected has.
func TestExpected(t *testing.T) {
	versions := testenv.FrontendVersions()
	if *update {
		versions = testenv.Frontends(t)
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			server, err := vllmrs.Start(t.Context(), vllmrs.Options{
				Binary: testenv.Frontend(t, version), ModelDir: testenv.ModelDir(t), Args: []string{"--tool-call-parser", "hermes"}, Env: adapters,
			})
			require.NoError(t, err)
			defer server.Close()
			expectedOf(t, version, 0, check.FrontendUnderTest{Handshake: server.Handshake(), URL: server.URL()})
		})
	}
}

// TestExpectedOfPython: so does the Python server of each installed engine.
func TestExpectedOfPython(t *testing.T) {
	versions := strings.Fields(os.Getenv("VLLM_VCR_ENGINES"))
	if len(versions) == 0 {
		t.Skip("set VLLM_VCR_ENGINES to the releases to start, such as \"0.33.0 0.27.1\": .ci/peers engine installs them")
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			expectedOf(t, version, 1, check.FrontendUnderTest{
				Command: filepath.Join(testenv.PeersDir(t), "engines", version, "bin", "python") + " -m vllm.entrypoints.cli.main serve {model} " +
					"--data-parallel-size 1 --data-parallel-size-local 0 --data-parallel-address 127.0.0.1 --data-parallel-rpc-port {handshake_port} " +
					"--host 127.0.0.1 --port {http_port} --dtype float32 --max-model-len 4096 --enable-lora --enable-auto-tool-choice --tool-call-parser hermes",
				Model: testenv.ModelDir(t), Env: append([]string{"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "VLLM_CPU_KVCACHE_SPACE=1"}, adapters...),
			})
		})
	}
}

// expectedOf compares what a frontend sends with what is expected of one of the references, or writes it.
func expectedOf(t *testing.T, version string, reference int, frontend check.FrontendUnderTest) {
	line := compat.Line{Name: protocol.LineOf(version), Tag: "v" + version}
	env := &check.Env{
		Context: t.Context(), Log: slog.New(slog.DiscardHandler), Frontend: &frontend,
		Timeouts: check.Timeouts{Connect: 5 * time.Minute, Idle: 20 * time.Second},
	}
	s, err := openFrontend(t.Context(), env, &check.Golden{}, line)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.refused)
	k := &frontendCase{frontendSession: s, Outcome: &check.Outcome{}, limit: env.Timeouts.Idle, whole: t.Context(), ctx: s.ctx}
	if *update {
		k.capture(t, "expected/"+line.Name+references[reference].file)
		return
	}
	k.requests()
	k.lora()
	for _, f := range k.Failures {
		t.Errorf("%s %s: %s", f.Code, f.Path, f.Message)
	}
	if got, want := k.reference.frontend, references[reference].name; got != want {
		t.Errorf("it is held to the %s, not to the %s", got, want)
	}
	t.Log(k.Asserted, k.Note)
}

// capture writes what reaches the engine.
func (k *frontendCase) capture(t *testing.T, file string) {
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
	require.NoError(t, os.WriteFile(file, []byte(text.String()), 0o644))
	t.Log(k.notTaken, k.Failures)
}

func asText(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}
