package frontendsuite

import (
	_ "embed"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/check"
)

const CodeHTTPUsage check.Code = "H012" // the usage is missing, or counts other tokens

//go:embed usage.md
var usageCodes string

var usage = check.Check{Name: Usage, Codes: usageCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*frontendCase).usage)}

// usage checks the counts, and that they come when they were asked for.
func (k *frontendCase) usage() {
	script := plainly(k.words(9))
	script.CachedTokens = 4
	prompt, body := k.says(script)
	told := false
	for _, form := range []object{{}, streamed, {"stream": true, "stream_options": object{"include_usage": false}}, {"stream": true}} {
		what := fmt.Sprintf("usage, %v", form)
		r := k.post(what, body.with(form))
		if r == nil {
			continue
		}
		if _, asked := form["stream_options"]; form["stream"] == true && (!asked || form["stream_options"].(object)["include_usage"] == false) {
			k.Asserted++
			if r.Usage != nil {
				k.fail(check.Failed(CodeHTTPUsage, "%s: the answer has a usage that was not requested", what).Within(-1, "usage").Compared("none", "usage"))
			}
			continue
		}
		k.counted(what, r, len(prompt), len(script.Tokens))
		if r.Usage != nil && r.Usage.PromptTokensDetails != nil && r.Usage.PromptTokensDetails.CachedTokens != nil {
			told = true
			k.Asserted++
			if got := *r.Usage.PromptTokensDetails.CachedTokens; got != script.CachedTokens {
				k.fail(check.Failed(CodeHTTPUsage, "%s: %d cached tokens, but the engine sent %d", what, got, script.CachedTokens).
					Within(-1, "usage.prompt_tokens_details.cached_tokens").Compared(script.CachedTokens, got))
			}
		}
	}
	if !told {
		k.AddNote("cached tokens are not in its usage (prompt_tokens_details)")
	}
}
