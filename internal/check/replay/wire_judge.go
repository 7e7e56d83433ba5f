package replay

import (
	"maps"
	"math"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/trace"
)

// WireJudge answers, of a message of a golden of role wire, what the wire check would find
// if an engine under test said another in its place.
type WireJudge struct {
	golden   *check.Golden
	compared map[int]wireCounterpart // by the line of the message
}

// wireCounterpart is a message that is compared, and how.
type wireCounterpart struct {
	root     string
	message  *WireMessage
	requests []*wireRequest
}

// NewWireJudge reads the session of a golden as the wire check does.
func NewWireJudge(g *check.Golden) (*WireJudge, error) {
	w, err := NewWireSession(g.Location, g.Codec, g.Frames)
	if err != nil {
		return nil, err
	}
	j := &WireJudge{golden: g, compared: map[int]wireCounterpart{}}
	for i := range w.statuses {
		j.compared[w.statuses[i].Line] = wireCounterpart{root: "EngineStatus", message: &w.statuses[i]}
	}
	j.compared[w.registration.Line] = wireCounterpart{root: "EngineCoreReadyResponse", message: &w.registration}
	for _, m := range w.Said {
		if m.Left == "" {
			j.compared[m.Line] = wireCounterpart{"EngineCoreOutputs", &m.WireMessage, m.Requests}
		}
	}
	return j, nil
}

// Finds reports whether other frames in the place of those of a message would be found.
func (j *WireJudge) Finds(m *trace.Message, frames [][]byte) bool {
	at, compared := j.compared[m.Line]
	if !compared {
		return false
	}
	clock := new(StepClock)
	clock.Set(time.Duration(math.MaxInt64)) // every time has been
	c := NewWireComparison(j.golden.Location, j.golden.Codec, clock)
	c.Message(at.root, at.message, at.requests, frames)
	return len(c.found.found) > 0
}

// FramesJudge answers the same of the messages of a golden of role frames, which are given to it in their order.
type FramesJudge struct{ judge *framesJudge }

// NewFramesJudge judges the messages of a golden.
func NewFramesJudge(g *check.Golden) *FramesJudge {
	return &FramesJudge{newFramesJudge(g.Location, g.Codec)}
}

// Finds reports whether other frames in the place of those of the next message would be found at once.
func (j *FramesJudge) Finds(m *trace.Message, frames [][]byte) bool {
	other := *j.judge
	other.layout, other.found = LayoutCheck{Codec: other.codec}, repeated{}
	other.counts, other.calls, other.events = maps.Clone(other.counts), maps.Clone(other.calls), maps.Clone(other.events)
	other.requests = map[requestKey]*framesRequest{}
	for key, r := range j.judge.requests {
		known := *r
		other.requests[key] = &known
	}
	other.invariants = j.judge.invariants.Clone()
	changed := *m
	changed.Frames = frames
	other.message(&changed)
	return len(other.found.found)+len(other.layout.Kinds)+len(other.invariants.Message(0, &changed)) > 0
}

// Take takes the next message.
func (j *FramesJudge) Take(m *trace.Message) {
	j.judge.message(m)
	j.judge.invariants.Message(0, m)
}
