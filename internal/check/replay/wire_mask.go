package replay

import (
	"regexp"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// wireMask is a place where the engine under test may say something else than the
// real one did, of the same kind all the same.
type wireMask struct {
	// Path has [] for any element.
	Path   string
	Reason string
	// wanted says in words what the value must be all the same, and accepts decides:
	// over two msgpack values of the same kind, or two auxiliary frames of the same
	// size. nil accepts any.
	wanted  string
	accepts func(c *wireComparison, want, got []byte) bool
}

// WireMasks are all such places. One that no golden needs fails a test. The data of
// a tensor is the third of its parts, or an auxiliary frame; which ids each row of a
// table begins with is compared apart, see wireComparison.tables.
var WireMasks = []wireMask{
	{"EngineCoreReadyResponse.instance_id", "every engine that starts draws another", "a name", isName},
	{"EngineCoreOutputs.timestamp", "a time", "a time from that of the message before up to now", isTimeOfMessage},
	{"EngineCoreOutputs.outputs[].events[].timestamp", "a time", "a time up to now", isTime},
	{"EngineCoreOutputs.outputs[].new_logprobs.logprob_token_ids[2]", noModel, "as many bytes", sameSize},
	{"EngineCoreOutputs.outputs[].new_logprobs.logprobs[2]", noModel, "as many bytes", sameSize},
	{"EngineCoreOutputs.outputs[].new_logprobs.sampled_token_ranks[2]", noModel, "as many bytes", sameSize},
	{"EngineCoreOutputs.outputs[].new_prompt_logprobs_tensors.selected_token_ranks[2]", noModel, "as many bytes", sameSize},
	{"frames[]", noModel, "", nil},
}

// noModel is why log-probabilities are made up.
const noModel = "no cassette holds log-probabilities, and without the model's weights nobody knows them"

// covers tells whether a path leads to the place.
func (m *wireMask) covers(path string) bool {
	rest := path
	for i, part := range strings.Split(m.Path, "[]") {
		if i > 0 {
			index := elementIndex.FindStringIndex(rest)
			if index == nil || index[0] != 0 {
				return false
			}
			rest = rest[index[1]:]
		}
		var ok bool
		if rest, ok = strings.CutPrefix(rest, part); !ok {
			return false
		}
	}
	return rest == ""
}

// elementIndex is a position in an array.
var elementIndex = regexp.MustCompile(`\[\d+\]`)

// wirePlace is a path with [] for any element.
func wirePlace(path string) string { return elementIndex.ReplaceAllString(path, "[]") }

// maskOf returns the mask of a place, nil for none.
func maskOf(path string) *wireMask {
	for i := range WireMasks {
		if m := &WireMasks[i]; m.covers(path) {
			return m
		}
	}
	return nil
}

// isName accepts any text but none.
func isName(_ *wireComparison, _, got []byte) bool {
	cur := pack.NewCursor(got)
	text, err := cur.StrString()
	return err == nil && text != ""
}

// isTime accepts a time that has been, by the clock that the engine is given: 0 stands
// for none.
func isTime(c *wireComparison, _, got []byte) bool {
	t := timeOf(got)
	return t > 0 && t <= c.now()
}

// isTimeOfMessage accepts besides no time before that of the message before.
func isTimeOfMessage(c *wireComparison, want, got []byte) bool {
	t := timeOf(got)
	if t < c.stamped || !isTime(c, want, got) {
		return false
	}
	c.stamped = t
	return true
}

// timeOf reads seconds, 0 from what is no number.
func timeOf(raw []byte) float64 {
	cur := pack.NewCursor(raw)
	t, _ := cur.Float()
	return t
}

// sameSize accepts the data of another tensor of the same size.
func sameSize(_ *wireComparison, want, got []byte) bool {
	return len(tensorData(want)) == len(tensorData(got))
}

// tensorData returns the data of a tensor that lies in the message, nil for any
// other value.
func tensorData(raw []byte) []byte {
	cur := pack.NewCursor(raw)
	_, data, err := cur.Ext()
	if err != nil {
		return nil
	}
	return data
}
