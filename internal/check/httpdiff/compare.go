package httpdiff

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

// A Difference is one between the two answers to a request.
type Difference struct {
	// Request is the name of the request.
	Request string `json:"request"`
	// What differs: "status", "header NAME", "body PATH", "stream PATH", "stream order", "metric NAME", and so on.
	What string `json:"what"`
	// A and B are the values, as JSON, or "missing".
	A string `json:"tested"`
	B string `json:"reference"`
	// More is how many other elements of the same list differ too.
	More int `json:"more_elements,omitempty"`
	// Known is the entry that expects it, nil if none does, and Reason that of the entry.
	Known  *Known `json:"-"`
	Reason string `json:"known_reason,omitempty"`
}

const missing = "missing"

// A comparison collects the differences of two answers.
type comparison struct {
	request *Request
	sides   [2]*server
	depth   Depth
	gateway bool
	found   []Difference
}

func (c *comparison) add(what, a, b string) {
	what = inLists().ReplaceAllString(what, "[]")
	for i := range c.found {
		if c.found[i].What == what {
			c.found[i].More++
			return
		}
	}
	c.found = append(c.found, Difference{Request: c.request.Name, What: what, A: clip(a), B: clip(b)})
}

// inLists finds the numbers of elements.
var inLists = lazyregexp.New(`\[\d+\]`)

func clip(value string) string { return safetext.Clip(safetext.Line(value), 300) }

// keeps reports whether a gateway must pass on the answer of the server behind it. It may answer for itself where a request is about
// a server: health, metrics, adapters, caches.
func keeps(r Request) bool {
	group, name, _ := strings.Cut(r.Name, "/")
	return group == "server" && strings.HasPrefix(name, "model") || !slices.Contains([]string{"server", "dev", "caches", "end", "lora", "pause", "sleep"}, group)
}

// mayChange reports whether a gateway may make this difference: add a header, replace one about connections or browsers, or name a
// request that its client did not name, which is shown as * by both sides.
func (d Difference) mayChange() bool {
	name, isHeader := strings.CutPrefix(d.What, "header ")
	return isHeader && (d.B == missing || name == "server" || name == "vary" || name == "via" || name == "allow" ||
		strings.HasPrefix(name, "access-control-") || name == "x-request-id" && strings.HasSuffix(d.B, "*"))
}

func (c *comparison) answers(a, b *answer) {
	if c.gateway {
		defer func() { c.found = slices.DeleteFunc(c.found, Difference.mayChange) }()
		if a.broken == "" && b.broken == "" && a.status != b.status && !a.ok() && !b.ok() {
			c.add("status", strconv.Itoa(a.status), strconv.Itoa(b.status)) // everything else differs too
			return
		}
	}
	if a.broken != "" || b.broken != "" {
		if a.broken != b.broken {
			c.add("answer", a.outcome(), b.outcome())
		}
		return
	}
	if a.ok() != b.ok() {
		// Everything else differs too.
		c.add("status", a.outcome(), b.outcome())
		return
	}
	if a.status != b.status {
		c.add("status", strconv.Itoa(a.status), strconv.Itoa(b.status))
	}
	c.headers(a.header, b.header)
	if c.depth == Status {
		return
	}
	switch {
	case a.stream() && b.stream():
		c.streams(a, b)
	case a.stream() || b.stream():
	case a.status == http.StatusBadRequest && b.status == a.status:
		c.refusals(a.body, b.body)
	case c.request.Method == http.MethodGet && c.request.Path == metricsPath && a.ok():
		c.families(families(a.body), families(b.body))
	default:
		c.bodies(a.body, b.body)
	}
}

func (a *answer) outcome() string {
	if a.broken != "" {
		return a.broken
	}
	shown := strconv.Itoa(a.status)
	if a.ok() {
		return shown
	}
	var body struct {
		Error   any `json:"error"`
		Message any `json:"message"`
		Detail  any `json:"detail"`
	}
	if json.Unmarshal(a.body, &body) != nil {
		return shown + ": " + safetext.Line(string(a.body))
	}
	for _, value := range []any{body.Error, body.Message, body.Detail} {
		if object, ok := value.(map[string]any); ok && object["message"] != nil {
			value = object["message"]
		}
		if value != nil {
			return fmt.Sprintf("%s: %v", shown, value)
		}
	}
	return shown
}

// perConnection are headers that belong to a connection or to a moment.
var perConnection = []string{"Connection", "Content-Length", "Date", "Keep-Alive", "Transfer-Encoding"}

func (c *comparison) headers(a, b http.Header) {
	for _, name := range slices.Sorted(maps.Keys(union(a, b))) {
		if slices.Contains(perConnection, name) || c.depth == Status && name != "Content-Type" {
			continue
		}
		c.texts("header "+strings.ToLower(name), header(a, name, c.sides[0]), header(b, name, c.sides[1]))
	}
}

func header(h http.Header, name string, s *server) string {
	values, has := h[name]
	if !has {
		return missing
	}
	value := strings.Join(values, ", ")
	switch name {
	case "Content-Type":
		value = strings.ToLower(strings.ReplaceAll(value, " ", ""))
	case "Allow": // an order means nothing
		methods := strings.Split(strings.ReplaceAll(value, " ", ""), ",")
		slices.Sort(methods)
		value = strings.Join(methods, ",")
	}
	return s.normal("id", value)
}

func union[V any](a, b map[string]V) map[string]bool {
	all := map[string]bool{}
	for _, one := range []map[string]V{a, b} {
		for key := range one {
			all[key] = true
		}
	}
	return all
}

func (c *comparison) texts(what, a, b string) {
	if a != b && (c.depth == Values || (a == missing) != (b == missing)) {
		c.add(what, a, b)
	}
}

// refusals compares the errors for a request that is not valid. Their texts are not compared: clients tell them apart
// by type, param and code, and each server has words of its own.
func (c *comparison) refusals(a, b []byte) {
	c.bodies(a, b)
	c.found = slices.DeleteFunc(c.found, func(d Difference) bool { return d.What == "body error.message" && d.A != missing && d.B != missing })
}

func (c *comparison) bodies(a, b []byte) {
	x, errX := decode(a)
	y, errY := decode(b)
	if errX == nil && errY == nil {
		c.values("body ", "", x, y)
		return
	}
	kinds := [2]string{"JSON", "JSON"}
	for i, body := range [][]byte{a, b} {
		if err := [2]error{errX, errY}[i]; len(body) == 0 {
			kinds[i] = "empty"
		} else if err != nil {
			kinds[i] = "no JSON"
		}
	}
	if kinds[0] != kinds[1] {
		c.add("body", describe(kinds[0], a), describe(kinds[1], b))
		return
	}
	c.texts("body", c.sides[0].normal("", string(a)), c.sides[1].normal("", string(b)))
}

func describe(kind string, body []byte) string {
	if len(body) == 0 {
		return kind
	}
	return kind + ": " + string(body[:min(len(body), 200)])
}

func decode(text []byte) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err = d.Decode(&value); err == nil && d.More() {
		err = io.ErrUnexpectedEOF
	}
	return value, err
}

// named are the keys whose values are words of the API: they are compared however deep a comparison goes.
var named = []string{"object", "type", "role", "code", "param"}

// whenever are the keys of which only the kind is compared: times, and numbers of chunks.
var whenever = []string{
	"created", "created_at", "completed_at", "expires_at", "started_at", "sequence_number", "obfuscation",
}

// values compares two values of JSON. The path is that of the value, and key its last part.
func (c *comparison) values(path, key string, a, b any) {
	if kind(a) != kind(b) {
		c.add(strings.TrimSpace(path), c.show(0, key, a), c.show(1, key, b))
		return
	}
	switch x := a.(type) {
	case map[string]any:
		y := b.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(union(x, y))) {
			at := path + "." + key
			if strings.HasSuffix(path, " ") {
				at = path + key
			}
			v, inA := x[key]
			w, inB := y[key]
			switch {
			case !inA:
				c.add(at, missing, c.show(1, key, w))
			case !inB:
				c.add(at, c.show(0, key, v), missing)
			default:
				c.values(at, key, v, w)
			}
		}
	case []any:
		c.lists(path, key, x, b.([]any))
	default:
		if slices.Contains(whenever, key) || c.depth == Shapes && !slices.Contains(named, key) || c.equal(key, a, b) {
			return
		}
		c.add(strings.TrimSpace(path), c.show(0, key, a), c.show(1, key, b))
	}
}

func (c *comparison) lists(path, key string, a, b []any) {
	switch {
	case scalars(a) && scalars(b):
		same := len(a) == len(b)
		for i := 0; same && i < len(a); i++ {
			same = c.equal(key, a[i], b[i])
		}
		if !same && c.depth == Values {
			c.add(strings.TrimSpace(path), c.show(0, key, a), c.show(1, key, b))
		}
		return
	case len(a) != len(b) && c.depth == Values:
		c.add(path+" (length)", strconv.Itoa(len(a)), strconv.Itoa(len(b)))
		return
	}
	for i := range min(len(a), len(b)) {
		c.values(fmt.Sprintf("%s[%d]", path, i), key, a[i], b[i])
	}
}

func scalars(list []any) bool {
	return !slices.ContainsFunc(list, func(v any) bool { return kind(v) == "object" || kind(v) == "array" })
}

func kind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "bool"
	case json.Number:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	}
	return "object"
}

// equal compares two values that are no lists and no objects. Numbers may differ as 32 bits differ from 64.
func (c *comparison) equal(key string, a, b any) bool {
	switch x := a.(type) {
	case string:
		y, ok := b.(string)
		return ok && c.sides[0].normal(key, x) == c.sides[1].normal(key, y)
	case json.Number:
		y, ok := b.(json.Number)
		if !ok || x == y {
			return ok
		}
		v, errV := x.Float64()
		w, errW := y.Float64()
		return errV == nil && errW == nil && math.Abs(v-w) <= 1e-5*max(1e-3, math.Abs(v), math.Abs(w))
	}
	return a == b
}

// show is a value as JSON, without what differs from one answer to the next.
func (c *comparison) show(side int, key string, v any) string {
	if text, ok := v.(string); ok {
		v = c.sides[side].normal(key, text)
	}
	if n, ok := v.(json.Number); ok && slices.Contains(whenever, key) && n != "" {
		return "a number"
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		return kind(v)
	}
	return strings.TrimSpace(out.String())
}

var (
	// aHash finds what is drawn for each request within other text, and anId in the values of ids.
	aHash = lazyregexp.New(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|[0-9a-f]{16,}|((?:(?:chat)?cmpl|generate|resp|msg|call)[-_])[0-9a-f]{8}\b|\b(call_id=)\d+`)
	anID  = lazyregexp.New(`[0-9A-Za-z]{8,}$`)
)

// normal is a text without what differs between two servers, and from one answer to the next: names and ids.
func (s *server) normal(key, text string) string {
	if s.model != "" && text == s.model {
		return "{{model}}"
	}
	text = strings.ReplaceAll(text, s.URL, "{{url}}")
	text = strings.ReplaceAll(text, s.host, "{{host}}")
	if s.model != "" && len(s.model) > 3 {
		text = strings.ReplaceAll(text, s.model, "{{model}}")
	}
	text = aHash().ReplaceAllString(text, "$1$2*")
	if key == "id" || strings.HasSuffix(key, "_id") {
		text = anID().ReplaceAllStringFunc(text, func(id string) string {
			if strings.ContainsAny(id, "0123456789") || key != "id" {
				return "*"
			}
			return id
		})
	}
	return text
}

// streams compares two streams: the order of their kinds of events, what all events say together, and the keys of each
// kind. How the text is cut into events is a matter of time.
func (c *comparison) streams(a, b *answer) {
	c.texts("stream framing", strings.Join(a.framing, ", "), strings.Join(b.framing, ", "))
	if c.request.Abort > 0 {
		return // how far they came is chance
	}
	x, y := gather(a.events), gather(b.events)
	for _, key := range slices.Sorted(maps.Keys(union(x.orders, y.orders))) {
		c.texts("stream order"+key, strings.Join(x.orders[key], " "), strings.Join(y.orders[key], " "))
	}
	c.values("stream ", "", x.whole, y.whole)
	reported := len(c.found)
	depth := c.depth
	c.depth = Shapes
	for _, kind := range slices.Sorted(maps.Keys(union(x.samples, y.samples))) {
		if x.samples[kind] != nil && y.samples[kind] != nil {
			c.values("stream "+kind+" event: ", "", x.samples[kind], y.samples[kind])
		}
	}
	c.depth = depth
	// What all events have together was reported before.
	seen := map[string]bool{}
	for _, d := range c.found[:reported] {
		seen[strings.TrimPrefix(d.What, "stream ")] = true
	}
	c.found = append(c.found[:reported:reported], slices.DeleteFunc(slices.Clone(c.found[reported:]), func(d Difference) bool {
		_, path, _ := strings.Cut(d.What, " event: ")
		return seen[path]
	})...)
}

// gathered is what the events of a stream say together.
type gathered struct {
	whole map[string]any
	// orders has the kinds of events, for each choice (" [0]") and for all of them ("").
	orders map[string][]string
	// samples has the first event of each kind.
	samples map[string]any
}

func gather(events []event) gathered {
	g := gathered{map[string]any{}, map[string][]string{}, map[string]any{}}
	for _, e := range events {
		value, err := decode([]byte(e.data))
		object, isObject := value.(map[string]any)
		switch {
		case e.data == openai.Done:
			g.note("", openai.Done)
		case err != nil || !isObject:
			g.note("", "no JSON object")
		case e.name != "":
			g.note("", e.name)
			before, _ := g.whole[e.name].(map[string]any)
			g.whole[e.name] = merge(e.name, before, object)
		default:
			g.chunk(object)
			g.whole = merge("", g.whole, object).(map[string]any)
		}
	}
	return g
}

// note adds a kind to an order, unless it is the last one of it.
func (g *gathered) note(of, kind string) {
	if order := g.orders[of]; len(order) == 0 || order[len(order)-1] != kind {
		g.orders[of] = append(order, kind)
	}
}

// chunk notes of which kind an event of completions or of chat is.
func (g *gathered) chunk(object map[string]any) {
	choices, _ := object["choices"].([]any)
	switch {
	case object["error"] != nil:
		g.note("", "error")
		return
	case len(choices) == 0 && object["usage"] != nil:
		g.note("", "usage")
		g.sample("usage", object)
		return
	case len(choices) == 0:
		g.note("", "no choice")
		return
	}
	g.note("", "choices")
	for _, one := range choices {
		choice, _ := one.(map[string]any)
		delta, _ := choice["delta"].(map[string]any)
		var kinds []string
		for _, part := range []struct {
			kind string
			has  bool
		}{
			{"role", delta["role"] != nil},
			{"reasoning", some(delta["reasoning"]) || some(delta["reasoning_content"])},
			{"text", some(delta["content"]) || some(choice["text"])},
			{"tokens", delta == nil && choice["text"] == nil && some(choice["token_ids"])},
			{"tool_calls", some(delta["tool_calls"])},
			{"finish", choice["finish_reason"] != nil},
		} {
			if part.has {
				kinds = append(kinds, part.kind)
				g.note(fmt.Sprintf(" of choice %v", choice["index"]), part.kind)
			}
		}
		g.sample(strings.Join(kinds, "+"), object)
	}
}

func (g *gathered) sample(kind string, object map[string]any) {
	if _, has := g.samples[kind]; !has && kind != "" {
		g.samples[kind] = object
	}
}

// some reports whether a value is not empty.
func some(v any) bool {
	list, _ := v.([]any)
	text, _ := v.(string)
	return len(list) > 0 || text != ""
}

// pieces are the keys whose texts are sent piece by piece.
var pieces = []string{"arguments", "content", "delta", "partial_json", "reasoning", "reasoning_content", "refusal", "text", "thinking"}

// merge adds an event to those before it: pieces of text and lists are joined, of everything else the last
// value counts.
func merge(key string, before, now any) any {
	switch v := now.(type) {
	case map[string]any:
		old, _ := before.(map[string]any)
		if old == nil {
			old = map[string]any{}
		}
		for key, value := range v {
			old[key] = merge(key, old[key], value)
		}
		return old
	case []any:
		old, _ := before.([]any)
		if old == nil {
			old = []any{}
		}
		for _, value := range v {
			index, numbered := indexOf(value)
			if !numbered || len(old) > maxNumbered {
				old = append(old, merge(key, nil, value))
				continue
			}
			// Choices come in any order.
			at, found := slices.BinarySearchFunc(old, index, func(o any, index int64) int {
				i, _ := indexOf(o)
				return cmp.Compare(i, index)
			})
			if found {
				old[at] = merge(key, old[at], value)
			} else {
				old = slices.Insert(old, at, merge(key, nil, value))
			}
		}
		return old
	case string:
		if old, is := before.(string); is && slices.Contains(pieces, key) {
			return old + v
		}
	case nil:
		if before != nil {
			return before
		}
	}
	return now
}

// maxNumbered bounds the choices, or calls of tools, that are merged by their numbers.
const maxNumbered = 4096

func indexOf(v any) (index int64, numbered bool) {
	object, _ := v.(map[string]any)
	n, is := object["index"].(json.Number)
	if !is {
		return 0, false
	}
	index, err := n.Int64()
	return index, err == nil
}
