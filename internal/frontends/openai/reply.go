package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Reply is an answer to a completion or a chat, put together from its events if it was streamed.
type Reply struct {
	Status int
	// Text, Tokens and the fields about the end are of the first choice.
	Text   string
	Tokens []uint32
	HasIDs bool   // the answer has token ids at all
	Finish string // of the last part that had one
	Stop   string // stop_reason as JSON
	Ends   int    // parts with a finish reason
	Late   bool   // text or tokens came after the first of them
	Role   string // of a chat message
	// Chunks are the token counts of the parts that had tokens.
	Chunks   []int
	Logprobs int // entries
	Parts    int // with choices
	Choices  int // of the part that has the most
	Usage    *Usage
	// Failure is the head of the error object, or of the body of an answer that has no choices. Failed is set for an error
	// object, and Code is the code in it, see [Response.ErrorCode].
	Failure string
	Failed  bool
	Code    int
	// Wrong has what cannot be read, or is missing at the end.
	Wrong []string
	// Framing has what a lenient reader of a stream passes over: its type, and events that are not one line "data: ".
	Framing []string
	// Err is why there is no answer; [ReadReply] leaves it nil.
	Err error
}

// Refused reports whether the answer is an error in any form.
func (r *Reply) Refused() bool {
	return r.Status != http.StatusOK || r.Failure != "" || r.Finish == "error"
}

// ReadReply reads an answer.
func ReadReply(a Answer, streamed bool) *Reply {
	r := &Reply{Status: a.Status}
	switch {
	case a.Status != http.StatusOK:
		r.Failure = excerpt(string(a.Body))
	case streamed:
		r.readEvents(a)
	default:
		r.take(a.Body)
		if r.Parts == 0 && r.Failure == "" {
			r.Failure = excerpt(string(a.Body))
		}
	}
	return r
}

// readEvents reads a stream to its end.
func (r *Reply) readEvents(a Answer) {
	if !strings.HasPrefix(a.Type, "text/event-stream") {
		r.Framing = append(r.Framing, fmt.Sprintf("Content-Type is %q, want text/event-stream", a.Type))
	}
	events, n, done := NewEvents(bytes.NewReader(a.Body)), 0, false
	for ; ; n++ {
		data, err := events.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				r.complain("the stream ends: %v", err)
			}
			break
		}
		switch {
		case done:
			r.complain("event %d comes after [DONE]: %q", n, excerpt(string(data)))
		case string(data) == Done:
			done = true
		default:
			r.take(data)
		}
	}
	for _, wrong := range events.Framing() {
		if wrong != "data" && wrong != "a comment" && wrong != "CR LF" {
			r.Framing = append(r.Framing, "the stream is not all of lines that begin with \"data: \": "+wrong)
		}
	}
	if !done {
		r.complain("no data: [DONE] after %d events", n)
	}
}

func (r *Reply) complain(format string, args ...any) {
	const maxWrong = 5
	if len(r.Wrong) < maxWrong {
		r.Wrong = append(r.Wrong, fmt.Sprintf(format, args...))
	}
}

// take adds the JSON text of one part.
func (r *Reply) take(text []byte) {
	var p Response
	if err := json.Unmarshal(text, &p); err != nil {
		r.complain("%v in %q", err, excerpt(string(text)))
		return
	}
	if p.Failed() {
		r.Failed, r.Failure, r.Code = true, excerpt(string(p.Error)), p.ErrorCode()
	}
	if p.Usage != nil {
		r.Usage = p.Usage
	}
	if len(p.Choices) > 0 {
		r.Parts++
		r.Choices = max(r.Choices, len(p.Choices))
	}
	for _, c := range p.Choices {
		if c.Index == 0 {
			r.choose(&c)
		}
	}
}

func (r *Reply) choose(c *Choice) {
	text := c.Content()
	for _, m := range []*Message{c.Message, c.Delta} {
		if m != nil && m.Role != "" {
			r.Role = m.Role
		}
	}
	r.Late = r.Late || r.Ends > 0 && (text != "" || len(c.TokenIDs) > 0)
	r.Text += text
	r.HasIDs = r.HasIDs || c.TokenIDs != nil
	if len(c.TokenIDs) > 0 {
		r.Tokens, r.Chunks = append(r.Tokens, c.TokenIDs...), append(r.Chunks, len(c.TokenIDs))
	}
	if c.Logprobs != nil {
		r.Logprobs += len(c.Logprobs.Tokens) + len(c.Logprobs.Content)
	}
	if c.FinishReason != nil {
		r.Ends++
		r.Finish = *c.FinishReason
		r.Stop = string(c.StopReason)
	}
}

// excerpt bounds what is quoted of an answer.
func excerpt(text string) string { return safetext.Clip(strings.TrimSpace(text), 300) }
