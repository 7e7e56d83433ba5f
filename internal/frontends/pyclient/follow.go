package pyclient

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// A message is a line of the driver's.
type message struct {
	Event   string `json:"event"`
	Version string `json:"version"`
	Address string `json:"address"`
	Client  string `json:"client"`
	Case    string `json:"case"`
	OK      bool   `json:"ok"`
	Unable  bool   `json:"unable"` // it could not be tried
	Late    bool   `json:"late"`   // no answer came
	Message string `json:"message"`
	Where   string `json:"where"`
	facts
}

// A run is one driver at work.
type run struct {
	opt     Options
	plan    *plan
	results []Result
	over    bool

	sessions []*session // that are not over
	left     []*aCase   // of the first session
	tried    *aCase     // at the moment
	last     string     // that was begun

	engineEnded chan error // by itself
	lost        string     // how the engine of this session ended by itself
	failed      bool       // a case of this session
	stopEngine  func()
}

func newRun(opt Options) *run {
	r := &run{opt: opt, plan: newPlan(opt), stopEngine: func() {}}
	r.sessions = r.plan.Sessions
	r.left = r.sessions[0].Cases
	return r
}

// at tells where the driver is, for the beginning of a message.
func (r *run) at() string {
	if r.last == "" {
		return "before the first case: "
	}
	return "at " + r.last + ": "
}

// take reads a line of the driver's.
func (r *run) take(ctx context.Context, line []byte) error {
	var m message
	if err := json.Unmarshal(line, &m); err != nil || m.Event == "" {
		return fmt.Errorf("%sthe driver wrote what is none of its messages: %q", r.at(), cut(string(line)))
	}
	switch m.Event {
	case "ready":
		r.opt.Log.Info("python client", "release", m.Version, "wheel", r.opt.Sources.Wheel)
		return nil
	case "unusable":
		return fmt.Errorf("%s%s", r.at(), oneLine(m.Message))
	case "case":
		return r.begin(m.Case)
	case "engine":
		return r.startEngine(ctx, m.Address)
	case "kill":
		r.stopEngine()
		return nil
	case "result":
		return r.judge(m)
	case "end":
		return r.endSession(m.Client)
	case "done":
		r.over = true
		if len(r.sessions) > 0 {
			return fmt.Errorf("the driver is done before %s", r.sessions[0].Client)
		}
		return nil
	}
	return fmt.Errorf("%sthe driver wrote an event %q, which is none", r.at(), cut(m.Event))
}

// begin notes that a case is tried: the next one, as the plan has them.
func (r *run) begin(name string) error {
	if r.tried != nil || len(r.left) == 0 || r.left[0].Name != name {
		return fmt.Errorf("%sthe driver tries %q, whose turn it is not", r.at(), cut(name))
	}
	r.tried, r.left, r.last = r.left[0], r.left[1:], name
	r.opt.Log.Debug("python client", "case", name)
	return nil
}

// judge ends the case that is tried.
func (r *run) judge(m message) error {
	c := r.tried
	if c == nil || c.Name != m.Case {
		return fmt.Errorf("%sthe driver has a result of %q, which is not tried", r.at(), cut(m.Case))
	}
	r.tried = nil
	result := Result{Case: c.Name, Verdict: Passed, Message: oneLine(m.Message), Where: oneLine(m.Where)}
	switch {
	case !m.OK && m.Unable && c.optional:
		result.Verdict = Skipped
	case !m.OK && m.Unable:
		result.Verdict = Unjudged
	case !m.OK:
		result.Verdict = Failed
	default:
		result = c.compare(result, m.facts)
	}
	if result.Verdict != Passed && result.Message == "" {
		result.Message = "the driver gave no reason"
	}
	if m.Late && r.lost != "" {
		result.Message += "; " + r.lost
	}
	r.failed = r.failed || result.Verdict == Failed
	r.results = append(r.results, result)
	return nil
}

// compare judges what came out of a case.
func (c *aCase) compare(result Result, f facts) Result {
	if err := c.judge(f); err != nil {
		result.Verdict, result.Message = Failed, oneLine(err.Error())
		return result
	}
	for _, a := range f.Answers {
		result.Tokens += len(a.Tokens)
	}
	return result
}

// endSession ends a client. Cases that it did not come to were not tried.
func (r *run) endSession(client string) error {
	if len(r.sessions) == 0 || r.sessions[0].Client != client || r.tried != nil {
		return fmt.Errorf("%sthe driver ends %q, which is not at work", r.at(), cut(client))
	}
	r.stopEngine()
	if r.lost != "" && !r.failed { // where a client gave up, its engine ends as well
		r.results = append(r.results, Result{Case: r.last, Verdict: Failed, Message: "meanwhile " + r.lost})
	}
	r.lost, r.failed = "", false
	r.skipRest()
	return nil
}

// skipRest takes note of what is left of the session, and goes on to the next.
func (r *run) skipRest() {
	for _, c := range r.left {
		r.results = append(r.results, Result{Case: c.Name, Verdict: Unjudged, Message: "not tried after " + r.last})
	}
	r.left = nil
	if r.sessions = r.sessions[1:]; len(r.sessions) > 0 {
		r.left = r.sessions[0].Cases
	}
}

// startEngine has an engine dial the driver.
func (r *run) startEngine(ctx context.Context, address string) error {
	r.stopEngine()
	serve, err := r.opt.Engine(address)
	if err != nil {
		return fmt.Errorf("%sengine: %w", r.at(), err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended, gone := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(gone)
		ended <- serve(ctx)
	}()
	r.engineEnded = ended
	r.stopEngine = func() {
		select {
		case err := <-ended:
			r.lost = endOf(err)
		default:
		}
		cancel()
		<-gone
		r.engineEnded, r.stopEngine = nil, func() {}
	}
	return nil
}

// endOf says how an engine ended that was to go on.
func endOf(err error) string {
	if err == nil {
		return "the engine ended"
	}
	return "the engine ended: " + oneLine(err.Error())
}

// mostText bounds what is quoted of the driver, in bytes.
const mostText = 600

// oneLine makes a text of the release fit for a report: a line of what can be printed.
func oneLine(text string) string {
	printable := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
	return cut(strings.Join(strings.Fields(printable), " "))
}

func cut(text string) string {
	if len(text) > mostText {
		return strings.ToValidUTF8(text[:mostText], "") + "…"
	}
	return text
}
