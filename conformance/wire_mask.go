package conformance

import (
	"math"
	"regexp"
	"strings"

	"github.com/vllm-vcr/conformance/internal/pack"
)

// wireMask is a place where the engine under test may say something else than the
// real one did, of the same kind all the same.
type wireMask struct {
	// path has [] for any element.
	path   string
	reason string
	// accepts, unless nil, decides over two msgpack values of the same kind, or two
	// auxiliary frames of the same size.
	accepts func(want, got []byte) bool
}

// wireMasks are all such places. One that no golden needs fails a test. The data of
// a tensor is the third of its parts, or an auxiliary frame.
var wireMasks = []wireMask{
	{"EngineCoreReadyResponse.instance_id", "every engine that starts draws another", nil},
	{"EngineCoreOutputs.timestamp", "a time", isTime},
	{"EngineCoreOutputs.outputs[].events[].timestamp", "a time", isTime},
	{"EngineCoreOutputs.outputs[].new_logprobs.logprob_token_ids[2]", noModel, sameFirst},
	{"EngineCoreOutputs.outputs[].new_logprobs.logprobs[2]", noModel, sameSize},
	{"EngineCoreOutputs.outputs[].new_logprobs.sampled_token_ranks[2]", noModel, sameSize},
	{"EngineCoreOutputs.outputs[].new_prompt_logprobs_tensors.selected_token_ranks[2]", noModel, sameSize},
	{"frames[]", noModel, nil},
}

// noModel is why log-probabilities are made up.
const noModel = "no cassette holds log-probabilities, and without the model's weights nobody knows them"

// covers tells whether a path leads to the place.
func (m *wireMask) covers(path string) bool {
	rest := path
	for i, part := range strings.Split(m.path, "[]") {
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

// maskOf returns the mask that allows two values of the same kind to differ, nil for
// none.
func maskOf(path string, want, got []byte) *wireMask {
	for i := range wireMasks {
		if m := &wireMasks[i]; m.covers(path) && (m.accepts == nil || m.accepts(want, got)) {
			return m
		}
	}
	return nil
}

// isTime accepts any time that a frontend takes: 0 stands for none.
func isTime(_, got []byte) bool {
	cur := pack.NewCursor(got)
	t, err := cur.Float()
	return err == nil && t > 0 && !math.IsInf(t, 0)
}

// sameSize accepts the data of another tensor of the same size.
func sameSize(want, got []byte) bool { return len(tensorData(want)) == len(tensorData(got)) }

// sameFirst accepts a table of ids whose first is the same: it begins with the
// token that was sampled, or stands in the prompt.
func sameFirst(want, got []byte) bool {
	w, g := tensorData(want), tensorData(got)
	const id = 4 // bytes
	return len(w) == len(g) && len(w) >= id && string(w[:id]) == string(g[:id])
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
