package frontendsuite

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

// reply is an answer of the OpenAI side, put together if it was streamed.
type reply struct {
	status   int
	text     string
	tokens   []uint32
	ids      bool   // token ids were there at all
	finish   string // of the last part that had one
	stop     string // stop_reason as JSON
	ends     int    // parts with a finish reason
	late     bool   // something was said after the first of them
	parts    int    // with choices
	choices  int    // most of one part
	usage    *openai.Usage
	failure  string // the error object, or the body of an answer that is none
	logprobs int    // entries
	role     string // of a chat message
	wrong    []string
	err      error // why there is no answer
}

// refused reports whether the answer says no, in whichever way.
func (a *reply) refused() bool { return a.status != 200 || a.failure != "" || a.finish == "error" }

func readReply(a openai.Answer, streamed bool) *reply {
	r := &reply{status: a.Status}
	switch {
	case a.Status != 200:
		r.failure = excerpt(string(a.Body))
	case streamed:
		r.readEvents(a)
	default:
		r.take(a.Body)
		if r.parts == 0 && r.failure == "" {
			r.failure = excerpt(string(a.Body))
		}
	}
	return r
}

// readEvents reads a stream to its end, strictly: what a lenient reader passes over
// is listed in wrong.
func (r *reply) readEvents(a openai.Answer) {
	if !strings.HasPrefix(a.Type, "text/event-stream") {
		r.complain("Content-Type is %q, want text/event-stream", a.Type)
	}
	body := strings.ReplaceAll(string(a.Body), "\r\n", "\n")
	blocks := strings.Split(body, "\n\n")
	if last := blocks[len(blocks)-1]; last != "" {
		r.complain("the stream ends without a blank line, with %q", excerpt(last))
	} else {
		blocks = blocks[:len(blocks)-1]
	}
	done := false
	for i, block := range blocks {
		data, ok := strings.CutPrefix(block, "data: ")
		switch {
		case strings.HasPrefix(block, ":"): // a comment
		case done:
			r.complain("event %d comes after [DONE]: %q", i, excerpt(block))
		case !ok || strings.Contains(data, "\n"):
			r.complain("event %d is not one line that begins with \"data: \": %q", i, excerpt(block))
		case data == openai.Done:
			done = true
		default:
			r.take([]byte(data))
		}
	}
	if !done {
		r.complain("no data: [DONE] after %d events", len(blocks))
	}
}

func (r *reply) complain(format string, args ...any) {
	const most = 5
	if len(r.wrong) < most {
		r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
	}
}

// take adds the JSON text of one part.
func (r *reply) take(text []byte) {
	var p openai.Response
	if err := json.Unmarshal(text, &p); err != nil {
		r.complain("%v in %q", err, excerpt(string(text)))
		return
	}
	if p.Failed() {
		r.failure = excerpt(string(p.Error))
	}
	if p.Usage != nil {
		r.usage = p.Usage
	}
	if len(p.Choices) > 0 {
		r.parts++
		r.choices = max(r.choices, len(p.Choices))
	}
	for _, c := range p.Choices {
		if c.Index == 0 {
			r.choose(&c)
		}
	}
}

func (r *reply) choose(c *openai.Choice) {
	text := c.Content()
	for _, m := range []*openai.Message{c.Message, c.Delta} {
		if m != nil && m.Role != "" {
			r.role = m.Role
		}
	}
	r.late = r.late || r.ends > 0 && (text != "" || len(c.TokenIDs) > 0)
	r.text += text
	r.tokens = append(r.tokens, c.TokenIDs...)
	r.ids = r.ids || c.TokenIDs != nil
	if c.Logprobs != nil {
		r.logprobs += len(c.Logprobs.Tokens) + len(c.Logprobs.Content)
	}
	if c.FinishReason != nil {
		r.ends++
		r.finish = *c.FinishReason
		r.stop = string(c.StopReason)
	}
}

// excerpt bounds what is quoted of an answer.
func excerpt(text string) string { return safetext.Clip(strings.TrimSpace(text), 300) }
