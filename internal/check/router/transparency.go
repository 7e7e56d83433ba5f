package router

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/httpdiff"
)

// An exchange is a request of the corpus, what reached engines, and what the client got.
type exchange struct {
	name string
	sent *sent
	got  *answered
	seen []*call
}

// engineCall is the call whose answer the client should have got; nil if none reached an engine.
func (x *exchange) engineCall() *call {
	if len(x.seen) == 0 {
		return nil
	}
	return x.seen[len(x.seen)-1]
}

// passed are the routes whose requests a router has to pass on.
var passed = []string{
	"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate", "/tokenize", "/detokenize",
}

// passedHeaders are sent with each request of the corpus: what clients, gateways and tracers send, and one that is known to none.
var passedHeaders = map[string]string{
	"Authorization": "Bearer a-key-of-the-engine", "X-Priority": "7", "X-Request-Id": "the-id-of-the-client", "X-Data-Parallel-Rank": "0",
	"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Unknown-Header": "unknown",
}

// unknownFields are added to some requests of the corpus.
const unknownFields = `"x_unknown": {"a": [1, 2.5, "\u00e4", null, true], "n": 12345678901234567890}, `

// exchanges sends the requests of `conform http` through the router, once in a session.
func (s *session) exchanges() ([]exchange, error) {
	if s.corpus != nil {
		return s.corpus, nil
	}
	n := 0
	for _, r := range httpdiff.Corpus() {
		one := &sent{mark: s.newMark(), method: r.Method, path: r.Path, header: http.Header{}, body: httpdiff.Expand(r.Body, s.fleet.model)}
		if r.Abort > 0 || r.Method != http.MethodPost || !slices.Contains(passed, one.route()) {
			continue
		}
		if n++; n%max(1, s.under.Every) != 0 {
			continue
		}
		if len(s.corpus)%10 == 0 && strings.HasPrefix(one.body, "{\"") {
			one.body = "{" + unknownFields + one.body[1:]
		}
		for name, value := range passedHeaders {
			one.header.Set(name, value)
		}
		for name, values := range r.Header {
			one.header[name] = values
		}
		s.fleet.mu.Lock()
		s.fleet.current = one
		s.fleet.mu.Unlock()
		got := s.ask(one)
		if s.ctx.Err() != nil {
			return nil, s.ctx.Err()
		}
		s.corpus = append(s.corpus, exchange{name: r.Name, sent: one, got: got, seen: s.fleet.of(one.mark)})
	}
	s.fleet.mu.Lock()
	s.fleet.current = nil
	s.fleet.mu.Unlock()
	return s.corpus, nil
}

// overCorpus makes a check of each request of the corpus.
func overCorpus(of func(*session, *exchange, *causes)) func(*session) error {
	return func(s *session) error {
		all, err := s.exchanges()
		if err != nil {
			return err
		}
		found := &causes{of: len(all)}
		for i := range all {
			s.Asserted++
			of(s, &all[i], found)
		}
		found.report(s)
		return nil
	}
}

// causes gathers failures: one for each cause, with the number of its requests.
type causes struct {
	of    int
	first map[string]check.Failure
	names map[string][]string
	order []string
}

func (c *causes) add(name string, code check.Code, path, format string, args ...any) {
	cause := string(code) + " " + path
	if c.first == nil {
		c.first, c.names = map[string]check.Failure{}, map[string][]string{}
	}
	if c.names[cause] == nil {
		c.order = append(c.order, cause)
		c.first[cause] = check.Failed(code, format, args...).Within(-1, path)
	}
	if !slices.Contains(c.names[cause], name) {
		c.names[cause] = append(c.names[cause], name)
	}
}

func (c *causes) report(s *session) {
	for _, cause := range c.order {
		f, names := c.first[cause], c.names[cause]
		f.Message += fmt.Sprintf(" (%d of %d requests: %s", len(names), c.of, strings.Join(names[:min(3, len(names))], ", "))
		if len(names) > 3 {
			f.Message += ", …"
		}
		f.Message += ")"
		s.Fail(f)
	}
}

// reaches: a request that the engine would answer reaches an engine.
func reaches(s *session, x *exchange, found *causes) {
	if x.got.err != nil && x.got.status == 0 || len(x.seen) > 0 {
		return
	}
	status, _, err := s.fleet.engines[s.fleet.prefills].direct(s.ctx, x.sent.method, x.sent.path, x.sent.body)
	switch {
	case err != nil || status == x.got.status:
	case status < 400:
		found.add(x.name, CodeNotPassed, x.sent.route(), "POST %s reaches no engine, which would answer with status %d; the client gets %s", x.sent.path, status, x.got)
	default:
		found.add(x.name, CodeOtherRefusal, fmt.Sprint(x.got.status), "the router refuses a bad request itself, with status %d, where the engine has %d", x.got.status, status)
	}
}

// fieldsArrive: the body of a request arrives as it was sent.
func fieldsArrive(_ *session, x *exchange, found *causes) {
	c := x.engineCall()
	if c == nil || string(c.body) == x.sent.body {
		return
	}
	want, got, err := decoded([]byte(x.sent.body), c.body)
	if err != nil {
		found.add(x.name, CodeRequestField, "", "the body of a request is another one: %s", safetext.Clip(safetext.Line(string(c.body)), 200))
		return
	}
	for _, d := range compared("", want, got) {
		switch {
		case d.got == absent && d.want == "null", d.want == absent: // null is what a missing field is; more may be for the router's own use
		default:
			found.add(x.name, CodeRequestField, d.path, "the client sends %s = %s, and the engine gets %s", d.path, d.want, d.got)
		}
	}
}

// headersArrive: the headers of a request arrive as they were sent.
func headersArrive(_ *session, x *exchange, found *causes) {
	c := x.engineCall()
	if c == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(x.sent.header)) {
		want, got := x.sent.header.Get(name), c.header.Get(name)
		if name == "Traceparent" { // a router may be a span of its own
			want, got = want[:min(35, len(want))], got[:min(35, len(got))]
		}
		if got != want && passedHeaders[name] != "" {
			found.add(x.name, CodeRequestHeader, name, "the client sends %s: %s, and the engine gets %q", name, want, got)
		}
	}
}

// once: a request reaches one engine, once.
func once(_ *session, x *exchange, found *causes) {
	if len(x.seen) > 1 {
		found.add(x.name, CodeTwice, "", "a request that an engine answered with status %d was sent %d times", x.seen[0].status, len(x.seen))
	}
}

// isStream reports whether the engine answered with a stream.
func (c *call) isStream() bool {
	return strings.HasPrefix(c.sent.Get("Content-Type"), "text/event-stream")
}

// answersArrive: status and body of an answer are the engine's.
func answersArrive(_ *session, x *exchange, found *causes) {
	c := x.engineCall()
	if c == nil || x.got.err != nil && x.got.status == 0 || c.isStream() {
		return
	}
	if x.got.status != c.status {
		found.add(x.name, CodeError, fmt.Sprint(c.status), "the engine answers with status %d, and the client gets %s", c.status, x.got)
		return
	}
	if string(c.answer) == string(x.got.body) {
		return
	}
	want, got, err := decoded(c.answer, x.got.body)
	if err != nil {
		found.add(x.name, CodeAnswer, "", "the engine answers %s, and the client gets %s", safetext.Clip(safetext.Line(string(c.answer)), 200), x.got)
		return
	}
	for _, d := range compared("", want, got) {
		if !d.harmless() {
			found.add(x.name, CodeAnswer, d.path, "the engine answers %s = %s, and the client gets %s", d.path, d.want, d.got)
		}
	}
}

// ownHeaders are those of a connection, and those that each server sets itself.
var ownHeaders = []string{"Date", "Server", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Vary", "Via"}

// answerHeadersArrive: the headers of an answer are the engine's; more are allowed.
func answerHeadersArrive(_ *session, x *exchange, found *causes) {
	c := x.engineCall()
	if c == nil || x.got.status != c.status {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.sent)) {
		want, got := c.sent.Get(name), x.got.header.Get(name)
		if name == "Content-Type" {
			want, got = mediaType(want), mediaType(got)
		}
		if !slices.Contains(ownHeaders, name) && want != got {
			found.add(x.name, CodeAnswerHeader, name, "the engine answers %s: %s, and the client gets %q", name, want, got)
		}
	}
}

func mediaType(value string) string {
	name, _, _ := strings.Cut(value, ";")
	return strings.ToLower(strings.TrimSpace(name))
}

// streamsArrive: the events of a stream are the engine's.
func streamsArrive(_ *session, x *exchange, found *causes) {
	c := x.engineCall()
	if c == nil || !c.isStream() || string(c.answer) == string(x.got.body) {
		return
	}
	for _, d := range sameEvents(events(c.answer), events(x.got.body)) {
		found.add(x.name, CodeEvent, d.path, "an event of the engine has %s = %s, and the client gets %s", cmp.Or(d.path, "the data"), d.want, d.got)
	}
}

// sameEvents compares the data of two streams.
func sameEvents(want, got []string) (all []difference) {
	for i, one := range want {
		if i >= len(got) {
			return append(all, difference{"", safetext.Clip(one, 200), fmt.Sprintf("%d of %d events", len(got), len(want))})
		}
		a, b, err := decoded([]byte(one), []byte(got[i]))
		if err != nil {
			if one != got[i] {
				return append(all, difference{"", safetext.Clip(one, 200), safetext.Clip(safetext.Line(got[i]), 200)})
			}
			continue
		}
		for _, d := range compared("", a, b) {
			if !d.harmless() {
				all = append(all, d)
			}
		}
	}
	if len(got) > len(want) {
		all = append(all, difference{"", absent, safetext.Clip(safetext.Line(got[len(want)]), 200)})
	}
	return all
}

// A difference is one between two JSON values, at a path in which elements of lists have no numbers.
type difference struct{ path, want, got string }

const absent = "nothing"

// harmless reports whether a field of null is there or not.
func (d difference) harmless() bool {
	return d.want == absent && d.got == "null" || d.want == "null" && d.got == absent
}

func decoded(a, b []byte) (x, y any, err error) {
	for _, one := range []struct {
		text []byte
		to   *any
	}{{a, &x}, {b, &y}} {
		d := json.NewDecoder(strings.NewReader(string(one.text)))
		d.UseNumber()
		if err := d.Decode(one.to); err != nil {
			return nil, nil, err
		}
	}
	return x, y, nil
}

// compared lists the differences of two JSON values.
func compared(path string, want, got any) (all []difference) {
	switch a := want.(type) {
	case map[string]any:
		b, ok := got.(map[string]any)
		if !ok {
			break
		}
		keys := maps.Clone(a)
		maps.Copy(keys, b)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			x, inA := a[key]
			y, inB := b[key]
			at := strings.TrimPrefix(path+"."+key, ".")
			switch {
			case !inA:
				all = append(all, difference{at, absent, shown(y)})
			case !inB:
				all = append(all, difference{at, shown(x), absent})
			default:
				all = append(all, compared(at, x, y)...)
			}
		}
		return all
	case []any:
		b, ok := got.([]any)
		if !ok || len(a) != len(b) {
			break
		}
		for i := range a {
			all = append(all, compared(path+"[]", a[i], b[i])...)
		}
		return all
	case json.Number:
		if b, ok := got.(json.Number); ok {
			x, errX := a.Float64()
			y, errY := b.Float64()
			if errX == nil && errY == nil && x == y {
				return nil
			}
		}
	}
	if reflect.DeepEqual(want, got) {
		return nil
	}
	return []difference{{path, shown(want), shown(got)}}
}

func shown(v any) string {
	text, _ := json.Marshal(v) // of values that were JSON
	return safetext.Clip(safetext.Line(string(text)), 120)
}
