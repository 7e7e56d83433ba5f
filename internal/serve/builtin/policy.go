package builtin

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/vllm-vcr/conformance/player"
)

// A policy is where another server than vLLM does otherwise. That of vLLM is in [vllmPolicy], and that of
// llm-d-inference-sim in [Server.simulate].
type policy struct {
	// lenient servers take what vLLM refuses: members without an effect, adapters that are there already or are not.
	lenient bool
	// defaultTokens are the max_tokens of a completion; nil is as many as there is room for.
	defaultTokens *uint32
	// repeatCalls repeats the id of a call of a tool in each of its events.
	repeatCalls bool
	// messagePrefix begins the id of an answer of /v1/messages, and pings sends an event ping before its first text.
	messagePrefix string
	pings         bool

	// headers reads headers that change an answer.
	headers func(r *http.Request, p *params)
	// check refuses parameters, and checkPrompt prompts, before vLLM's checks. fits refuses a prompt of so many tokens.
	check       func(p *params) *apiError
	checkIDs    func(q *generateRequest) *apiError
	checkPrompt func(raw json.RawMessage) *apiError
	fits        func(p *params, tokens int) *apiError
	// render writes the prompt of a chat in the place of the template, if it is known.
	render func(c *chat) (text string, known bool, err *apiError)
	// planChat and planCompletion may choose the answers before an engine is asked, and choose that to one prompt.
	planChat       func(q *chatRequest) *apiError
	planCompletion func(q *completionRequest, prompts []prompt)
	choose         func(q *sequence, r *player.EngineRequest, number, n int)
	// admit counts answers that begin, or refuses them. left is called for those that have ended, with the id of one.
	admit func(answers int) *apiError
	left  func(answers int, id string)
	// callID names a call of a tool.
	callID func(prefix, otherwise string) string
	// wantsImage reports whether an image follows an answer, and makeImage waits for it.
	wantsImage func(r *http.Request) bool
	makeImage  func(ctx context.Context)
	// encoded are ec_transfer_params for multimodal items.
	encoded func(items func() []string) any
	// metrics changes the text of the metrics.
	metrics func(text []byte) []byte
}

// vllmPolicy does nothing else than vLLM.
func vllmPolicy() policy {
	return policy{
		defaultTokens:  new(uint32(16)),
		messagePrefix:  "chatcmpl-",
		headers:        func(*http.Request, *params) {},
		check:          func(*params) *apiError { return nil },
		checkIDs:       func(*generateRequest) *apiError { return nil },
		checkPrompt:    func(json.RawMessage) *apiError { return nil },
		fits:           func(*params, int) *apiError { return nil },
		render:         func(*chat) (string, bool, *apiError) { return "", false, nil },
		planChat:       func(*chatRequest) *apiError { return nil },
		planCompletion: func(*completionRequest, []prompt) {},
		choose:         func(*sequence, *player.EngineRequest, int, int) {},
		admit:          func(int) *apiError { return nil },
		left:           func(int, string) {},
		callID:         func(_, otherwise string) string { return otherwise },
		wantsImage:     func(*http.Request) bool { return false },
		makeImage:      func(context.Context) {},
		encoded:        func(func() []string) any { return nil },
		metrics:        func(text []byte) []byte { return text },
	}
}
