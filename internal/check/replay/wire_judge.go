package replay

import (
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
