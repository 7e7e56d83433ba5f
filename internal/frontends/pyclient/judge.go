package pyclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Verdict is what a case came to.
type Verdict string

// Verdicts.
const (
	Passed   Verdict = "passed"
	Failed   Verdict = "failed"   // the client and the engine do not understand each other
	Unjudged Verdict = "unjudged" // it could not be tried
	Skipped  Verdict = "skipped"  // not every line has the methods, and this release has not
)

// A Result is what a case came to.
type Result struct {
	Case    string // "async/tokens"
	Verdict Verdict
	Message string // in one line, unless it passed
	Where   string // in the release: "vllm/v1/engine/core_client.py:851 in _apply_ready_response"; may be empty
	Tokens  int    // that were compared
}

// facts are what the driver saw in a case.
type facts struct {
	Values   []json.RawMessage `json:"values"`
	Answers  []answer          `json:"answers"`
	Together int               `json:"together"` // most requests in one message
	Stats    int               `json:"stats"`    // messages with statistics
	Running  int               `json:"running"`  // most running requests of these
}

// An answer is what was said to a request.
type answer struct {
	ID             string      `json:"id"`
	Tokens         []uint32    `json:"tokens"`
	Logprobs       [][]float64 `json:"logprobs"`        // for each token: ids, then a value of each
	PromptLogprobs [][]uint32  `json:"prompt_logprobs"` // for each token of the prompt but the first: ids
	Ends           int         `json:"ends"`
	Finish         string      `json:"finish"`
	Stop           any         `json:"stop"` // the id that it stopped at
}

// accepted are values as JSON has them, of which one must come.
type accepted []string

func only(value any) accepted { return oneOf(value) }

func oneOf(values ...any) accepted {
	var a accepted
	for _, v := range values {
		a = append(a, compact(v))
	}
	return a
}

// values wants one value of each.
func values(wants ...accepted) func(facts) error {
	return func(f facts) error {
		if len(f.Values) != len(wants) {
			return fmt.Errorf("%d values, want %d: %s", len(f.Values), len(wants), compact(f.Values))
		}
		for i, want := range wants {
			if !slices.Contains(want, compact(f.Values[i])) {
				return fmt.Errorf("value %d is %s, want %s", i+1, compact(f.Values[i]), strings.Join(want, " or "))
			}
		}
		return nil
	}
}

// compact is a value in the form of [oneOf].
func compact(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// answers wants the requests, and no others, answered with what the engine says.
func (a author) answers(requests []request) func(facts) error {
	return func(f facts) error {
		if len(f.Answers) != len(requests) {
			return fmt.Errorf("%d requests were answered, want %d", len(f.Answers), len(requests))
		}
		for _, got := range f.Answers {
			i := slices.IndexFunc(requests, func(r request) bool { return r.ID == got.ID })
			if i < 0 {
				return fmt.Errorf("request %q was answered, which was not to be", got.ID)
			}
			if err := requests[i].check(got, a.opt.Says(got.ID)); err != nil {
				return fmt.Errorf("request %q: %w", got.ID, err)
			}
		}
		return nil
	}
}

// check compares an answer with what the engine says.
func (r request) check(got answer, says func(int) uint32) error {
	want := answer{Finish: "length"}
	for i := range r.MaxTokens {
		want.Tokens = append(want.Tokens, says(i))
		if slices.Contains(r.StopTokenIDs, says(i)) {
			want.Finish, want.Stop = "stop", float64(says(i))
			break
		}
	}
	switch {
	case got.Ends != 1:
		return fmt.Errorf("it ended %d times", got.Ends)
	case got.Finish != want.Finish || got.Stop != want.Stop:
		return fmt.Errorf("finish reason %q, stop %v after %d tokens, want %q, %v after %d",
			got.Finish, got.Stop, len(got.Tokens), want.Finish, want.Stop, len(want.Tokens))
	case !slices.Equal(got.Tokens, want.Tokens):
		return fmt.Errorf("tokens %v, the engine said %v", got.Tokens, want.Tokens)
	}
	return errors.Join(r.checkLogprobs(got), r.checkPromptLogprobs(got))
}

// checkLogprobs wants a row for each token, which begins with the token itself.
func (r request) checkLogprobs(got answer) error {
	if r.Logprobs == nil {
		if got.Logprobs != nil {
			return errors.New("log-probabilities that were not requested")
		}
		return nil
	}
	if len(got.Logprobs) != len(got.Tokens) {
		return fmt.Errorf("%d rows of log-probabilities for %d tokens", len(got.Logprobs), len(got.Tokens))
	}
	width := *r.Logprobs + 1
	for i, row := range got.Logprobs {
		if len(row) != 2*width || uint32(row[0]) != got.Tokens[i] || slices.Max(row[width:]) > 0 {
			return fmt.Errorf("log-probabilities of token %d (%d) are %v: want %d ids, the token's first, and a value up to 0 of each",
				i, got.Tokens[i], row, width)
		}
	}
	return nil
}

// checkPromptLogprobs wants a row for each token of the prompt that has one before it.
func (r request) checkPromptLogprobs(got answer) error {
	if r.PromptLogprobs == nil {
		if got.PromptLogprobs != nil {
			return errors.New("log-probabilities of the prompt that were not requested")
		}
		return nil
	}
	if len(got.PromptLogprobs) != len(r.Prompt)-1 {
		return fmt.Errorf("%d rows of log-probabilities for a prompt of %d tokens", len(got.PromptLogprobs), len(r.Prompt))
	}
	for i, row := range got.PromptLogprobs {
		if len(row) != *r.PromptLogprobs+1 || row[0] != r.Prompt[i+1] {
			return fmt.Errorf("log-probabilities of token %d of the prompt (%d) are of %v: want %d ids, the token's first",
				i+1, r.Prompt[i+1], row, *r.PromptLogprobs+1)
		}
	}
	return nil
}
