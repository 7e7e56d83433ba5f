package edge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

const (
	adminPath = "/admin/config"
	// MaxAdmin is the maximum size of a change of the configuration, in bytes.
	MaxAdmin = 1 << 20
)

// Settings are values that can be changed while the server runs.
type Settings interface {
	// Shown are the values by their keys.
	Shown() map[string]any
	// Change checks new values. It removes those that it knows, and apply makes them count.
	Change(values map[string]json.RawMessage) (apply func(), err error)
}

func (e *Edge) serveAdmin(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
	case http.MethodPost:
		// A client that sends slowly keeps nothing waiting: the change begins when all of it is here.
		change, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxAdmin))
		if err == nil {
			err = e.Configure(change)
		}
		if err != nil {
			apiError{status: http.StatusBadRequest, message: err.Error()}.write(w)
			return
		}
	default:
		w.Header().Set("Allow", "GET, POST")
		apiError{status: http.StatusMethodNotAllowed, message: adminPath + " takes GET and POST"}.write(w)
		return
	}
	shown := map[string]any{}
	for _, s := range e.opt.Settings {
		maps.Copy(shown, s.Shown())
	}
	text, err := json.Marshal(shown)
	if err != nil {
		apiError{status: http.StatusInternalServerError, message: err.Error()}.write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // the client may be gone
}

// Configure makes a partial change of the configuration, a JSON object, all of it or nothing.
func (e *Edge) Configure(change []byte) error {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(change, &values); err != nil {
		return fmt.Errorf("want a JSON object: %w", err)
	}
	e.admin.Lock()
	defer e.admin.Unlock()
	var applies []func()
	for _, s := range e.opt.Settings {
		apply, err := s.Change(values)
		if err != nil {
			return err
		}
		applies = append(applies, apply)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		return fmt.Errorf("field '%s' is not admin-configurable", key)
	}
	for _, apply := range applies {
		apply()
	}
	e.log.Info("the configuration was changed", "change", string(bytes.TrimSpace(change)))
	return nil
}

// faultSettings are those of the faults of HTTP.
type faultSettings struct{ e *Edge }

// Shown implements [Settings].
func (s faultSettings) Shown() map[string]any {
	d := s.e.faults.Load()
	return map[string]any{
		"faults": d.text(), "failure-injection-rate": d.rate * 100, "failure-types": d.failures, "seed": d.seed, "injected": d.counts(),
	}
}

// Change implements [Settings]. With a change, counts and draws begin anew.
func (s faultSettings) Change(values map[string]json.RawMessage) (apply func(), err error) {
	d := s.e.faults.Load()
	text, rate, failures, seed, changed := d.text(), d.rate*100, d.failures, d.seed, false
	for key, to := range map[string]any{"faults": &text, "failure-injection-rate": &rate, "failure-types": &failures, "seed": &seed} {
		value, given := values[key]
		if !given {
			continue
		}
		if key == "failure-types" {
			failures = nil
		}
		if err := json.Unmarshal(value, to); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		delete(values, key)
		changed = true
	}
	faults, engine, err := ParseFaults(text)
	switch {
	case !changed:
		return func() {}, nil
	case err != nil:
		return nil, fmt.Errorf("faults: %w", err)
	case engine != "":
		return nil, fmt.Errorf("faults: %q: while the server runs, only faults of HTTP can be changed: %s", engine, FaultForms())
	}
	if err := CheckFailures(rate, failures); err != nil {
		return nil, err
	}
	return func() { s.e.faults.Store(newFaultDraws(faults, rate/100, failures, seed)) }, nil
}

// drainSettings is whether the server drains, see [Edge.Drain].
type drainSettings struct{ e *Edge }

// Shown implements [Settings].
func (s drainSettings) Shown() map[string]any { return map[string]any{"draining": s.e.draining.Load()} }

// Change implements [Settings].
func (s drainSettings) Change(values map[string]json.RawMessage) (apply func(), err error) {
	value, given := values["draining"]
	if !given {
		return func() {}, nil
	}
	delete(values, "draining")
	var draining bool
	if err := json.Unmarshal(value, &draining); err != nil {
		return nil, fmt.Errorf("draining: %w", err)
	}
	return func() { s.e.Drain(draining) }, nil
}

// text is that of all faults, as [ParseFaults] reads it.
func (d *faultDraws) text() string {
	texts := make([]string, len(d.faults))
	for i := range d.faults {
		texts[i] = d.faults[i].text
	}
	return strings.Join(texts, ",")
}

// counts are how often each fault was injected.
func (d *faultDraws) counts() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := make(map[string]int)
	for i := range d.faults {
		counts[d.faults[i].text] += d.injected[i]
	}
	if d.rate > 0 {
		counts["failure-injection-rate"] = d.injected[len(d.faults)]
	}
	return counts
}
