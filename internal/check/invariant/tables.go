package invariant

import (
	"fmt"
	"math"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// judgeTables looks at the log-probabilities of an output (vllm/v1/outputs.py LogprobsLists, LogprobsTensors): those of its
// tokens in each, those of the prompt in the first, and none where the request did not ask for them.
func (e *Engine) judgeTables(output protocol.Value, r *request, tokens []uint32) {
	s := &r.sampling
	sampled := output.Field("new_logprobs")
	switch {
	case sampled.Given() && s.Logprobs == protocol.NoLogprobs && s.LogprobTokenIDs == nil && !r.session:
		e.fail(CodeLogprobs, sampled, "nil", "a table", "request %s does not ask for log-probabilities", r.id)
		return
	case sampled.Given():
		e.judgeTable(table{sampled, r.id, tokens, s.Logprobs, s.LogprobTokenIDs == nil, r.plain})
	case s.Logprobs != protocol.NoLogprobs && len(tokens) > 0 && !r.session:
		e.fail(CodeLogprobs, sampled, "a table", "nil", "request %s asks for log-probabilities", r.id)
	}
	if prompt := output.Field("new_prompt_logprobs_tensors"); prompt.Given() {
		if s.PromptLogprobs == protocol.NoLogprobs && !r.session {
			e.fail(CodeLogprobs, prompt, "nil", "a table", "request %s does not ask for log-probabilities of the prompt", r.id)
			return
		}
		if len(r.prompt) > 0 {
			e.judgeTable(table{prompt, r.id, r.prompt[1:], s.PromptLogprobs, true, false})
		}
	}
	if scores := output.Field("prompt_token_id_logprobs"); scores.Given() && s.PromptScores == nil && !r.session {
		e.fail(CodeLogprobs, scores, "nil", "a tensor", "request %s does not ask for log-probabilities of the prompt", r.id)
	}
}

// table is one of log-probabilities: a row for each token, with the token itself in the first column and the most likely ones
// behind it.
type table struct {
	protocol.Value        // LogprobsLists or LogprobsTensors: ids, values, ranks
	id             string // of the request
	tokens         []uint32
	width          int  // columns that were asked for
	likely         bool // the columns are the most likely tokens; else ids that were asked for
	greedy         bool // each token is the most likely one
}

// judgeTable looks at one table. An engine with --logprobs-mode raw_logits or processed_logits has other numbers there, which
// may be above 0: the wire does not tell, and [Options.Logits] does.
func (e *Engine) judgeTable(t table) {
	if t.Len() < 3 {
		return
	}
	// cu_num_generated_tokens and its like cut a batch into requests, which has been done before it is sent.
	for i := 3; i < t.Len(); i++ {
		if v := t.At(i); v.Given() && v.Declared() != nil {
			e.fail(CodeLogprobs, v, "nil", check.Describe(v.Bytes()), "a message to a frontend has one request in each table")
		}
	}
	columns := t.width + 1
	var ids, ranks []int64
	var values []float64
	for i := range 3 {
		at := t.At(i)
		tensor, err := at.Tensor()
		if err != nil {
			e.fail(CodeLogprobs, at, "a tensor of the line", err, "a table of request %s", t.id)
			return
		}
		if i == 0 && t.width == protocol.AllLogprobs && len(tensor.Shape) == 2 {
			columns = tensor.Shape[1]
			e.vocabulary = int64(columns - 1)
		}
		// A step has one table, with as many columns as the request that wants the most (experiments with 0.33.0). One that has ended or was
		// aborted was in the same step if no other step can be seen between: messages to other clients come in an order of their own.
		wider := func(r *request) bool {
			return r.id != t.id && r.sampling.Logprobs > t.width && r.sampling.Logprobs == tensor.Shape[1]-1 && (r.gone == 0 || r.gone >= e.before)
		}
		if i == 0 && len(tensor.Shape) == 2 && (slices.ContainsFunc(e.active, wider) || slices.ContainsFunc(e.lately, wider)) {
			columns = tensor.Shape[1]
		}
		if want := []int{len(t.tokens), columns}[:min(3-i, 2)]; !slices.Equal(tensor.Shape, want) {
			e.fail(CodeLogprobs, at, fmt.Sprintf("shape %v", want), fmt.Sprintf("%v", tensor.Shape), "the table has a row for each of %d tokens, and %d columns next to the token", len(t.tokens), t.width)
			return
		}
		if tensor.IsFloat() != (i == 1) {
			kind := [3]string{"integers", "floats", "integers"}[i]
			e.fail(CodeLogprobs, at, kind, tensor.Dtype, "the elements have this type")
			return
		}
		switch i {
		case 0:
			ids = tensor.Integers()
		case 1:
			values = tensor.Floats()
		default:
			ranks = tensor.Integers()
		}
	}
	for row, token := range t.tokens {
		e.judgeRow(&t, row, int64(token), ids[row*columns:(row+1)*columns], values[row*columns:(row+1)*columns], ranks[row])
	}
}

// maxVocabulary is above the vocabulary of every model, which has some 100,000 tokens.
const maxVocabulary = 1 << 24

// judgeRow looks at one token (vllm/v1/sample/sampler.py gather_logprobs). The rank counts the tokens that are at least as
// likely; where it is counted before the numbers are rounded, those that are equal afterwards may count or not.
func (e *Engine) judgeRow(t *table, row int, token int64, ids []int64, values []float64, rank int64) {
	const slack = 1e-3 // of sums of float32
	if ids[0] != token {
		e.fail(CodeLogprobs, t.At(0), token, ids[0], "row %d has to begin with its token", row)
		return
	}
	vocabulary := int64(maxVocabulary)
	if e.vocabulary > 0 {
		vocabulary = e.vocabulary
	}
	if slices.Min(ids) < 0 || slices.Max(ids) >= vocabulary {
		e.fail(CodeLogprobs, t.At(0), fmt.Sprintf("ids of %d tokens", vocabulary), check.Around(ids, 0), "row %d: token ids are not negative, and below the size of the vocabulary", row)
		return
	}
	own, likely, likelyIDs := values[0], values[1:], ids[1:]
	if !e.opt.Logits {
		total, seen := 0.0, false
		for i, v := range likely {
			total += math.Exp(v)
			seen = seen || likelyIDs[i] == token
		}
		if !seen {
			total += math.Exp(own)
		}
		if highest := slices.Max(values); highest > slack || math.IsNaN(total) {
			e.fail(CodeLogprobs, t.At(1), "at most 0", highest, "row %d: a probability is at most 1, so its logarithm is at most 0; if the engine was started with --logprobs-mode raw_logits or processed_logits, give conform the same flag", row)
			return
		}
		if total > 1+slack && t.likely {
			e.fail(CodeLogprobs, t.At(1), "at most 1", total, "row %d: the probabilities of different tokens add up to at most 1", row)
			return
		}
	}
	if rank < 1 {
		e.fail(CodeLogprobs, t.At(2), "at least 1", rank, "row %d: ranks begin at 1", row)
		return
	}
	if rank > vocabulary {
		e.fail(CodeLogprobs, t.At(2), fmt.Sprintf("at most %d", vocabulary), rank, "row %d: no rank is above the size of the vocabulary", row)
		return
	}
	if !t.likely || len(likely) == 0 {
		return
	}
	above, equal, found := int64(0), int64(0), false
	for i, v := range likely {
		if i > 0 && v > likely[i-1] {
			e.fail(CodeLogprobs, t.At(1), fmt.Sprintf("at most %v", likely[i-1]), v, "row %d: the most likely tokens come in falling order", row)
			return
		}
		if slices.Contains(likelyIDs[:i], likelyIDs[i]) {
			e.fail(CodeLogprobs, t.At(0), "different tokens", likelyIDs[i], "row %d: each of the most likely tokens comes once", row)
			return
		}
		if likelyIDs[i] == token {
			found = true
			if v != own {
				e.fail(CodeLogprobs, t.At(1), own, v, "row %d: the token is also among the most likely ones, with another value", row)
				return
			}
		}
		if v > own {
			above++
		} else if v == own {
			equal++
		}
	}
	least := likely[len(likely)-1]
	switch {
	case own > least && !found:
		e.fail(CodeLogprobs, t.At(0), "the token", "others", "row %d: the token is more likely than the last of the most likely ones, so it has to be among them", row)
	case rank < above+1:
		e.fail(CodeLogprobs, t.At(2), fmt.Sprintf("at least %d", above+1), rank, "row %d: %d tokens are more likely", row, above)
	case own > least && rank > above+equal:
		e.fail(CodeLogprobs, t.At(2), fmt.Sprintf("at most %d", above+equal), rank, "row %d: this many tokens are at least as likely", row)
	case t.greedy && above > 0:
		e.fail(CodeLogprobs, t.At(0), likelyIDs[0], token, "row %d: a greedy request gets the most likely token", row)
	}
}

// judgeMask looks at the tokens that could have been sampled (vllm/v1/outputs.py SamplingMaskLists): ids, row after row, and
// where there are several rows the places at which they begin.
func (e *Engine) judgeMask(mask protocol.Value, tokens []uint32) {
	if mask.Kind() != pack.Array {
		return
	}
	read := func(at protocol.Value) (values []int64, ok bool) {
		tensor, err := at.Tensor()
		switch {
		case err != nil:
			e.fail(CodeMask, at, "a tensor of the line", err, "it does not decode")
			return nil, false
		case tensor.IsFloat() || len(tensor.Shape) != 1:
			e.fail(CodeMask, at, "a list of integers", fmt.Sprintf("%s of shape %v", tensor.Dtype, tensor.Shape), "token ids are integers in a list")
			return nil, false
		}
		return tensor.Integers(), true
	}
	allowed, starts, cut := mask.Field("token_ids"), mask.Field("offsets"), mask.Field("cu_num_generated_tokens")
	if cut.Given() {
		e.fail(CodeMask, cut, "nil", check.Describe(cut.Bytes()), "a message to a frontend has one request in each table")
	}
	ids, ok := read(allowed)
	if !ok {
		return
	}
	offsets := []int64{0, int64(len(ids))}
	if starts.Given() {
		if offsets, ok = read(starts); !ok {
			return
		}
	}
	if len(offsets) != len(tokens)+1 || !slices.IsSorted(offsets) || offsets[0] != 0 || offsets[len(offsets)-1] != int64(len(ids)) {
		e.fail(CodeMask, starts, fmt.Sprintf("%d rows of %d ids", len(tokens), len(ids)), fmt.Sprint(offsets), "the rows have to begin at these places")
		return
	}
	for i, token := range tokens {
		if row := ids[offsets[i]:offsets[i+1]]; !slices.Contains(row, int64(token)) {
			e.fail(CodeMask, allowed, token, check.Around(row, 0), "row %d has to contain the token that was sampled", i)
			return
		}
	}
}
