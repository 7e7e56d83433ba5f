// Package httpdiff finds out where two servers of vLLM's HTTP API differ. It sends each request of a corpus to both,
// and compares status, headers, the keys and kinds of the JSON, texts, counts, errors, the order of the events of a
// stream, and what the request changes in the metrics. Both servers stand before engines that answer the same.
package httpdiff

import (
	"bytes"
	"cmp"
	"context"
	_ "embed" // for builtin.toml
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Options configures [Run].
type Options struct {
	// A is the server under test, and B the one that it is compared with.
	A, B Side
	// Model is the name of the model at both, by default the first one that B lists.
	Model string
	// Requests are sent in this order; default [Corpus].
	Requests []Request
	// Known are the differences that are expected.
	Known []Known
	// Partial reports whether Requests are not all: a known difference that does not occur is nothing to report.
	Partial bool
	// Gateway leaves out what a gateway may do: answer for itself, and add headers. See [keeps] and [mayChange].
	Gateway bool
	// Depth is at most how much is compared; default [Values].
	Depth Depth
	// Timeout is how long an answer may take; default 30 s.
	Timeout time.Duration
	// Settle is how long the metrics of both sides may differ after a request; default 2 s.
	Settle time.Duration
	// Progress is called with the name of each request before it is sent.
	Progress func(name string)
}

// A Known difference is one that is expected, for a reason.
type Known struct {
	// Request and What are those of differences, and A and B their values: "*" matches any text. Without A and B, any
	// values.
	Request string `toml:"request" json:"request"`
	What    string `toml:"what" json:"what"`
	A       string `toml:"a,omitempty" json:"-"`
	B       string `toml:"b,omitempty" json:"-"`
	Reason  string `toml:"reason" json:"reason"`
}

// ReadKnown reads a file of known differences:
//
//	[[difference]]
//	request = "chat/*"
//	what    = "header server"
//	reason  = "the Python server names its HTTP library"
func ReadKnown(name, text string) ([]Known, error) {
	var file struct {
		Difference []Known `toml:"difference"`
	}
	meta, err := toml.Decode(text, &file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("%s: unknown key %s: want [[difference]] with request, what, reason, and perhaps a and b", name, unknown[0])
	}
	for i, k := range file.Difference {
		if k.Request == "" || k.What == "" || k.Reason == "" {
			return nil, fmt.Errorf("%s: difference %d (request %q, what %q): request, what and reason must not be empty", name, i+1, k.Request, k.What)
		}
	}
	return file.Difference, nil
}

//go:embed builtin.toml
var builtinText string

// builtinPythonText are the differences between the builtin frontend and the Python server.
//
//go:embed builtin-python.toml
var builtinPythonText string

// BuiltinMark is in the metrics of `vllm-vcr serve --frontend builtin`.
const BuiltinMark = "# vllm-vcr serve --frontend builtin\n"

// KnownOf are the known differences between a server and vllm-rs, or the Python server, that are in this program: those
// of the builtin frontend, which its metrics name. Other servers have none.
func KnownOf(ctx context.Context, side Side, python bool, timeout time.Duration) ([]Known, error) {
	s, err := newServer(side, "", timeout)
	if err != nil {
		return nil, err
	}
	defer s.client.CloseIdleConnections()
	if page, err := s.get(ctx, metricsPath); err != nil || !bytes.Contains(page.body, []byte(BuiltinMark)) {
		return nil, nil // Run reports what is wrong with a server
	}
	if python {
		return ReadKnown("builtin-python.toml", builtinPythonText)
	}
	return ReadKnown("builtin.toml", builtinText)
}

func (k *Known) matches(d Difference) bool {
	return Match(k.Request, d.Request) && Match(k.What, d.What) && Match(cmp.Or(k.A, "*"), d.A) && Match(cmp.Or(k.B, "*"), d.B)
}

// everywhere reports whether the difference is a header of all answers.
func (k *Known) everywhere() bool { return k.Request == "*" && strings.HasPrefix(k.What, "header ") }

// BuiltinKnown are the known differences between the builtin frontend of serve, which is A, and the vllm-rs of the
// newest line.
func BuiltinKnown() []Known {
	known, err := ReadKnown("builtin.toml", builtinText)
	if err != nil {
		panic(err) // a test reads it
	}
	return known
}

// Match reports whether a text is that of a pattern, in which "*" matches any text.
func Match(pattern, text string) bool {
	first, rest, wild := strings.Cut(pattern, "*")
	text, ok := strings.CutPrefix(text, first)
	if !ok || !wild {
		return ok && text == ""
	}
	for rest != "" {
		var next string
		if next, rest, wild = strings.Cut(rest, "*"); !wild {
			return strings.HasSuffix(text, next)
		}
		if _, text, ok = strings.Cut(text, next); !ok {
			return false
		}
	}
	return true
}

// A Report is what was found.
type Report struct {
	Model string `json:"model,omitempty"`
	// Profile reports whether it is that of [ModelServer], whose requests are checks.
	Profile bool `json:"-"`
	// Note is what was not judged, and why.
	Note string `json:"note,omitempty"`
	// Requests were sent, and so many of them had the same answer on both sides, or one with known differences. A
	// header that a known difference has for all requests does not make an answer another one.
	Requests int `json:"-"`
	Same     int `json:"same"`
	Expected int `json:"known"`
	// Answered counts the requests to generate that both sides have served.
	Answered    int          `json:"answered"`
	Differences []Difference `json:"differences"`
	// Unused are the known differences that did not occur.
	Unused []Known `json:"unused_known"`
}

// Unknown are the differences that nothing expects.
func (r *Report) Unknown() []Difference {
	return slices.DeleteFunc(slices.Clone(r.Differences), func(d Difference) bool { return d.Known != nil })
}

// An EndedError is a server that does not answer any more.
type EndedError struct {
	// Tested reports whether it is the server under test.
	Tested       bool
	URL, Request string
	Err          error
}

func (e *EndedError) Error() string {
	if e.Request == "" {
		return fmt.Sprintf("%s does not serve: %v", e.URL, e.Err)
	}
	return fmt.Sprintf("%s does not serve any more after the request %s: %v", e.URL, e.Request, e.Err)
}
func (e *EndedError) Unwrap() error { return e.Err }

// ErrModel is a model that a server does not have.
var ErrModel = errors.New("no such model")

// Run sends the requests to both servers, one after the other to each, and compares the answers.
func Run(ctx context.Context, opt Options) (*Report, error) {
	opt.Depth, opt.Timeout, opt.Settle = cmp.Or(opt.Depth, Values), cmp.Or(opt.Timeout, 30*time.Second), cmp.Or(opt.Settle, 2*time.Second)
	if opt.Requests == nil {
		opt.Requests = Corpus()
	}
	r := &Report{Model: opt.Model, Differences: []Difference{}, Unused: []Known{}}
	var sides [2]*server
	for i, side := range []Side{opt.A, opt.B} {
		s, err := newServer(side, opt.Model, opt.Timeout)
		if err != nil {
			return nil, err
		}
		defer s.client.CloseIdleConnections()
		sides[i] = s
	}
	if err := r.models(ctx, sides); err != nil {
		return nil, err
	}
	used := make([]bool, len(opt.Known))
	expected := func(d Difference) bool {
		return slices.ContainsFunc(opt.Known, func(k Known) bool { return k.matches(d) })
	}
	before, counting := readings(ctx, sides)
	if opt.Gateway { // has metrics of its own
		counting = false
		opt.Requests = slices.DeleteFunc(slices.Clone(opt.Requests), func(r Request) bool { return !keeps(r) })
	}
	for i := range opt.Requests {
		request := &opt.Requests[i]
		if opt.Progress != nil {
			opt.Progress(request.Name)
		}
		c := &comparison{request: request, sides: sides, depth: shallower(opt.Depth, request.Depth), gateway: opt.Gateway}
		answers := both(ctx, sides, request)
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		r.Requests++
		c.answers(answers[0], answers[1])
		if counting {
			before = c.effect(ctx, before, answers, opt.Settle, expected)
		}
		known, everywhere := 0, 0
		for j := range c.found {
			d := &c.found[j]
			for k := range opt.Known {
				if opt.Known[k].matches(*d) {
					used[k] = true
					if d.Known == nil {
						d.Known, d.Reason = &opt.Known[k], opt.Known[k].Reason
						known++
						if opt.Known[k].everywhere() {
							everywhere++
						}
					}
				}
			}
		}
		switch len(c.found) {
		case everywhere:
			r.Same++
		case known:
			r.Expected++
		}
		r.Differences = append(r.Differences, c.found...)
		if request.Generates() && request.Abort == 0 && answers[0].ok() && answers[1].ok() {
			r.Answered++
		}
		for j, s := range sides {
			if answers[j].broken == "" {
				continue
			}
			if _, err := s.get(ctx, "/health"); err != nil {
				return r, &EndedError{j == 0, s.URL, request.Name, err}
			}
		}
	}
	for i, k := range opt.Known {
		if !used[i] && !opt.Partial {
			r.Unused = append(r.Unused, k)
		}
	}
	return r, nil
}

func shallower(a, b Depth) Depth {
	order := []Depth{Status, Shapes, Values}
	return order[min(slices.Index(order, a), slices.Index(order, b))]
}

func both(ctx context.Context, sides [2]*server, request *Request) (answers [2]*answer) {
	var sending sync.WaitGroup
	for i, s := range sides {
		sending.Go(func() { answers[i] = s.send(ctx, request) })
	}
	sending.Wait()
	return answers
}

// models finds the model that both sides serve.
func (r *Report) models(ctx context.Context, sides [2]*server) error {
	var names [2][]string
	for i, s := range sides {
		var err error
		if names[i], err = s.models(ctx); err != nil {
			return &EndedError{i == 0, s.URL, "", err}
		}
	}
	r.Model = cmp.Or(r.Model, names[1][0])
	for i, s := range sides {
		s.model = r.Model
		if !slices.Contains(names[i], r.Model) {
			return fmt.Errorf("%w: %s serves %s, but not %s", ErrModel, s.URL, strings.Join(names[i], ", "), r.Model)
		}
	}
	return nil
}

func (s *server) models(ctx context.Context) (names []string, err error) {
	a, err := s.get(ctx, "/v1/models")
	if err != nil {
		return nil, err
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(a.body, &list); err != nil || len(list.Data) == 0 {
		return nil, fmt.Errorf("GET /v1/models has no list of models: %s", safetext.Line(string(a.body[:min(len(a.body), 300)])))
	}
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	return names, nil
}

// FirstModel is the name of the first model of a server.
func FirstModel(ctx context.Context, side Side, timeout time.Duration) (string, error) {
	s, err := newServer(side, "", timeout)
	if err != nil {
		return "", err
	}
	defer s.client.CloseIdleConnections()
	names, err := s.models(ctx)
	if err != nil {
		return "", &EndedError{true, s.URL, "", err}
	}
	return names[0], nil
}

// maxNames is how many requests are named for one difference.
const maxNames = 6

// rank is 0 for what the tested server lacks.
func (d Difference) rank() int {
	if d.A == missing || d.What == "status" && strings.HasPrefix(d.B, "2") {
		return 0
	}
	return 1
}

// Text writes a report: first what is missing, then what occurs most often, with the names of the requests.
func (r *Report) Text(w io.Writer) error {
	type row struct {
		Difference
		names []string
	}
	var rows []*row
	for _, d := range r.Unknown() {
		at := slices.IndexFunc(rows, func(o *row) bool { return o.What == d.What && o.A == d.A && o.B == d.B })
		if at < 0 {
			at, rows = len(rows), append(rows, &row{Difference: d})
		}
		rows[at].names = append(rows[at].names, d.Request)
	}
	slices.SortStableFunc(rows, func(a, b *row) int { return cmp.Or(a.rank()-b.rank(), len(b.names)-len(a.names)) })
	var out strings.Builder
	for _, o := range rows {
		fmt.Fprintf(&out, "%s: %s", safetext.Count(len(o.names), "request"), strings.Join(o.names[:min(len(o.names), maxNames)], ", "))
		if more := len(o.names) - maxNames; more > 0 {
			fmt.Fprintf(&out, " and %d more", more)
		}
		fmt.Fprintf(&out, "\n  %s", o.What)
		if o.More > 0 {
			fmt.Fprintf(&out, " (and in %s more)", safetext.Count(o.More, "element"))
		}
		fmt.Fprintf(&out, "\n    tested:    %s\n    reference: %s\n", o.A, o.B)
	}
	for _, k := range r.Unused {
		fmt.Fprintf(&out, "known difference that did not occur: request %s, %s: remove the entry\n", k.Request, k.What)
	}
	headers := map[string]bool{}
	for _, d := range r.Differences {
		if d.Known != nil && d.Known.everywhere() {
			headers[d.What] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		fmt.Fprintf(&out, "known in all answers, and not counted below: %s\n", name)
	}
	if r.Note != "" {
		fmt.Fprintln(&out, r.Note)
	}
	if r.Profile {
		fmt.Fprintf(&out, "%s of what endpoint pickers read: %d passed, %d with known differences, %d failed\n", safetext.Count(r.Requests, "check"), r.Same, r.Expected, r.Requests-r.Same-r.Expected)
		return safetext.Fprint(w, strings.TrimSuffix(out.String(), "\n"))
	}
	fmt.Fprintf(&out, "%s: %d the same, %d with known differences, %d with others\n", safetext.Count(r.Requests, "request"), r.Same, r.Expected, r.Requests-r.Same-r.Expected)
	return safetext.Fprint(w, strings.TrimSuffix(out.String(), "\n"))
}
