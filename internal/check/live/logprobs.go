package live

import (
	_ "embed"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// takeLogprobs checks the tables that a request asked for: one row a token, one
// column for the token itself and one for each of the most likely.
func (l *live) takeLogprobs(a *ask, o *protocol.RequestOutput, aux [][]byte) {
	if n := a.sampling.Logprobs; n != protocol.NoLogprobs && len(o.Tokens) > 0 {
		l.f.Asserted++
		columns := n + 1
		ids, err := LogprobTable(o.Logprobs, aux, len(o.Tokens), columns)
		for _, other := range l.asks { // a step's table has as many columns as the request that wants the most (experiments with 0.33.0)
			if more := other.sampling.Logprobs + 1; err != nil && l.mixed && more > n+1 {
				if wider, wrong := LogprobTable(o.Logprobs, aux, len(o.Tokens), more); wrong == nil {
					ids, columns, err = wider, more, nil
				}
			}
		}
		if err == nil {
			err = FirstColumn(ids, columns, o.Tokens)
		}
		l.logprobs(a, "new_logprobs", err)
		a.logprobs += len(o.Tokens)
	}
	if n := a.sampling.PromptLogprobs; n != protocol.NoLogprobs && a.outputs == 1 {
		l.f.Asserted++
		ids, err := LogprobTable(o.PromptLogprobs, aux, len(a.prompt)-1, n+1)
		if err == nil {
			err = FirstColumn(ids, n+1, a.prompt[1:])
		}
		l.logprobs(a, "new_prompt_logprobs_tensors", err)
	}
}

func (l *live) logprobs(a *ask, field string, err error) {
	if err != nil {
		l.fail(field, check.Failed(CodeLogprobs, "request %s: %s: %v: a real frontend answers HTTP 500", a.id, field, err).Within(l.messages, outputPath(field)))
	}
}

// LogprobTable reads LogprobsLists or LogprobsTensors, [ids, values, ranks, …], and
// returns the ids, row by row.
func LogprobTable(raw []byte, aux [][]byte, rows, columns int) ([]int64, error) {
	if raw == nil {
		return nil, fmt.Errorf("missing, although asked for")
	}
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	if err != nil || n < 3 {
		return nil, fmt.Errorf("an array of %d values, want ids, logprobs and ranks: %v", n, err)
	}
	var ids []int64
	for i, part := range []string{"token ids", "logprobs", "ranks"} {
		t, err := protocol.ReadTensor(&cur, aux)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part, err)
		}
		if want := []int{rows, columns}[:min(3-i, 2)]; fmt.Sprint(t.Shape) != fmt.Sprint(want) {
			return nil, fmt.Errorf("%s have shape %v, want %v", part, t.Shape, want)
		}
		if t.IsFloat() != (i == 1) {
			return nil, fmt.Errorf("%s are of type %q", part, t.Dtype)
		}
		if i == 0 {
			ids = t.Integers()
		}
	}
	return ids, nil
}

// FirstColumn: it is what was sampled; a Python frontend fails without.
func FirstColumn(ids []int64, columns int, tokens []uint32) error {
	for i, token := range tokens {
		if got := ids[i*columns]; got != int64(token) {
			return fmt.Errorf("row %d begins with id %d, the token is %d", i, got, token)
		}
	}
	return nil
}

//go:embed logprobs.md
var logprobsCodes string

var logprobs = check.Check{Name: Logprobs, Codes: logprobsCodes, Levels: []check.Level{check.LevelLogprobs}, Run: judged((*live).checkLogprobs)}

// checkLogprobs asks for log-probabilities of each kind.
func (l *live) checkLogprobs() error {
	withLogprobs, withPrompt := greedy(6), greedy(2)
	withLogprobs.Logprobs, withPrompt.PromptLogprobs = 2, 1
	sampledOnly := greedy(3)
	sampledOnly.Logprobs = 0
	many := greedy(4)
	many.Logprobs = 20 // too large for the message itself, so they have frames of their own
	for _, sampling := range []protocol.Sampling{withLogprobs, sampledOnly, many, withPrompt} {
		if _, err := l.askAndAwait(l.prompt(9), sampling); err != nil {
			return err
		}
	}
	return l.barrier()
}
