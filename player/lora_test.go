package player

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func adapted(name string, id int64) change {
	return func(r *protocol.Request) {
		r.LoRA = &protocol.LoRA{Name: name, ID: id, Path: "/adapters/" + name}
	}
}

// Real frontends load adapters, use them, and are told which do not exist.
func TestRealFrontendsLoadLoRAs(t *testing.T) {
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) {
			f := fronted(t, version, Options{Source: counting{}, LoRA: LoRAOptions{MaxLoRAs: 2, Names: []string{"known"}}},
				"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES="+os.TempDir())
			named := func(name string) object { return object{"lora_name": name, "lora_path": t.TempDir()} }
			if status, answer := f.post("/v1/load_lora_adapter", named("unknown")); status == http.StatusOK {
				t.Errorf("an adapter was loaded that does not exist: %v", answer)
			}
			if version == "0.32.0" {
				// It writes adapters as 0.31 did, and its engine refuses them: Expected `bool`, got `null` - at `$[4]`.
				status, answer := f.post("/v1/load_lora_adapter", named("known"))
				if status != http.StatusInternalServerError || !strings.Contains(fmt.Sprint(answer), "lora_request.load_inplace: expected bool, found nil") {
					t.Errorf("load: HTTP %d, %v", status, answer)
				}
				return
			}
			for _, step := range []struct {
				name, path string
				body       object
				status     int
				said       string
			}{
				{"load", "/v1/load_lora_adapter", named("known"), http.StatusOK, ""},
				{"use", "/v1/completions", completing(20, 2, object{"model": "known"}), http.StatusOK, "[25 26] length"},
				{"use none", "/v1/completions", completing(20, 2, nil), http.StatusOK, "[25 26] length"},
				{"unload", "/v1/unload_lora_adapter", named("known"), http.StatusOK, ""},
				{"use it again", "/v1/completions", completing(20, 2, object{"model": "known"}), http.StatusNotFound, ""},
			} {
				status, answer := f.post(step.path, step.body)
				if status != step.status || step.said != "" && saidIn(answer) != step.said {
					t.Errorf("%s: HTTP %d, %s; want %d, %s", step.name, status, saidIn(answer), step.status, step.said)
				}
			}
		})
	}
}
