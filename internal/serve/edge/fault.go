package edge

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// FaultKind is what goes wrong with an answer.
type FaultKind string

// The kinds of faults. A position counts the events of a stream that come before; of an answer that is not a stream, a
// fault at a position happens after half of the body.
const (
	// FaultStatus answers with a status and the error that belongs to it.
	FaultStatus FaultKind = "status"
	// FaultFail answers the first Times requests of each client with a status; later ones are served.
	FaultFail FaultKind = "http-fail"
	// FaultDelay sends the request to the frontend later.
	FaultDelay FaultKind = "http-delay"
	// FaultReset resets the connection, without an answer or after some events.
	FaultReset FaultKind = "http-reset"
	// FaultTruncate ends the answer early, as if it were whole.
	FaultTruncate FaultKind = "http-truncate"
	// FaultSlow waits before each event.
	FaultSlow FaultKind = "http-slow"
	// FaultMalformed sends an event that is not valid JSON.
	FaultMalformed FaultKind = "http-malformed"
	// FaultError ends a stream with an error event, and answers without a stream with status 500.
	FaultError FaultKind = "http-error"
	// FaultHang sends nothing, or nothing more, and keeps the connection open.
	FaultHang FaultKind = "http-hang"
	// FaultRefuse resets the connection and refuses new ones for a time.
	FaultRefuse FaultKind = "http-refuse"
)

// faultForms are the kinds in the form that [ParseFaults] reads.
var faultForms = []struct {
	kind FaultKind
	form string
}{
	{FaultStatus, "status:CODE[:RETRY-AFTER]"},
	{FaultFail, "http-fail:N[:CODE[:RETRY-AFTER]]"},
	{FaultDelay, "http-delay:TIME"},
	{FaultReset, "http-reset[:EVENTS]"},
	{FaultTruncate, "http-truncate[:EVENTS]"},
	{FaultSlow, "http-slow:TIME[:EVENTS]"},
	{FaultMalformed, "http-malformed[:EVENTS]"},
	{FaultError, "http-error[:EVENTS]"},
	{FaultHang, "http-hang[:EVENTS]"},
	{FaultRefuse, "http-refuse:TIME"},
}

// Failures are the failure types of llm-d-inference-sim. Each is also a fault without a value.
var Failures = []string{"rate_limit", "invalid_api_key", "context_length", "server_error", "invalid_request", "model_not_found"}

// FaultForms lists the faults of the edge in the form that [ParseFaults] reads.
func FaultForms() string {
	forms := make([]string, 0, len(faultForms)+len(Failures))
	for _, known := range faultForms {
		forms = append(forms, known.form)
	}
	return strings.Join(append(forms, Failures...), ", ")
}

// Fault is something that goes wrong with some answers, on purpose.
type Fault struct {
	Kind FaultKind
	// Failure is one of [Failures], or "" for the error of Status.
	Failure string
	// Status is the code of an error.
	Status     int
	RetryAfter time.Duration
	// Times is how many requests of a client fail.
	Times int
	// Time is a delay, or how long connections are refused.
	Time time.Duration
	// After is a position; HasAfter says that one was given.
	After    int
	HasAfter bool
	// Probability is the share of requests that have it, above 0 and at most 1.
	Probability float64
	// Conditions must all hold.
	Conditions []Condition
	text       string
}

// A Condition is a pattern as of [path.Match] for a part of a request. A star matches slashes too.
type Condition struct {
	// Field is id (X-Request-Id), path, model, key (see [Fault]) or the name of a header in lower case after "header.".
	Field, Pattern string
}

// String is what [ParseFaults] has read.
func (f Fault) String() string { return f.text }

// ParseFaults reads faults in the grammar of the player, separated by commas, each as
// kind[:value][@probability][~pattern]. It returns those of the edge, and the text of the others for the player. At the
// edge a pattern may begin with the name of what it is for, and there may be several:
//
//	status:429:2s@0.1               one in ten is answered with 429 and "Retry-After: 2"
//	http-fail:2                     the first two requests of each client are answered with 503
//	http-reset:3~model=*llama*      the connection is reset after three events
//	status:503~path=/health         of the endpoint /health
func ParseFaults(s string) (faults []Fault, engine string, err error) {
	if strings.TrimSpace(s) == "" {
		return nil, "", nil
	}
	var others []string
	for i, text := range strings.Split(s, ",") {
		text = strings.TrimSpace(text)
		f, ours, err := parseFault(text)
		if err != nil {
			return nil, "", fmt.Errorf("fault %d, %q: %w", i+1, text, err)
		}
		if ours {
			faults = append(faults, f)
		} else {
			others = append(others, text)
		}
	}
	return faults, strings.Join(others, ","), nil
}

func parseFault(text string) (f Fault, ours bool, err error) {
	f = Fault{Probability: 1, text: text}
	rest, patterns, conditional := strings.Cut(text, "~")
	rest, share, shared := strings.Cut(rest, "@")
	kind, value, has := strings.Cut(rest, ":")
	form := ""
	for _, known := range faultForms {
		if string(known.kind) == kind {
			form = known.form
		}
	}
	if slices.Contains(Failures, kind) {
		form, f.Kind, f.Failure = kind, FaultStatus, kind
	} else if f.Kind = FaultKind(kind); form == "" {
		return f, false, nil
	}
	if shared {
		if f.Probability, err = strconv.ParseFloat(share, 64); err != nil || !(f.Probability > 0 && f.Probability <= 1) {
			return f, true, fmt.Errorf("probability %q: want a number above 0 and up to 1", share)
		}
	}
	if conditional {
		for pattern := range strings.SplitSeq(patterns, "~") {
			c, err := parseCondition(pattern)
			if err != nil {
				return f, true, err
			}
			f.Conditions = append(f.Conditions, c)
		}
	}
	if err := f.parseValue(value, has); err != nil {
		return f, true, fmt.Errorf("%w: want %s", err, form)
	}
	return f, true, nil
}

func parseCondition(text string) (c Condition, err error) {
	c = Condition{Field: "id", Pattern: text}
	if field, pattern, has := strings.Cut(text, "="); has {
		c = Condition{Field: strings.ToLower(field), Pattern: pattern}
	}
	header, isHeader := strings.CutPrefix(c.Field, "header.")
	if !slices.Contains([]string{"id", "path", "model", "key"}, c.Field) && (!isHeader || header == "") {
		return c, fmt.Errorf("pattern %q: want PATTERN, or one of id, path, model, key and header.NAME before =PATTERN", text)
	}
	if _, err := path.Match(c.Pattern, ""); err != nil || c.Pattern == "" {
		return c, fmt.Errorf("pattern %q cannot match anything", c.Pattern)
	}
	return c, nil
}

// maxTime bounds the times of faults, so that none outlives its test by much.
const maxTime = 24 * time.Hour

func (f *Fault) parseValue(value string, has bool) (err error) {
	if f.Failure != "" {
		if has {
			return fmt.Errorf("value %q", value)
		}
		return nil
	}
	parts := strings.Split(value, ":")
	next := func() (part string, has bool) {
		if len(parts) == 0 {
			return "", false
		}
		part, parts = parts[0], parts[1:]
		return part, true
	}
	if !has {
		parts = nil
	}
	if f.Kind == FaultFail {
		part, _ := next()
		if f.Times, err = strconv.Atoi(part); err != nil || f.Times < 1 {
			return fmt.Errorf("number of requests %q", part)
		}
		f.Status = http.StatusServiceUnavailable
	}
	switch f.Kind {
	case FaultStatus, FaultFail:
		if part, has := next(); has || f.Kind == FaultStatus {
			if f.Status, err = strconv.Atoi(part); err != nil || f.Status < 300 || f.Status > 599 {
				return fmt.Errorf("status %q is none from 300 to 599", part)
			}
		}
		if part, has := next(); has {
			if f.RetryAfter, err = parseTime(part); err != nil {
				return err
			}
		} else if f.Status == http.StatusTooManyRequests {
			f.RetryAfter = time.Second
		}
	case FaultDelay, FaultSlow, FaultRefuse:
		part, _ := next()
		if f.Time, err = parseTime(part); err != nil {
			return err
		}
	}
	switch f.Kind {
	case FaultReset, FaultTruncate, FaultSlow, FaultMalformed, FaultError, FaultHang:
		if part, has := next(); has {
			if f.After, err = strconv.Atoi(part); err != nil || f.After < 0 {
				return fmt.Errorf("number of events %q", part)
			}
			f.HasAfter = true
		}
	}
	if len(parts) > 0 {
		return fmt.Errorf("%q is too much", strings.Join(parts, ":"))
	}
	return nil
}

func parseTime(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxTime {
		return 0, fmt.Errorf("time %q is none such as 50ms, up to 24h", text)
	}
	return d, nil
}

// answer is the error of a fault with a status, for a request to a model.
func (f *Fault) answer(model string) apiError {
	a := apiError{status: f.Status, retryAfter: f.RetryAfter}
	failure := f.Failure
	failure = cmp.Or(failure, map[int]string{400: "context_length", 401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit", 503: "server_error"}[f.Status])
	switch failure {
	case "rate_limit":
		a.status = http.StatusTooManyRequests
		a.message = fmt.Sprintf("Rate limit reached for %s in organization org-xxx on requests per min (RPM): Limit 3, Used 3, Requested 1.", model)
		a.retryAfter = max(a.retryAfter, 0)
		if f.Failure != "" {
			a.retryAfter = time.Second
		}
	case "invalid_api_key":
		a.status, a.message = http.StatusUnauthorized, "Incorrect API key provided."
	case "context_length":
		a.status, a.param = http.StatusBadRequest, "messages"
		a.message = "This model's maximum context length is 4096 tokens. However, your messages resulted in 4500 tokens. Please reduce the length of the messages."
	case "server_error":
		a.status, a.message = http.StatusServiceUnavailable, "The server is overloaded or not ready yet."
	case "invalid_request":
		a.status, a.param, a.message = http.StatusBadRequest, "model", "Invalid request: missing required parameter 'model'."
	case "model_not_found":
		a.status, a.message = http.StatusNotFound, fmt.Sprintf("The model '%s-nonexistent' does not exist", model)
	default:
		a.message = fmt.Sprintf("Injected error with status %d (%s)", f.Status, http.StatusText(f.Status))
	}
	return a
}

// maxClients bounds the clients whose failed requests are counted. Others are served.
const maxClients = 1 << 16

// faultDraws decides which faults a request has. Each fault has a random source of its own, so that none changes what
// another one does.
type faultDraws struct {
	faults   []Fault
	rate     float64 // of 1, for one of failures
	failures []string
	seed     uint64

	mu       sync.Mutex
	rands    []*rand.Rand // one for each fault, and one for rate
	failed   []map[[sha256.Size]byte]int
	injected []int // for each fault, and for rate
	matched  []int // requests that each fault concerns, whether it was drawn or not
	requests int
}

func newFaultDraws(faults []Fault, rate float64, failures []string, seed uint64) *faultDraws {
	n := len(faults)
	d := &faultDraws{faults: faults, rate: rate, failures: failures, seed: seed, rands: make([]*rand.Rand, n+1), failed: make([]map[[sha256.Size]byte]int, n), injected: make([]int, n+1), matched: make([]int, n)}
	if len(failures) == 0 {
		d.failures = Failures
	}
	for i := range d.rands {
		d.rands[i] = rand.New(rand.NewPCG(seed, uint64(i)))
	}
	return d
}

// reads reports whether faults or the log depend on the bodies of requests.
func (e *Edge) reads() bool {
	d := e.faults.Load()
	return e.opt.RequestLog != nil || e.opt.RequestFaults || len(d.faults) > 0 || d.rate > 0
}

// of returns the faults of a request, in their order.
func (d *faultDraws) of(r *http.Request, x *exchange) []Fault {
	if len(d.faults) == 0 && d.rate == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []Fault
	d.requests++
	for i := range d.faults {
		f := &d.faults[i]
		if !f.concerns(r, x) {
			continue
		}
		d.matched[i]++
		if f.Probability < 1 && d.rands[i].Float64() >= f.Probability || f.Kind == FaultFail && !d.fails(i, r) {
			continue
		}
		d.injected[i]++
		all = append(all, *f)
	}
	last := len(d.faults)
	if d.rate > 0 && isGeneration(r) && d.rands[last].Float64() < d.rate {
		failure := d.failures[d.rands[last].IntN(len(d.failures))]
		d.injected[last]++
		all = append(all, Fault{Kind: FaultStatus, Failure: failure, text: failure})
	}
	return all
}

// UnmatchedFaults returns the faults that have concerned no request since they were set, and how many requests there
// were.
func (e *Edge) UnmatchedFaults() (unmatched []Fault, requests int) {
	d := e.faults.Load()
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, f := range d.faults {
		if d.matched[i] == 0 {
			unmatched = append(unmatched, f)
		}
	}
	return unmatched, d.requests
}

// fails counts a request of a client, and reports whether it is one of those that fail.
func (d *faultDraws) fails(i int, r *http.Request) bool {
	key := sha256.Sum256([]byte(clientKey(r)))
	if d.failed[i] == nil {
		d.failed[i] = make(map[[sha256.Size]byte]int)
	}
	n, known := d.failed[i][key]
	if n >= d.faults[i].Times || !known && len(d.failed[i]) >= maxClients {
		return false
	}
	d.failed[i][key] = n + 1
	return true
}

// clientKey distinguishes clients: by the header X-Fault-Key, else by the API key, else by the address.
func clientKey(r *http.Request) string {
	for _, name := range []string{headerFaultKey, "Authorization", "X-Api-Key"} {
		if value := r.Header.Get(name); value != "" {
			return strings.TrimPrefix(value, "Bearer ")
		}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// concerns reports whether the conditions of a fault hold. Without a condition for the path it is for generating
// endpoints.
func (f *Fault) concerns(r *http.Request, x *exchange) bool {
	forPath := false
	for _, c := range f.Conditions {
		var value string
		switch c.Field {
		case "id":
			value = x.id
		case "path":
			value, forPath = r.URL.Path, true
		case "model":
			value = x.asked.model
		case "key":
			value = clientKey(r)
		default:
			value = r.Header.Get(strings.TrimPrefix(c.Field, "header."))
		}
		// A star of path.Match matches no slash.
		slashes := strings.NewReplacer("/", "\x01")
		if matches, err := path.Match(slashes.Replace(c.Pattern), slashes.Replace(value)); err != nil || !matches {
			return false
		}
	}
	return forPath || isGeneration(r)
}

// isGeneration reports whether a request asks the model for something.
func isGeneration(r *http.Request) bool {
	p := r.URL.Path
	return r.Method == http.MethodPost && (strings.Contains(p, "/v1/") && !strings.HasSuffix(p, "load_lora_adapter") ||
		p == callGenerate || p == callEmbed)
}

// Headers by which a request asks for a fault, or names its client.
const (
	headerFault       = "X-Fault"
	headerFaultKey    = "X-Fault-Key"
	headerReturnError = "X-Return-Error" // of llm-d-inference-sim
)

// ownFaults are the faults that a request asks for.
func (e *Edge) ownFaults(r *http.Request, x *exchange) ([]Fault, error) {
	text, code := r.Header.Get(headerFault), r.Header.Get(headerReturnError)
	if text == "" && code == "" {
		return nil, nil
	}
	if !e.opt.RequestFaults && (!e.opt.Policy.ReturnError || text != "") {
		return nil, fmt.Errorf("%s and %s: requests may not ask for faults: start the server with --allow-request-faults", headerFault, headerReturnError)
	}
	var own []Fault
	if code != "" {
		status, err := strconv.Atoi(code)
		if err != nil {
			//lint:ignore ST1005 the words of llm-d-inference-sim
			return nil, fmt.Errorf("Invalid %s header value %q: must be an integer", headerReturnError, code)
		}
		if status < 300 || status > 599 {
			return nil, fmt.Errorf("%s: %d: want a status from 300 to 599", headerReturnError, status)
		}
		own = append(own, Fault{Kind: FaultStatus, Status: status, text: headerReturnError + ": " + strconv.Itoa(status)})
	}
	if text == "" {
		return own, nil
	}
	if len(text) > maxOwnFaults {
		return nil, fmt.Errorf("%s: %d bytes: want at most %d", headerFault, len(text), maxOwnFaults)
	}
	faults, engine, err := ParseFaults(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", headerFault, err)
	}
	if engine != "" {
		return nil, fmt.Errorf("%s: %q is not a fault of HTTP: want one of %s; a request asks for faults of the engine with vllm_vcr_fault in vllm_xargs", headerFault, engine, FaultForms())
	}
	return append(own, e.own.of(text, faults, e.opt.Seed).of(r, x)...), nil
}

const (
	maxOwnFaults = 1 << 10 // bytes of a header
	maxOwnDraws  = 1 << 10 // different headers
)

// ownDraws has what has been drawn for each header by which requests asked for faults, so that a request can ask for a
// fault that its next try does not have.
type ownDraws struct {
	mu    sync.Mutex
	draws map[string]*faultDraws
}

func (o *ownDraws) of(text string, faults []Fault, seed uint64) *faultDraws {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.draws[text]
	if d == nil {
		d = newFaultDraws(faults, 0, nil, seed)
		if o.draws == nil || len(o.draws) >= maxOwnDraws {
			o.draws = make(map[string]*faultDraws)
		}
		o.draws[text] = d
	}
	return d
}

// CheckFailures returns an error for a rate that is not a percentage, and for an unknown failure type.
func CheckFailures(rate float64, failures []string) error {
	if !(rate >= 0 && rate <= 100) {
		return errors.New("failure injection rate should be between 0 and 100")
	}
	for _, failure := range failures {
		if !slices.Contains(Failures, failure) {
			return fmt.Errorf("invalid failure type '%s', valid types are: %s", failure, strings.Join(Failures, ", "))
		}
	}
	return nil
}
