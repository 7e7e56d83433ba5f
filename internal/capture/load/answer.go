package load

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// answer is what has come of a completion.
type answer struct {
	wanted int // choices
	text   strings.Builder
	events int // with text or an end
	tokens int // as the server counted them; of an answer that was not read to its end, the events
	ended  map[int]bool
	usage  bool

	status    int
	prompt    int       // tokens, as the server counted them
	finish    string    // of the last choice that ended
	first     time.Time // when the first event with text or an end came
	last      time.Time
	gaps      []float64 // ms between such events
	streaming bool
}

// part is a whole answer or an event of a stream, of completions and of chats.
type part struct {
	Choices []choice `json:"choices"`
	Usage   *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type choice struct {
	Index        int     `json:"index"`
	Text         string  `json:"text"`
	Delta        message `json:"delta"`
	Message      message `json:"message"`
	FinishReason *string `json:"finish_reason"`
}

type message struct {
	Content string `json:"content"`
}

func (a *answer) readWhole(r io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if len(text) > maxAnswer {
		return fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	if err := a.add(text); err != nil {
		return err
	}
	return a.complete()
}

// readStream reads server-sent events up to [DONE], or up to as many events with text as hangUp says.
func (a *answer) readStream(r io.Reader, hangUp int) error {
	a.streaming = true
	lines := bufio.NewReader(r)
	for {
		line, err := readLine(lines)
		if err != nil {
			return fmt.Errorf("the stream broke off before [DONE], after %d events: %w", a.events, err)
		}
		data, isData := bytes.CutPrefix(line, []byte("data:"))
		data = bytes.TrimSpace(data)
		switch {
		case !isData:
			continue // an empty line, a comment or another field
		case string(data) == "[DONE]":
			discard(lines)
			return a.complete()
		}
		if err := a.add(data); err != nil {
			return err
		}
		if hangUp > 0 && a.events >= hangUp {
			a.tokens = a.events
			return nil
		}
	}
}

// readLine returns a line without its end. A last line that has none is cut off.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		piece, err := r.ReadSlice('\n')
		line = append(line, piece...)
		switch {
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case len(line) > maxAnswer:
			return nil, fmt.Errorf("a line is longer than %d bytes", maxAnswer)
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, fmt.Errorf("within the line %s: %w", quote(line), io.ErrUnexpectedEOF)
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

func (a *answer) add(text []byte) error {
	var p part
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("after %d events: %w: %s", a.events, err, quote(text))
	}
	if len(p.Error) > 0 && string(p.Error) != "null" {
		return broken(p.Error)
	}
	for _, c := range p.Choices {
		if err := a.choose(c); err != nil {
			return fmt.Errorf("%w: %s", err, quote(text))
		}
	}
	if p.Usage != nil {
		a.tokens, a.prompt, a.usage = p.Usage.CompletionTokens, p.Usage.PromptTokens, true
	}
	return nil
}

func (a *answer) choose(c choice) error {
	said := c.Text + c.Delta.Content + c.Message.Content
	if c.Index < 0 || c.Index >= a.wanted {
		return fmt.Errorf("choice %d of %d", c.Index, a.wanted)
	}
	if said != "" || c.FinishReason != nil {
		a.heard(time.Now())
	}
	a.text.WriteString(said)
	if c.FinishReason == nil {
		return nil
	}
	switch *c.FinishReason {
	case "stop", "length", "repetition":
	default:
		return fmt.Errorf("choice %d finished by %q, want stop or length", c.Index, *c.FinishReason)
	}
	a.finish = *c.FinishReason
	if a.ended[c.Index] {
		return fmt.Errorf("choice %d finished twice", c.Index)
	}
	if a.ended == nil {
		a.ended = map[int]bool{}
	}
	a.ended[c.Index] = true
	return nil
}

// heard counts an event with text or an end.
func (a *answer) heard(now time.Time) {
	if a.events++; a.events == 1 {
		a.first = now
	} else {
		a.gaps = append(a.gaps, ms(now.Sub(a.last)))
	}
	a.last = now
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// complete checks that nothing is missing.
func (a *answer) complete() error {
	switch {
	case len(a.ended) != a.wanted:
		return fmt.Errorf("%d of %d choices finished, after %d events", len(a.ended), a.wanted, a.events)
	case !a.usage:
		return fmt.Errorf("no usage in an answer of %d events", a.events)
	case a.tokens < a.wanted:
		return fmt.Errorf("%d tokens for %d choices", a.tokens, a.wanted)
	}
	return nil
}

// broken is the error object that takes the place of an answer. Its code is a number on some lines and a word on others.
func broken(object []byte) error {
	var coded struct {
		Code int `json:"code"`
	}
	_ = json.Unmarshal(object, &coded) // a word leaves 0
	if coded.Code/100 == 4 {
		return &refusal{status: coded.Code, answer: quote(object)}
	}
	return fmt.Errorf("the server failed: %s", quote(object))
}

// quote is the head of a text for an error.
func quote(text []byte) string {
	if len(text) > maxQuote {
		return string(text[:maxQuote]) + "…"
	}
	return string(text)
}
