package answers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// RecorderOptions configures a [Recorder].
type RecorderOptions struct {
	// Path is the file of recorded answers, a line of JSON each.
	Path string
	// Upstream is the base URL of the real server; nil for none.
	Upstream *url.URL
	// Mode is none (nothing is recorded), once (only if there is no file yet), new (what is not recorded yet) or all.
	Mode string
	// Scrub are replaced by *** in requests before they are written and compared. Answers stay as they came.
	Scrub []*regexp.Regexp
	// Paced sends the parts of an answer after the recorded times.
	Paced bool
	// Differs is called with the report of a request that is not recorded; nil for none.
	Differs func(report string)
}

// A recorded is an answer in the file. Headers are not written, so neither are keys.
type recorded struct {
	Path    string          `json:"path"`
	Request json.RawMessage `json:"request"`
	Status  int             `json:"status"`
	Type    string          `json:"type"`
	Parts   []part          `json:"parts"`
	used    bool
}

// A part is what came at once, so many milliseconds after the request.
type part struct {
	AfterMS int64  `json:"after_ms"`
	Text    string `json:"text"`
}

// A Recorder answers with what a real server has answered before, byte for byte.
type Recorder struct {
	opt      RecorderOptions
	upstream http.Handler // nil if nothing is recorded

	mu  sync.Mutex
	all []*recorded
	out *os.File
}

// NewRecorder reads the file, if there is one.
func NewRecorder(opt RecorderOptions) (*Recorder, error) {
	c := &Recorder{opt: opt}
	exists := true
	text, err := os.ReadFile(opt.Path)
	if errors.Is(err, fs.ErrNotExist) {
		exists, err = false, nil
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxFile)
	for n := 1; err == nil && opt.Mode != "all" && lines.Scan(); n++ {
		one := &recorded{}
		if err = json.Unmarshal(lines.Bytes(), one); err != nil {
			err = fmt.Errorf("%s:%d: %w", opt.Path, n, err)
		}
		c.all = append(c.all, one)
	}
	if err = errors.Join(err, lines.Err()); err != nil {
		return nil, err
	}
	records := opt.Mode == "all" || opt.Mode == "new" || opt.Mode == "once" && !exists
	switch {
	case !records && !exists:
		return nil, fmt.Errorf("%s does not exist, and nothing is recorded: record with --upstream URL", opt.Path)
	case !records:
		return c, nil
	case opt.Upstream == nil:
		return nil, fmt.Errorf("%s: to record, give the real server with --upstream URL; --record-mode none only answers", opt.Path)
	}
	flag := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if opt.Mode == "all" {
		flag |= os.O_TRUNC
	}
	c.out, err = os.OpenFile(opt.Path, flag, 0o600)
	c.upstream = &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(opt.Upstream)
			p.Out.Header.Del("Accept-Encoding")
		},
		Transport: &http.Transport{DisableCompression: true, Proxy: http.ProxyFromEnvironment}, FlushInterval: -1,
	}
	return c, err
}

// Wrap returns a handler that answers requests to a model.
func (c *Recorder) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := bodyOf(r)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		asked := &recorded{Path: r.URL.Path, Request: c.canonical(text)}
		switch answer := c.find(asked); {
		case answer != nil:
			c.play(w, r, answer)
		case c.upstream != nil:
			c.record(w, r, asked)
		default:
			report := c.report(asked)
			if c.opt.Differs != nil {
				c.opt.Differs(report)
			}
			refusal, _ := json.Marshal(map[string]any{"error": map[string]any{"message": report, "type": "NotRecordedError", "param": nil, "code": http.StatusBadRequest}})
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest) // which clients do not try again
			_, _ = w.Write(refusal)
		}
	})
}

func (c *Recorder) scrub(text string) string {
	for _, pattern := range c.opt.Scrub {
		text = pattern.ReplaceAllString(text, "***")
	}
	return text
}

// canonical is a body with its members in order, and without what is scrubbed.
func (c *Recorder) canonical(body []byte) json.RawMessage {
	var value any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if d.Decode(&value) != nil {
		value = string(body)
	}
	text, _ := json.Marshal(c.scrubbed(value)) // it was JSON
	return text
}

// scrubbed scrubs all texts in a value.
func (c *Recorder) scrubbed(value any) any {
	switch v := value.(type) {
	case string:
		return c.scrub(v)
	case []any:
		for i := range v {
			v[i] = c.scrubbed(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = c.scrubbed(v[key])
		}
	}
	return value
}

// find returns the first answer to an equal request that was not used, or the last one.
func (c *Recorder) find(asked *recorded) (found *recorded) {
	if c.opt.Mode == "all" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.all {
		if one.Path == asked.Path && bytes.Equal(one.Request, asked.Request) {
			if found = one; !one.used {
				break
			}
		}
	}
	if found != nil {
		found.used = true
	}
	return found
}

func (c *Recorder) play(w http.ResponseWriter, r *http.Request, answer *recorded) {
	w.Header().Set("Content-Type", answer.Type)
	w.WriteHeader(answer.Status)
	start := time.Now()
	for _, p := range answer.Parts {
		if wait := time.Duration(p.AfterMS)*time.Millisecond - time.Since(start); c.opt.Paced && wait > 0 {
			select {
			case <-time.After(wait):
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
		}
		_, _ = io.WriteString(w, p.Text)
		_ = http.NewResponseController(w).Flush()
	}
}

// taker keeps the parts of an answer that it passes on.
type taker struct {
	http.ResponseWriter
	*recorded
	start time.Time
}

func (t *taker) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func (t *taker) WriteHeader(status int) {
	t.Status = status
	t.ResponseWriter.WriteHeader(status)
}

func (t *taker) Write(p []byte) (int, error) {
	t.Parts = append(t.Parts, part{time.Since(t.start).Milliseconds(), string(p)})
	return t.ResponseWriter.Write(p)
}

// record asks the real server, and keeps its answer if that is whole and not an error.
func (c *Recorder) record(w http.ResponseWriter, r *http.Request, asked *recorded) {
	t := &taker{w, asked, time.Now()}
	c.upstream.ServeHTTP(t, r)
	if asked.Type = t.Header().Get("Content-Type"); asked.Status != http.StatusOK {
		return
	}
	line, err := json.Marshal(asked)
	c.mu.Lock()
	defer c.mu.Unlock()
	asked.used = true
	c.all = append(c.all, asked)
	if err == nil {
		_, err = c.out.Write(append(line, '\n'))
	}
	if err != nil && c.opt.Differs != nil {
		c.opt.Differs("an answer was not recorded: " + err.Error())
	}
}

// messagesOf are the messages of a request, of one without a list its prompt or input.
func (r *recorded) messagesOf() (all []json.RawMessage) {
	var q struct{ Messages, Input, Prompt json.RawMessage }
	_ = json.Unmarshal(r.Request, &q)
	for _, raw := range []json.RawMessage{q.Messages, q.Input, q.Prompt} {
		if raw != nil && json.Unmarshal(raw, &all) != nil {
			all = []json.RawMessage{raw}
		}
	}
	return all
}

// report says how a request differs from the recorded one that has the most messages in common with it.
func (c *Recorder) report(asked *recorded) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, turn := asked.messagesOf(), 1
	for _, m := range now {
		if bytes.Contains(m, []byte(`"role":"assistant"`)) || bytes.Contains(m, []byte(`"type":"function_call"`)) {
			turn++
		}
	}
	var best []json.RawMessage
	at := -1
	for _, one := range c.all {
		messages, same := one.messagesOf(), 0
		for same < min(len(messages), len(now)) && bytes.Equal(messages[same], now[same]) {
			same++
		}
		if one.Path == asked.Path && same > at {
			best, at = messages, same
		}
	}
	head := fmt.Sprintf("turn %d is not recorded: ", turn)
	switch {
	case at < 0:
		return head + "no request to " + asked.Path + " is"
	case at == len(now) && at == len(best):
		return head + "its messages are, but with other parameters or tools"
	case at == len(best):
		return fmt.Sprintf("%sthe recorded session has no message %d: %s", head, at+1, clip(string(now[at]), 0))
	case at == len(now):
		return fmt.Sprintf("%sthe recorded request has %d messages, this one %d", head, len(best), len(now))
	}
	before, after := messageText(best[at]), messageText(now[at])
	differs := 0
	for differs < min(len(before), len(after)) && before[differs] == after[differs] {
		differs++
	}
	return fmt.Sprintf("%smessage %d differs from character %d on; recorded: %s; now: %s", head, at+1, differs+1, clip(before, differs), clip(after, differs))
}

// messageText is the content of a message, or all of one without a text.
func messageText(raw json.RawMessage) string {
	var m struct{ Content, Output json.RawMessage }
	if json.Unmarshal(raw, &m) == nil {
		for _, content := range []json.RawMessage{m.Content, m.Output} {
			if text := textOf(content); text != "" {
				return text
			}
		}
	}
	return string(raw)
}

// clip is a part of a text around a place.
func clip(text string, at int) string {
	const around = 60
	from := max(at-around, 0)
	return fmt.Sprintf("%q", safetext.Clip(strings.ToValidUTF8(text[from:], ""), 2*around))
}
