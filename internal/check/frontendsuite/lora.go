package frontendsuite

import (
	"fmt"
	"net/http"
	"os"

	"github.com/vllm-vcr/conformance/internal/check"
)

var lora = check.Check{Name: LoRA, Run: judged((*frontendCase).lora)}

func (k *frontendCase) lora() {
	const name = "vcr-adapter"
	mark := k.ledger.mark()
	path := os.TempDir()
	a := k.ask("load an adapter", http.MethodPost, "/v1/load_lora_adapter", object{"lora_name": name, "lora_path": path})
	if a == nil {
		return
	}
	if a.Status >= 400 && a.Status < 500 {
		k.Asserted = 0
		k.Needs = "if the frontend has LoRA, start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES=" + path
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
	mark = k.ledger.mark()
	prompt, body := k.says(plainly(k.words(3)))
	r := k.attempt("a request with an adapter", completionsRoute, body.with(object{"model": name}))
	if r != nil && r.Status >= 400 && r.Status < 500 {
		k.AddNote(fmt.Sprintf("the adapter was loaded, but requests cannot name it: status %d: %s", r.Status, r.Failure))
		return
	}
	if r != nil && r.Refused() {
		k.fail(check.Failed(CodeHTTP, "a request with an adapter: status %d: %s", r.Status, r.Failure).Compared(http.StatusOK, r.Status))
	}
	if h := k.sent("a request with an adapter", mark, prompt); h != nil {
		k.Asserted++
		if h.request.LoRA == nil || h.request.LoRA.Name != name {
			k.fail(check.Failed(CodeCarried, "a request with the adapter %q: lora_request names %+v", name, h.request.LoRA).
				Within(h.number, "EngineCoreRequest.lora_request.lora_name").Compared(name, h.request.LoRA))
		}
	}
	k.ask("unload an adapter", http.MethodPost, "/v1/unload_lora_adapter", object{"lora_name": name})
}
