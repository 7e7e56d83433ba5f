package edge

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
)

const (
	adminPath = "/admin/config"
	maxAdmin  = 1 << 20 // bytes of a change
)

// config is what /admin/config shows and changes.
type config struct {
	Faults       string       `json:"faults"`
	FailureRate  float64      `json:"failure-injection-rate"`
	FailureTypes []string     `json:"failure-types"`
	Seed         uint64       `json:"seed"`
	FakeMetrics  *FakeMetrics `json:"fake-metrics"`
}

// admin serializes changes.
type admin struct{ mu sync.Mutex }

func (e *Edge) serveAdmin(w http.ResponseWriter, r *http.Request) {
	if e.opt.AdminToken == "" && e.opt.Simulator != nil {
		e.admit(w, r)
		return
	}
	if e.opt.AdminToken == "" {
		apiError{status: http.StatusNotFound, message: adminPath + " is off: it needs an admin token"}.write(w)
		return
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(e.opt.AdminToken))
	if subtle.ConstantTimeCompare(a[:], b[:]) != 1 || !ok {
		apiError{status: http.StatusUnauthorized, message: "the admin token is wrong or missing"}.write(w)
		return
	}
	e.admit(w, r)
}

// admit answers a client that may see and change the configuration.
func (e *Edge) admit(w http.ResponseWriter, r *http.Request) {
	e.admin.mu.Lock()
	defer e.admin.mu.Unlock()
	switch r.Method {
	case http.MethodGet:
	case http.MethodPost:
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxAdmin))
		if err == nil {
			err = e.configure(body)
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
	draws := e.faults.Load()
	shown := struct {
		config
		Injected map[string]int `json:"injected"`
	}{e.config(), draws.counts()}
	text, err := jsonout.Bytes(shown)
	if s := e.opt.Simulator; err == nil && s != nil && s.Settings != nil {
		text, err = merged(text, s.Settings.Shown())
	}
	if err != nil {
		apiError{status: http.StatusInternalServerError, message: err.Error()}.write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // the client may be gone
}

// config is what applies now.
func (e *Edge) config() config {
	draws := e.faults.Load()
	c := config{FailureRate: draws.rate * 100, FailureTypes: draws.failures, Seed: draws.seed}
	texts := make([]string, len(draws.faults))
	for i := range draws.faults {
		texts[i] = draws.faults[i].text
	}
	c.Faults = strings.Join(texts, ",")
	if fake := e.fake.Load(); fake != nil {
		c.FakeMetrics = fake.metrics
	}
	return c
}

// configure makes a partial change, all of it or nothing.
func (e *Edge) configure(change []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(change, &keys); err != nil {
		return fmt.Errorf("want a JSON object: %w", err)
	}
	c := e.config()
	apply, err := e.opt.Simulator.change(keys)
	if err != nil {
		return err
	}
	for key, value := range keys {
		var err error
		switch key {
		case "faults":
			err = json.Unmarshal(value, &c.Faults)
		case "failure-injection-rate":
			err = json.Unmarshal(value, &c.FailureRate)
		case "failure-types":
			c.FailureTypes = nil
			err = json.Unmarshal(value, &c.FailureTypes)
		case "seed":
			err = json.Unmarshal(value, &c.Seed)
		case "fake-metrics":
			if c.FakeMetrics == nil {
				if e.opt.Simulator != nil {
					return errors.New("the simulator is reporting real metrics; fake metrics cannot be updated")
				}
				return errors.New("the server is reporting real metrics; fake metrics cannot be updated")
			}
			c.FakeMetrics, err = c.FakeMetrics.updated(value)
		default:
			return fmt.Errorf("field '%s' is not admin-configurable", key)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	faults, engine, err := ParseFaults(c.Faults)
	switch {
	case err != nil:
		return fmt.Errorf("faults: %w", err)
	case engine != "":
		return fmt.Errorf("faults: %q: while the server runs, only faults of HTTP can be changed: %s", engine, FaultForms())
	}
	if err := CheckFailures(c.FailureRate, c.FailureTypes); err != nil {
		return err
	}
	apply()
	for _, key := range []string{"faults", "failure-injection-rate", "failure-types", "seed"} {
		if _, changed := keys[key]; changed { // and the counts begin anew
			e.faults.Store(newFaultDraws(faults, c.FailureRate/100, c.FailureTypes, c.Seed))
			break
		}
	}
	if _, changed := keys["fake-metrics"]; changed {
		e.fake.Store(newFakeState(c.FakeMetrics, time.Now()))
	}
	e.log.Info("the configuration was changed", "change", string(bytes.TrimSpace(change)))
	return nil
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
