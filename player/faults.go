package player

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// FaultKind is what goes wrong.
type FaultKind string

// The kinds of faults. Positions count the tokens of a request's answer before; the
// token in question is then the next one.
const (
	// FaultRefuse ends the request at once with an error.
	FaultRefuse FaultKind = "refuse"
	// FaultFail refuses the first Times requests, with an error that invites to try
	// again; later ones are served.
	FaultFail FaultKind = "fail"
	// FaultDelay lets the request wait for Delay before it is queued, or with HasAfter
	// the output after After tokens.
	FaultDelay FaultKind = "delay"
	// FaultStall sends nothing more after After tokens. The request keeps its place and
	// its blocks until it is aborted.
	FaultStall FaultKind = "stall"
	// FaultDrop loses the tokens of the output that has token After.
	FaultDrop FaultKind = "drop"
	// FaultError ends the request with an error in the place of token After.
	FaultError FaultKind = "error"
	// FaultWrongToken sends another token in the place of token After.
	FaultWrongToken FaultKind = "wrong-token"
	// FaultKill ends the engine before token After, without a last message: [Player.Run]
	// returns [ErrKilled].
	FaultKill FaultKind = "kill"
	// FaultForgetKV ends the lease of the request's KV cache at once, before another engine has read it.
	FaultForgetKV FaultKind = "kv-forget"
	// FaultSlowKV lets the KV cache that the request waits for come Delay later.
	FaultSlowKV FaultKind = "kv-slow"
	// FaultLoseKV fails the request's pull of a KV cache.
	FaultLoseKV FaultKind = "kv-lose"
)

// faultForms are the kinds in the form that [ParseFaults] reads.
var faultForms = []struct {
	kind FaultKind
	form string
}{
	{FaultRefuse, "refuse"},
	{FaultFail, "fail:N"},
	{FaultDelay, "delay:TIME[:AFTER]"},
	{FaultStall, "stall[:AFTER]"},
	{FaultDrop, "drop[:AFTER]"},
	{FaultError, "error[:AFTER]"},
	{FaultWrongToken, "wrong-token[:AFTER]"},
	{FaultKill, "kill[:AFTER]"},
	{FaultForgetKV, "kv-forget"},
	{FaultSlowKV, "kv-slow:TIME"},
	{FaultLoseKV, "kv-lose"},
}

// Fault is something that goes wrong with some requests, on purpose. Others notice
// nothing of it, but for a killed engine.
type Fault struct {
	Kind FaultKind
	// After is a position in tokens; HasAfter is set if there is one.
	After    int
	HasAfter bool
	Times    int
	Delay    time.Duration
	// Probability is the share of requests that have it, above 0 and at most 1. Which
	// they are depends on the seed and on how many requests came before.
	Probability float64
	// Requests is a pattern as of [path.Match] that the request's id matches; "" is any.
	Requests string
}

// ErrKilled is returned by Run when a fault has killed the engine.
var ErrKilled = errors.New("a fault has killed the engine")

// ParseFaults reads faults separated by commas, each as kind[:value][@probability][~pattern]:
//
//	refuse@0.01             one in a hundred requests
//	fail:3                  the first three requests
//	delay:50ms@0.1          one in ten is queued 50 ms late
//	delay:2s:20             the output after 20 tokens is 2 s late
//	stall:20~*slow*         after 20 tokens, of requests whose id has "slow" in it
//	drop, wrong-token:5, kill:100
//	kv-forget, kv-slow:2s, kv-lose
//
// A position that is not given is 0, the first token.
func ParseFaults(s string) ([]Fault, error) {
	var faults []Fault
	for i, text := range strings.Split(s, ",") {
		text = strings.TrimSpace(text)
		if text == "" && !strings.Contains(s, ",") {
			return nil, nil
		}
		f, err := parseFault(text)
		if err != nil {
			return nil, fmt.Errorf("fault %d, %q: %w", i+1, text, err)
		}
		faults = append(faults, f)
	}
	return faults, nil
}

func parseFault(text string) (f Fault, err error) {
	f.Probability = 1
	text, pattern, has := strings.Cut(text, "~")
	if _, err := path.Match(pattern, ""); err != nil || has && pattern == "" {
		return f, fmt.Errorf("pattern %q cannot match any request id", pattern)
	}
	f.Requests = pattern
	text, share, has := strings.Cut(text, "@")
	if has {
		if f.Probability, err = strconv.ParseFloat(share, 64); err != nil || !(f.Probability > 0 && f.Probability <= 1) {
			return f, fmt.Errorf("probability %q: want a number above 0 and up to 1", share)
		}
	}
	kind, value, has := strings.Cut(text, ":")
	f.Kind = FaultKind(kind)
	for _, known := range faultForms {
		if known.kind == f.Kind {
			return f, f.parseValue(value, has, known.form)
		}
	}
	forms := make([]string, len(faultForms))
	for i, known := range faultForms {
		forms[i] = known.form
	}
	return f, fmt.Errorf("no such fault: want one of %s", strings.Join(forms, ", "))
}

// String is the fault as [ParseFaults] reads it.
func (f Fault) String() string {
	text := string(f.Kind)
	if f.Kind == FaultFail {
		text += ":" + strconv.Itoa(f.Times)
	}
	if f.Delay > 0 {
		text += ":" + f.Delay.String()
	}
	if f.HasAfter {
		text += ":" + strconv.Itoa(f.After)
	}
	if f.Probability < 1 {
		text += "@" + strconv.FormatFloat(f.Probability, 'g', -1, 64)
	}
	if f.Requests != "" {
		text += "~" + f.Requests
	}
	return text
}

func (f *Fault) parseValue(value string, has bool, form string) (err error) {
	switch f.Kind {
	case FaultRefuse, FaultForgetKV, FaultLoseKV:
		if has {
			return fmt.Errorf("value %q: want %s, or with a probability %s@0.01", value, form, form)
		}
		return nil
	case FaultFail:
		if f.Times, err = strconv.Atoi(value); err != nil || f.Times < 1 {
			return fmt.Errorf("value %q: want %s, with a number of requests", value, form)
		}
		return nil
	case FaultDelay, FaultSlowKV:
		delay := value
		if f.Kind == FaultDelay {
			delay, value, has = strings.Cut(value, ":")
		} else {
			has = false
		}
		if f.Delay, err = time.ParseDuration(delay); err != nil || f.Delay <= 0 {
			return fmt.Errorf("time %q: want %s, with a time such as 50ms", delay, form)
		}
	}
	f.HasAfter = has
	if has {
		if f.After, err = strconv.Atoi(value); err != nil || f.After < 0 {
			return fmt.Errorf("value %q: want %s, with a number of tokens", value, form)
		}
	}
	return nil
}

// requestFaults are those that are injected into one request.
type requestFaults struct {
	faults []Fault
	delay  time.Duration // until it is queued
}

// faultDraws decides into which requests faults are injected. Each fault has a random
// source of its own, so that none changes what another one does.
type faultDraws struct {
	faults   []Fault
	rands    []*rand.Rand
	failed   []int
	matched  []int // requests whose id has the pattern
	requests int
}

func newFaultDraws(faults []Fault, seed uint64) *faultDraws {
	d := &faultDraws{faults: faults, rands: make([]*rand.Rand, len(faults)), failed: make([]int, len(faults)), matched: make([]int, len(faults))}
	for i := range faults {
		d.rands[i] = rand.New(rand.NewPCG(seed, uint64(i)))
	}
	return d
}

// of returns the faults of a request.
func (d *faultDraws) of(id string) []Fault {
	var all []Fault
	d.requests++
	for i, f := range d.faults {
		if f.Requests != "" {
			if matches, err := path.Match(f.Requests, id); err != nil || !matches {
				continue
			}
		}
		d.matched[i]++
		if f.Probability < 1 && d.rands[i].Float64() >= f.Probability {
			continue
		}
		if f.Kind == FaultFail {
			if d.failed[i] >= f.Times {
				continue
			}
			d.failed[i]++
		}
		all = append(all, f)
	}
	return all
}

// faultArg is the member of a request's extra_args with which it asks for faults of its
// own, as ParseFaults reads them.
const faultArg = "vllm_vcr_fault"

// faultsFor decides which faults are injected into a request: those of the player, and
// those it asks for itself; nil without any.
func (e *engine) faultsFor(r *protocol.Request) (*requestFaults, error) {
	var faults []Fault
	if e.faults != nil {
		faults = e.faults.of(r.ID)
	}
	raw, err := extraArg(r, faultArg)
	if err != nil {
		return nil, err
	}
	if raw != nil && !e.opt.RequestFaults {
		return nil, fmt.Errorf("%s: requests may not ask for faults: start the player with --allow-request-faults", faultArg)
	}
	if raw != nil {
		cur := pack.NewCursor(raw)
		text, err := cur.StrString()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", faultArg, err)
		}
		own, err := ParseFaults(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", faultArg, err)
		}
		e.ownDraws++
		faults = append(faults, newFaultDraws(own, e.opt.Seed^e.ownDraws).of(r.ID)...)
	}
	if faults == nil {
		return nil, nil
	}
	t := &requestFaults{faults: faults}
	for _, f := range faults {
		if f.Kind == FaultDelay && !f.HasAfter {
			t.delay += f.Delay
		}
	}
	return t, nil
}

// refusal is the error that a fault refuses the request with, nil when none does.
func (t *requestFaults) refusal() *protocol.RequestError {
	if t == nil {
		return nil
	}
	for _, f := range t.faults {
		switch f.Kind {
		case FaultRefuse:
			return &protocol.RequestError{Code: "injected_fault", Message: "refused by a fault"}
		case FaultFail:
			return &protocol.RequestError{Code: "injected_fault", Message: "refused by a fault, the next try may succeed", Retryable: true}
		}
	}
	return nil
}

// has returns the fault of a kind.
func (t *requestFaults) has(kind FaultKind) (f Fault, is bool) {
	if t == nil {
		return f, false
	}
	i := slices.IndexFunc(t.faults, func(f Fault) bool { return f.Kind == kind })
	if i < 0 {
		return f, false
	}
	return t.faults[i], true
}

// heldByFault reports whether a fault withholds the next output of a request now. An
// output is delayed once.
func (e *engine) heldByFault(q *request, now time.Duration) bool {
	for i := range q.faults.faults {
		f := &q.faults.faults[i]
		if f.Kind == "" || !f.HasAfter && f.Kind == FaultDelay || q.sent < f.After {
			continue
		}
		switch f.Kind {
		case FaultKill:
			e.killed = true
			return true
		case FaultStall:
			q.due = never
			return true
		case FaultDelay:
			q.due = now + f.Delay
			*f = Fault{} // has happened
			return true
		}
	}
	return false
}

// spoil changes an output that is about to be sent, and reports whether its tokens are
// lost.
func (q *request) spoil(out *protocol.Output, vocab uint32) (lost bool) {
	first := q.sent - len(out.Tokens)
	for _, f := range q.faults.faults {
		at := f.After - first
		if at < 0 || at >= len(out.Tokens) {
			continue
		}
		switch f.Kind {
		case FaultWrongToken:
			out.Tokens = append([]uint32(nil), out.Tokens...) // it may be the recording's own
			out.Tokens[at] = anotherToken(out.Tokens[at], vocab)
		case FaultError:
			out.Tokens, out.Finish = out.Tokens[:at], protocol.FinishError
		case FaultDrop:
			lost = true
		}
	}
	if lost {
		out.Tokens = nil
	}
	return lost
}

// anotherToken is a token of the vocabulary that is not this one.
func anotherToken(token, vocab uint32) uint32 {
	if token+1 < vocab {
		return token + 1
	}
	if token > 0 {
		return 0
	}
	return 1
}
