package replay

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

//go:embed frames.md
var framesCheckCodes string

var framesCheck = check.Check{Name: check.Frames, Codes: framesCheckCodes, Run: checkFrames}

// What is wrong with a session of role frames, besides the layout of its messages (F016).
const (
	CodeFramesStray   check.Code = "N001" // an output for a request that the engine was not sent
	CodeFramesLate    check.Code = "N002" // an output behind the last one of its request
	CodeFramesAnswer  check.Code = "N003" // an answer to a utility call that was not made, or a second one
	CodeFramesRank    check.Code = "N004" // a message names another engine than it is of
	CodeFramesEvents  check.Code = "N005" // KV events do not follow on those before them
	CodeFramesNothing check.Code = "N006" // nothing was asked or nothing was answered
)

// checkFrames judges the messages of both sides that a golden of role frames has, by themselves: each is exactly of the
// line's layout, and each answer is one to something that was asked. No engine under test is needed.
//
// What the embedded player would say in such a session is compared with it as for role wire, and what it cannot say is
// noted: a gap of the player, not a failure of the session.
func checkFrames(ctx context.Context, e *check.Env, g *check.Golden, c check.Case) (check.Outcome, error) {
	f := JudgeFrames(g.Location, g.Codec, g.Frames, c.Variant.Side)
	if len(f.Failures) == 0 && c.Variant.Side == "" {
		f.AddNote(gapsOfPlayer(ctx, e, g, c))
	}
	return f, nil
}

// mostGaps is how many places a note names.
const mostGaps = 8

// partOfOne is the part of a session that one engine without a coordinator and one client have, up to the death of the engine.
func partOfOne(messages []trace.Message) (part []trace.Message) {
	for _, m := range messages {
		if m.Note == "" && len(m.Frames) == 1 && string(m.Frames[0]) == protocol.EngineDead {
			return part
		}
		if m.Rank == 0 && m.Client == 0 && !strings.HasPrefix(m.Channel, "coordinator_") {
			part = append(part, m)
		}
	}
	return part
}

// gapsOfPlayer says which messages of a session the engine under test would not say again, given its steps.
func gapsOfPlayer(ctx context.Context, e *check.Env, g *check.Golden, c check.Case) string {
	w, err := NewWireSession(g.Location, g.Codec, partOfOne(g.Frames))
	var f check.Outcome
	switch {
	case e.Address != "":
		err = check.ErrNotStepped
	case err == nil:
		// What the player complains of in a session that was not made for it is not reported.
		quiet := &check.Env{Engine: e.Engine, Timeouts: e.Timeouts, Log: slog.New(slog.DiscardHandler), Context: e.Context, Versions: e.Versions}
		f, err = replayWire(ctx, quiet, g, c, w)
	}
	switch {
	case errors.Is(err, check.ErrNotStepped):
		return "not compared with what the engine under test says: it has a time of its own"
	case err != nil:
		return "the player cannot repeat it: " + strings.TrimPrefix(check.FirstLine(err), g.Location+": ")
	case len(f.Failures) == 0:
		return fmt.Sprintf("the player repeats it: %s compared", safetext.Count(f.Asserted, "message"))
	}
	var places []string
	for _, failure := range f.Failures {
		if place := check.Place(failure.Path); !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	more := ""
	if n := len(places) - mostGaps; n > 0 {
		places, more = places[:mostGaps], fmt.Sprintf(", and %d more", n)
	}
	return "the player does not repeat: " + strings.Join(places, ", ") + more
}

// JudgeFrames judges the messages of a session: those of a side, or all if it is empty.
func JudgeFrames(name string, codec *protocol.Codec, messages []trace.Message, side string) (f check.Outcome) {
	j := NewFramesJudge(name, codec)
	for i := range messages {
		if m := &messages[i]; m.Note == "" {
			sender := check.SideFrontend
			if m.Direction == trace.EngineToFrontend {
				sender = check.SideEngine
			}
			if j.isOther = side != "" && sender != side; !j.isOther {
				f.Asserted++
			}
			j.judge(i+1, m.Line, m)
		}
	}
	j.isOther = side == check.SideFrontend
	j.broken(j.invariants.Rest())
	j.layout.Report(&f)
	j.found.report(&f)
	if j.counts["ADD"]+j.counts["UTILITY"] == 0 || j.counts["output"] == 0 {
		f.Fail(check.Failed(CodeFramesNothing, "%s: %s and %s of a frontend, %s of an engine: the session has no requests, or no answers",
			name, safetext.Count(j.counts["ADD"], "request"), safetext.Count(j.counts["UTILITY"], "utility call"), safetext.Count(j.counts["output"], "message")))
	}
	if left := j.unanswered(); left != "" {
		f.AddNote(left)
	}
	return f
}

// judge judges a message, which failures name by its number and its line.
func (j *FramesJudge) judge(number, line int, m *trace.Message) {
	j.number, j.line = number, line
	j.message(m)
	j.broken(j.invariants.Message(number, m))
}

// NewFramesJudge begins to judge a session.
func NewFramesJudge(name string, codec *protocol.Codec) *FramesJudge {
	return &FramesJudge{
		name: name, codec: codec, layout: LayoutCheck{Codec: codec}, counts: map[string]int{},
		invariants: invariant.NewSession(codec, invariant.Options{}),
		requests:   map[requestKey]*framesRequest{}, calls: map[callKey]bool{}, events: map[int]int64{},
	}
}

// Finds reports whether other frames in the place of those of the next message would be found at once.
func (j *FramesJudge) Finds(m *trace.Message, frames [][]byte) bool {
	other := *j
	other.layout, other.found = LayoutCheck{Codec: other.codec}, repeated{}
	other.counts, other.calls, other.events = maps.Clone(other.counts), maps.Clone(other.calls), maps.Clone(other.events)
	other.requests = map[requestKey]*framesRequest{}
	for key, r := range j.requests {
		known := *r
		other.requests[key] = &known
	}
	other.invariants = j.invariants.Clone()
	changed := *m
	changed.Frames = frames
	other.message(&changed)
	return len(other.found.found)+len(other.layout.Kinds)+len(other.invariants.Message(0, &changed)) > 0
}

// Take takes the next message.
func (j *FramesJudge) Take(m *trace.Message) {
	j.message(m)
	j.invariants.Message(0, m)
}

// broken notes what cannot be of any engine.
func (j *FramesJudge) broken(found []check.Failure) {
	if j.isOther {
		return
	}
	for _, f := range found {
		if text, ok := strings.CutPrefix(f.Message, fmt.Sprintf("message %d: ", j.number)); ok { // a file is read by its lines
			f.Message = fmt.Sprintf("line %d: %s", j.line, text)
		}
		f.Message = j.name + ": " + f.Message
		j.found.add(string(f.Code)+" "+check.Place(f.Path), f)
	}
}

// FramesJudge follows the messages of a session, which are given to it in their order.
type FramesJudge struct {
	name         string
	codec        *protocol.Codec
	number, line int  // of the message at hand
	isOther      bool // it is of the side that is not judged
	layout       LayoutCheck
	invariants   *invariant.Session
	found        repeated
	counts       map[string]int
	requests     map[requestKey]*framesRequest
	calls        map[callKey]bool // false once answered
	events       map[int]int64    // the number of the last KV events, by rank
	out          protocol.Outputs
}

// requestKey and callKey tell requests and calls of different engines and frontend processes apart.
type (
	requestKey struct {
		rank int
		id   string
	}
	callKey struct {
		rank, client int
		id           uint64
	}
)

// framesRequest is a request of one engine.
type framesRequest struct {
	index          int // in the order of the first ADD
	client         int
	finished, gone bool // gone: its frontend has aborted it
}

func (j *FramesJudge) message(m *trace.Message) {
	if len(m.Frames) == 0 {
		j.mismatches(m, []protocol.Mismatch{{Path: "message", Expected: "a frame", Actual: "none"}})
		return
	}
	fromEngine := m.Direction == trace.EngineToFrontend
	switch {
	case m.Channel == "handshake" && fromEngine:
		j.mismatches(m, j.codec.CheckStatus(m.Frames[0]))
	case m.Channel == "handshake":
		j.mismatches(m, j.codec.CheckInit(m.Frames[0]))
	case m.Channel == "input" && fromEngine:
		j.mismatches(m, j.codec.CheckReady(m.Frames[0]))
	case m.Channel == "input":
		j.mismatches(m, j.codec.CheckMessage(m.Frames))
		j.sent(m)
	case m.Channel == "output":
		j.counts["output"]++
		j.mismatches(m, check.OutputsLayout(j.codec, m.Frames))
		j.said(m)
	case strings.HasPrefix(m.Channel, "coordinator"):
		j.mismatches(m, j.codec.CheckCoordinator(fromEngine, m.Frames))
	case strings.HasPrefix(m.Channel, "nixl"): // the check nixl compares these
	default: // KV events
		j.mismatches(m, j.codec.CheckKVEvents(m.Frames))
		j.published(m)
	}
}

// mismatches notes where a message is not of the line's layout. A key that the line does not know is one as well: what a
// released engine of the line says has none.
func (j *FramesJudge) mismatches(m *trace.Message, found []protocol.Mismatch) {
	request := func(id string) int {
		if r := j.requests[requestKey{m.Rank, id}]; r != nil {
			return r.index
		}
		return -1
	}
	if j.isOther {
		return
	}
	for _, mismatch := range found {
		wrong := check.LayoutProblem(fmt.Sprintf("%s: line %d", j.name, j.line), mismatch).Within(j.number, mismatch.Path)
		j.layout.Add(mismatch, ofOutput(wrong, m.Frames, request))
	}
}

func (j *FramesJudge) fail(code check.Code, r *framesRequest, path, expected, actual string) {
	f := check.Failed(code, "%s: line %d: %s: expected %s, found %s", j.name, j.line, path, expected, actual).
		Within(j.number, path).Compared(expected, actual)
	if r != nil {
		f = f.Of(r.index)
	}
	if !j.isOther {
		j.found.add(string(code)+" "+check.Place(path), f)
	}
}

// sent follows what a frontend asks. What does not decode has been found.
func (j *FramesJudge) sent(m *trace.Message) {
	if len(m.Frames) < 2 || len(m.Frames[0]) != 1 {
		return
	}
	switch m.Frames[0][0] {
	case protocol.TypeAdd:
		j.counts["ADD"]++
		var r protocol.Request
		if err := j.codec.DecodeRequest(m.Frames[1], &r); err != nil {
			return
		}
		key := requestKey{m.Rank, r.ID}
		if known := j.requests[key]; known != nil { // one that goes on, as sessions do
			known.finished, known.gone = false, false
			return
		}
		j.requests[key] = &framesRequest{index: len(j.requests), client: m.Client}
	case protocol.TypeAbort:
		ids, _ := protocol.DecodeAbort(m.Frames[1])
		for _, id := range ids {
			if r := j.requests[requestKey{m.Rank, id}]; r != nil {
				r.gone = true
			}
		}
	case protocol.TypeUtility:
		j.counts["UTILITY"]++
		if call, err := protocol.DecodeUtilityCall(m.Frames[1]); err == nil {
			j.calls[callKey{m.Rank, m.Client, call.CallID}] = true
		}
	}
}

func (j *FramesJudge) said(m *trace.Message) {
	if string(m.Frames[0]) == protocol.EngineDead || j.codec.DecodeOutputs(m.Frames[0], &j.out) != nil {
		return
	}
	if j.out.EngineIndex != m.Rank {
		j.fail(CodeFramesRank, nil, "EngineCoreOutputs.engine_index", fmt.Sprint(m.Rank), fmt.Sprint(j.out.EngineIndex))
	}
	if u := j.out.Utility; u != nil && !protocol.IsNotice(u.CallID) {
		key := callKey{m.Rank, m.Client, u.CallID}
		if !j.calls[key] {
			j.fail(CodeFramesAnswer, nil, "EngineCoreOutputs.utility_output.call_id", "the id of a call that is not answered", fmt.Sprint(u.CallID))
		}
		j.calls[key] = false
	}
	for i := range j.out.Outputs {
		o := &j.out.Outputs[i]
		path := fmt.Sprintf("EngineCoreOutputs.outputs[%d]", i)
		r := j.requests[requestKey{m.Rank, string(o.ID)}]
		switch {
		case r == nil || r.client != m.Client:
			j.fail(CodeFramesStray, nil, path+".request_id", fmt.Sprintf("a request that client %d has sent to engine %d", m.Client, m.Rank), fmt.Sprintf("%.80q", o.ID))
		case r.finished:
			j.fail(CodeFramesLate, r, path, "nothing behind the last output of the request", fmt.Sprintf("one more of %.80q", o.ID))
		default:
			r.finished = o.Finish != protocol.Unfinished
		}
	}
}

func (j *FramesJudge) published(m *trace.Message) {
	if len(m.Frames) != 3 || len(m.Frames[1]) != 8 {
		return
	}
	number := int64(binary.BigEndian.Uint64(m.Frames[1]))
	last, known := j.events[m.Rank]
	if known && number != last+1 {
		j.fail(CodeFramesEvents, nil, "KV events.seq", fmt.Sprint(last+1), fmt.Sprint(number))
	}
	j.events[m.Rank] = number
}

// unanswered counts what the recording ended before.
func (j *FramesJudge) unanswered() string {
	requests, calls := 0, 0
	for _, r := range j.requests {
		if !r.finished && !r.gone {
			requests++
		}
	}
	for _, open := range j.calls {
		if open {
			calls++
		}
	}
	if requests+calls == 0 {
		return ""
	}
	return fmt.Sprintf("not answered to the end: %s, %s", safetext.Count(requests, "request"), safetext.Count(calls, "utility call"))
}

// repeated collects failures: what repeats is one that counts the others.
type repeated struct {
	found   []*wireFinding
	byPlace map[string]*wireFinding
}

func (r *repeated) add(place string, f check.Failure) {
	if known := r.byPlace[place]; known != nil {
		known.more++
		return
	}
	if r.byPlace == nil {
		r.byPlace = map[string]*wireFinding{}
	}
	r.byPlace[place] = &wireFinding{Failure: f}
	r.found = append(r.found, r.byPlace[place])
}

func (r *repeated) report(f *check.Outcome) {
	for i, found := range r.found {
		if i == MaxWireFailures {
			f.AddNote(fmt.Sprintf("%d more kinds of differences are not listed", len(r.found)-i))
			return
		}
		if found.more > 0 {
			found.Message += fmt.Sprintf(" (and %d more like it)", found.more)
		}
		f.Fail(found.Failure)
	}
}
