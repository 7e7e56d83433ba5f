package frontendsuite

import (
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
)

// The adapter that is loaded. Nothing in its folder is read.
const adapterName = "vcr-adapter"

var adapterPath = os.TempDir()

// loraFlag lets the Python server take requests with an adapter.
const loraFlag = "--enable-lora"

var lora = check.Check{Name: LoRA, Levels: []check.Level{check.LevelLoRA}, Run: judged((*frontendCase).lora)}

func (k *frontendCase) lora() {
	mark := k.ledger.mark()
	a := k.ask("load an adapter", http.MethodPost, "/v1/load_lora_adapter", object{"lora_name": adapterName, "lora_path": adapterPath})
	if a == nil {
		return
	}
	if a.Status >= 400 && a.Status < 500 {
		k.Asserted = 0
		k.Needs = "if the frontend has LoRA, start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES=" + adapterPath
		k.AddNote(fmt.Sprintf("no adapters at run time: POST /v1/load_lora_adapter: status %d: %s", a.Status, excerpt(string(a.Body))))
		return
	}
	if a.Status != http.StatusOK {
		k.fail(check.Failed(CodeHTTP, "POST /v1/load_lora_adapter: status %d: %s", a.Status, excerpt(string(a.Body))).Compared(http.StatusOK, a.Status))
		return
	}
	k.Asserted++
	if k.await(mark, calls("add_lora")) == nil {
		k.fail(check.Failed(CodeNoCall, "load an adapter: the frontend did not call add_lora of the engine").Within(-1, "UtilityCall.method").Compared("add_lora", "no call"))
	}
	before := len(k.Failures)
	k.compareProbes(func(p probe) bool { return p.Adapter })
	if len(k.Failures) > before && k.reference.is(pythonServer) && k.env.Frontend.Command != "" && !strings.Contains(k.env.Frontend.Command, loraFlag) {
		// The server loads an adapter, and refuses requests for it.
		k.Failures = k.Failures[:before]
		k.Needs = "to have requests with an adapter judged, start the frontend with " + loraFlag
		k.AddNote("requests with an adapter were not judged: the frontend was started without " + loraFlag)
	}
	k.ask("unload an adapter", http.MethodPost, "/v1/unload_lora_adapter", object{"lora_name": adapterName})
}
