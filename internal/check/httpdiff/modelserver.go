package httpdiff

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

//go:embed modelserver.toml
var modelServerText string

// modelServer is what is read of a model server.
type modelServer struct {
	Metric []struct {
		Name, Type, Why string
		Labels, Numbers []string // labels, and those whose values are numbers
		Max             float64  // of its values, 0 for none
		Busy            bool     // it is above 0 while a request runs, and 0 after it
		LoRA            bool     // it is there once an adapter is loaded, and names those of the requests that run
	}
	Endpoint []struct {
		Path, Body, Why string
		Has             []string // keys of the answer
	}
}

// busyText is a request that runs for a while.
const busyText = `{"model": "{{model}}", "prompt": "Hi", "max_tokens": 256, "ignore_eos": true, "stream": true}`

// ModelServer judges what endpoint pickers read of a model server: metrics with their types, labels and values, before, during and
// after a request, and endpoints. In the report, the reference is what they need.
func ModelServer(ctx context.Context, opt Options) (*Report, error) {
	var want modelServer
	if _, err := toml.Decode(modelServerText, &want); err != nil {
		return nil, err
	}
	s, err := newServer(opt.A, opt.Model, opt.Timeout)
	if err != nil {
		return nil, err
	}
	defer s.client.CloseIdleConnections()
	names, err := s.models(ctx)
	if err != nil {
		return nil, &EndedError{true, s.URL, "", err}
	}
	if s.model == "" {
		s.model = names[0]
	}
	r := &Report{Model: s.model, Profile: true, Differences: []Difference{}, Unused: []Known{}}
	check := func(name string, found ...Difference) {
		r.count(name, found, opt.Known)
	}
	for _, e := range want.Endpoint {
		request := &Request{Method: http.MethodGet, Path: e.Path, Body: e.Body}
		if e.Body != "" {
			request.Method = http.MethodPost
		}
		answer := s.send(ctx, request)
		var found []Difference
		if !answer.ok() {
			found = append(found, Difference{What: "status", A: answer.outcome(), B: "200: " + e.Why})
		} else if request.Generates() {
			r.Answered++
		}
		var body map[string]json.RawMessage
		_ = json.Unmarshal(answer.body, &body) // without keys if it cannot be read
		for _, key := range e.Has {
			if answer.ok() && body[key] == nil {
				found = append(found, Difference{What: "body " + key, A: missing, B: "an answer with " + key + ": " + e.Why})
			}
		}
		check(request.Method+" "+e.Path, found...)
	}
	adapter, err := s.adapter(ctx)
	if err != nil {
		return nil, err
	}
	idle, busy, after, err := s.load(ctx, adapter, opt.Settle)
	if err != nil {
		return nil, err
	}
	seen := busy != nil
	if !seen {
		busy = after
		r.Note = "not judged: the metrics while a request runs, since requests of 256 tokens ended before they were seen: serve with --inter-token-latency 10ms"
	}
	kinds := families(busy)
	for _, m := range want.Metric {
		var found []Difference
		differ := func(what, is, need string) {
			found = append(found, Difference{What: what, A: is, B: need + ": " + m.Why})
		}
		kind, _, _ := strings.Cut(kinds[m.Name], " ")
		last := sample{}
		for _, one := range samples(busy) {
			if one.name == m.Name && (last.labels == nil || one.value >= last.value) {
				last = one
			}
		}
		switch {
		case kind == "" && m.LoRA && adapter == "":
			continue // no adapter was loaded
		case kind == "":
			differ("metric "+m.Name, missing, m.Type)
		case kind != m.Type:
			differ("metric "+m.Name+" (type)", kind, m.Type)
		case m.Max > 0 && (last.value < 0 || last.value > m.Max):
			differ("metric "+m.Name+" (value)", fmt.Sprint(last.value), fmt.Sprintf("0 to %g", m.Max))
		case m.LoRA && adapter != "" && seen && !slices.Contains(strings.Split(last.labels["running_lora_adapters"], ","), adapter):
			differ("metric "+m.Name+" while a request with an adapter runs", strconv.Quote(last.labels["running_lora_adapters"]), adapter)
		}
		for _, label := range slices.Concat(m.Labels, m.Numbers) {
			value, has := last.labels[label]
			_, err := strconv.Atoi(value)
			if kind != "" && !has {
				differ("metric "+m.Name+" (label "+label+")", missing, "this label")
			} else if kind != "" && err != nil && slices.Contains(m.Numbers, label) {
				differ("metric "+m.Name+" (label "+label+")", strconv.Quote(value), "a number")
			}
		}
		for _, state := range []struct {
			when string
			page []byte
			busy bool
		}{{"while nothing runs", idle, false}, {"while a request runs", busy, true}, {"when its client has left", after, false}} {
			if value := sum(state.page, m.Name); m.Busy && (seen || !state.busy) && kind != "" && (value > 0) != state.busy {
				differ("metric "+m.Name+" "+state.when, fmt.Sprint(value), map[bool]string{true: "above 0", false: "0"}[state.busy])
			}
		}
		check("GET "+metricsPath+" "+m.Name, found...)
	}
	return r, nil
}

// count adds the differences of a check.
func (r *Report) count(name string, found []Difference, known []Known) {
	r.Requests++
	expected := 0
	for i := range found {
		d := &found[i]
		d.Request, d.A = name, clip(d.A)
		if at := slices.IndexFunc(known, func(k Known) bool { return k.matches(*d) }); at >= 0 {
			d.Known, d.Reason = &known[at], known[at].Reason
			expected++
		}
	}
	if len(found) == 0 {
		r.Same++
	} else if expected == len(found) {
		r.Expected++
	}
	r.Differences = append(r.Differences, found...)
}

func sum(page []byte, name string) (total float64) {
	for _, s := range samples(page) {
		if s.name == name {
			total += s.value
		}
	}
	return total
}

// adapter is the name of an adapter that the server has loaded, empty for none.
func (s *server) adapter(ctx context.Context) (string, error) {
	a, err := s.get(ctx, "/v1/models")
	if err != nil {
		return "", &EndedError{true, s.URL, "", err}
	}
	var list struct{ Data []struct{ ID, Parent string } }
	_ = json.Unmarshal(a.body, &list) // models has read it
	for _, m := range list.Data {
		if m.Parent != "" {
			return m.ID, nil
		}
	}
	return "", nil
}

// load reads the metrics while nothing runs, while a request runs, with the adapter if there is one, and when its client has left.
// They change a moment after that. If requests end before they are seen, busy is nil.
func (s *server) load(ctx context.Context, adapter string, settle time.Duration) (idle, busy, after []byte, err error) {
	request, leave := context.WithCancel(ctx)
	defer leave()
	var ended chan struct{}
	read := func(busy bool) (page []byte, err error) {
		for end := time.Now().Add(settle); ; {
			a, err := s.get(ctx, metricsPath)
			if err != nil {
				return nil, &EndedError{true, s.URL, "", err}
			}
			if runs := sum(a.body, "vllm:num_requests_running") > 0; runs == busy || time.Now().After(end) {
				return a.body, nil
			}
			select {
			case <-ended: // before it was seen; nil while nothing is to run
				return nil, nil
			default:
			}
			if err := retry.Pause(ctx, time.Millisecond); err != nil {
				return nil, err
			}
		}
	}
	if idle, err = read(false); err != nil {
		return nil, nil, nil, err
	}
	for try := 0; try < 20 && busy == nil; try++ {
		ended = make(chan struct{})
		go func() {
			defer close(ended)
			s.send(request, &Request{Method: http.MethodPost, Path: "/v1/completions", Body: strings.ReplaceAll(busyText, "{{model}}", cmp.Or(adapter, s.model))})
		}()
		if busy, err = read(true); err != nil {
			return nil, nil, nil, err
		}
	}
	leave()
	<-ended
	ended = nil
	after, err = read(false)
	return idle, busy, after, err
}

// WriteKnown writes the known differences of a report as [ReadKnown] reads them: those that an entry expects, with its reason, and
// the others, each with an empty reason to be filled in.
func (r *Report) WriteKnown() (text string, unknown int, err error) {
	var file struct {
		Difference []Known `toml:"difference"`
	}
	names := map[Known]map[string]bool{} // of an entry without its request
	for _, d := range r.Differences {
		if d.Known != nil {
			if !slices.Contains(file.Difference, *d.Known) {
				file.Difference = append(file.Difference, *d.Known)
			}
			continue
		}
		group, _, _ := strings.Cut(d.Request, "/")
		entry := Known{Request: group, What: d.What, A: d.A, B: d.B}
		if names[entry] == nil {
			names[entry] = map[string]bool{}
		}
		names[entry][d.Request] = true
	}
	var added []Known
	for entry, requests := range names {
		if entry.Request += "/*"; len(requests) == 1 {
			entry.Request = slices.Collect(maps.Keys(requests))[0]
		}
		added = append(added, entry)
	}
	slices.SortFunc(added, func(a, b Known) int {
		return strings.Compare(a.Request+a.What+a.A+a.B, b.Request+b.What+b.A+b.B)
	})
	file.Difference = append(file.Difference, added...)
	var out strings.Builder
	err = toml.NewEncoder(&out).Encode(file)
	return out.String(), len(added), err
}
