package player

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/engine/grammar"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// Encoder turns a text into ids of a model's tokenizer that a frontend decodes to exactly
// this text. ok is false where the vocabulary cannot spell it. It is safe for concurrent
// use.
type Encoder interface {
	EncodeOutput(text string) (ids []uint32, ok bool)
}

// Structured is a [Source] that answers requests with structured outputs (a JSON
// schema, a regular expression, choices, a grammar, structural tags) with a text that
// conforms, so that what a frontend parses it into can be used. All others it leaves
// to Source, and without an Encoder all of them.
//
// It goes around sources that make answers up. A recording conforms already. It is safe
// for concurrent use if Source is.
type Structured struct {
	Source  Source
	Encoder Encoder
	Seed    uint64
	// Answered reports whether the prompt of a request ends with the result of a tool. Where such a request lets a text without calls
	// come, it is left to Source, so that an agent gets an answer in the end. nil is never; see [ToolAnswered].
	Answered func(r *Request) bool
	Log      *slog.Logger

	warned    sync.Once
	languages languages
}

// A Refusal is an error of a [Source] that is the request's own fault. Code is what
// lines since 0.33 send to the frontend: "validation_error" becomes HTTP 400.
type Refusal struct {
	Code string
	Err  error
}

func (r *Refusal) Error() string { return r.Err.Error() }
func (r *Refusal) Unwrap() error { return r.Err }

// Script answers a request by a text that is written later, see [Script].Later. A
// constraint that cannot be understood, that nothing conforms to, or that takes too long,
// is a [Refusal] then, as it ends the request in a real engine
// (vllm/v1/core/sched/scheduler.py grammar_compile_error_reqs).
func (s *Structured) Script(r *Request) (Script, error) {
	if r.Sampling.StructuredOutputs == nil {
		return s.Source.Script(r)
	}
	if s.Encoder == nil {
		s.warn(r)
		return s.Source.Script(r)
	}
	if n := len(r.Sampling.StructuredOutputs); n > maxRaw {
		return Script{}, refusal(fmt.Errorf("the constraint has %d bytes: at most %d are allowed", n, maxRaw))
	}
	if s.Answered != nil && s.Answered(r) && callsAreOptional(r.Sampling.StructuredOutputs) {
		return s.Source.Script(r)
	}
	c := unwritten{raw: slices.Clone(r.Sampling.StructuredOutputs), seed: s.seedOf(r), budget: math.MaxInt}
	if r.Sampling.HasMaxTokens {
		c.budget = r.Sampling.MaxTokens
	}
	if c.end, c.ends = endToken(&r.Sampling); !c.ends {
		// A real engine goes on after a text that nothing may end: by any token, until max_tokens.
		after, err := s.Source.Script(r)
		if err != nil {
			return after, err
		}
		c.fill = after.Fill
	}
	return Script{CachedTokens: LookUp, Later: func(ctx context.Context) (Script, error) {
		script, err := s.answer(grammar.NewWork(ctx), &c)
		if err != nil {
			return Script{}, uncompiled(err, &c)
		}
		return script, nil
	}}, nil
}

// callsAreOptional reports whether a constraint is one that tool_choice "auto" becomes: tags that may come and need not.
func callsAreOptional(raw []byte) bool {
	c, _, err := decodeConstraint(raw)
	if err != nil || c.Kind != grammar.StructuralTag {
		return false
	}
	var tags struct {
		Structures []struct{}
		Format     struct {
			Type       string
			AtLeastOne bool `json:"at_least_one"`
		}
	}
	if err := json.Unmarshal([]byte(c.Text), &tags); err != nil {
		return false
	}
	return len(tags.Structures) > 0 || tags.Format.Type == "triggered_tags" && !tags.Format.AtLeastOne
}

// How chat templates end the result of a tool, or begin it where nothing ends it, and begin the turn of a user.
var (
	toolResults = []string{"</tool_response>", "[/TOOL_RESULTS]", "<|start_header_id|>ipython", "<|im_start|>tool"}
	userTurns   = []string{"<|im_start|>user", "[INST]", "<|start_header_id|>user"}
)

// promptEnd is how many tokens of a prompt are looked at: what follows a result is the beginning of the answer.
const promptEnd = 256

// ToolAnswered is a [Structured].Answered for the chat templates of Qwen, Llama, Mistral and those that follow them. decode is that
// of the model's tokenizer and shows special tokens.
func ToolAnswered(decode func(ids []uint32) string) func(r *Request) bool {
	return func(r *Request) bool {
		text := decode(r.PromptTokenIDs[max(0, len(r.PromptTokenIDs)-promptEnd):])
		last := func(words []string) (at int) {
			at = -1
			for _, word := range words {
				at = max(at, strings.LastIndex(text, word))
			}
			return at
		}
		return last(toolResults) > last(userTurns)
	}
}

// uncompiledError is a constraint that llguidance cannot compile, of a kind of which it finds
// that out when it is asked for the first token. The lines of [protocol.GuidanceGoesOn] answer
// with the token that ends the text, and the others with the error.
type uncompiledError struct {
	*Refusal
	end uint32
}

func uncompiled(err error, c *unwritten) error {
	constraint, guidance, decodeErr := decodeConstraint(c.raw)
	late := constraint.Kind != grammar.Grammar && constraint.Kind != grammar.StructuralTag
	if decodeErr != nil || !guidance || !late || !c.ends || errors.Is(err, grammar.ErrTooMuch) || errors.Is(err, errSpelling) {
		return refusal(err)
	}
	return &uncompiledError{refusal(err), c.end}
}

var errChoiceOfXgrammar = errors.New("xgrammar has no choice, and engines of this line do not make a grammar of it: the frontend must")

// isChoiceOfXgrammar reports whether a constraint is a choice that xgrammar is to compile, see [protocol.XgrammarCompilesChoices].
func isChoiceOfXgrammar(raw []byte) bool {
	if len(raw) > maxRaw {
		return false
	}
	constraint, guidance, err := decodeConstraint(raw)
	return err == nil && constraint.Kind == grammar.Choice && !guidance
}

// maxRaw bounds a constraint as it is sent, in bytes: nothing larger waits for its turn.
const maxRaw = 4 << 20

// unwritten is what is kept of a request until its answer is written.
type unwritten struct {
	raw    []byte // the constraint
	seed   uint64
	budget int // tokens
	end    uint32
	ends   bool
	fill   func(position int) uint32
}

// maxReason is how many characters of a reason a refusal repeats.
const maxReason = 1000

func refusal(err error) *Refusal {
	if text := err.Error(); len(text) > maxReason {
		err = errors.New(safetext.Clip(strings.ToValidUTF8(text, "\ufffd"), maxReason))
	}
	return &Refusal{"validation_error", fmt.Errorf("invalid structured outputs: %w", err)}
}

func (s *Structured) warn(r *Request) {
	if s.Log == nil {
		return
	}
	s.warned.Do(func() {
		s.Log.Warn("a request asks for structured outputs. Without --tokenizer it gets text that does not conform, which its frontend may fail to parse",
			"request", r.ID)
	})
}

// Bounds of what is kept of constraints. Clients repeat theirs.
const (
	maxLanguages = 256
	maxHeld      = 64 << 20 // bytes
)

// languages are compiled constraints, by the hash of the constraint. They are safe
// for concurrent use.
type languages struct {
	mu   sync.Mutex
	kept map[[sha256.Size]byte]*grammar.Language
	held int // bytes of all that are kept
}

// language compiles the constraint of a request, unless it is kept.
func (s *Structured) language(w *grammar.Work, raw []byte) (*grammar.Language, error) {
	if err := w.Spend(len(raw) / 16); err != nil {
		return nil, err
	}
	all, key := &s.languages, sha256.Sum256(raw)
	all.mu.Lock()
	l := all.kept[key]
	all.mu.Unlock()
	if l != nil {
		return l, l.Charge(w)
	}
	constraint, _, err := decodeConstraint(raw)
	if err != nil {
		return nil, err
	}
	if l, err = grammar.Compile(w, constraint); err != nil {
		return nil, err
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.kept == nil || len(all.kept) >= maxLanguages || all.held+l.Size() > maxHeld {
		all.kept, all.held = map[[sha256.Size]byte]*grammar.Language{}, 0
	}
	if all.kept[key] == nil { // another rank may have been faster
		all.kept[key] = l
		all.held += l.Size()
	}
	return l, nil
}

// Bounds on texts, in bytes: how much longer than needed they are at most, and where
// one ends that has no end of its own.
const (
	textSize   = 192
	tokenBytes = 64
	longestRun = 1 << 16
)

// answer writes a text, and the token that ends it. A small budget gets a short text;
// where not even the shortest fits, the text is cut off by max_tokens, as any is.
func (s *Structured) answer(w *grammar.Work, c *unwritten) (Script, error) {
	language, err := s.language(w, c.raw)
	if err != nil {
		return Script{}, err
	}
	limit, size := longestRun, textSize
	if c.budget < longestRun {
		limit = min(limit, tokenBytes*(c.budget+1))
	}
	if language.Least() >= limit {
		size = 0 // whatever is written is cut off
	}
	for ; ; size /= 4 {
		tokens, whole, err := s.tokens(w, language, c.seed, size, limit)
		if err != nil {
			return Script{}, err
		}
		fits := whole && len(tokens) < c.budget
		switch {
		case fits && c.ends:
			return Script{Tokens: append(tokens, c.end), Finish: FinishStop, CachedTokens: LookUp}, nil
		case fits:
			return Script{Tokens: tokens, Fill: c.fill, Finish: FinishLength, CachedTokens: LookUp}, nil
		case size == 0:
			return Script{Tokens: tokens[:min(len(tokens), c.budget)], Finish: FinishLength, CachedTokens: LookUp}, nil
		}
	}
}

// spellings is how many texts are tried for one that the vocabulary can spell.
const spellings = 16

var errSpelling = errors.New("the tokenizer has no tokens for a text that conforms to it")

// encodeSteps is what the encoder takes for a byte.
const encodeSteps = 3

// tokens writes a text. One that is not whole ends with a whole character, and has no tokens
// where a shorter one may be whole.
func (s *Structured) tokens(w *grammar.Work, language *grammar.Language, seed uint64, size, limit int) (ids []uint32, whole bool, err error) {
	for range spellings {
		text, whole, err := language.Text(w, seed, size, limit)
		if err != nil || !whole && size > 0 {
			return nil, false, err
		}
		if !whole {
			text = strings.ToValidUTF8(text, "")
		}
		if err := w.Spend(encodeSteps * len(text)); err != nil {
			return nil, false, err
		}
		if ids, ok := s.Encoder.EncodeOutput(text); ok {
			return ids, whole, nil
		}
		seed = scramble(seed + 1)
	}
	return nil, false, errSpelling
}

// endToken is what ends a text: nothing else is allowed there by the grammar.
func endToken(s *Sampling) (token uint32, ok bool) {
	if s.EOSTokenID >= 0 && s.EOSTokenID <= math.MaxUint32 && !s.IgnoreEOS {
		return uint32(s.EOSTokenID), true
	}
	if len(s.StopTokenIDs) > 0 {
		return s.StopTokenIDs[0], true
	}
	return 0, false
}

func (s *Structured) seedOf(r *Request) uint64 {
	return requestSeed(s.Seed, r.Sampling.HasSeed, r.Sampling.Seed, r.Sampling.Temperature == 0, r.PromptTokenIDs, drawID(r.ID, r.ExternalID))
}

// Deterministic is a [Source] that answers equal requests equally: what is drawn depends on the prompt and on the parameters,
// and not on the id of the request.
type Deterministic struct{ Source Source }

// Script answers as to a request whose id is a hash of what it asks.
func (d Deterministic) Script(r *Request) (Script, error) {
	same := *r
	hash := hashText(hashTokens(uint64(r.Sampling.Seed), r.PromptTokenIDs), string(r.Sampling.StructuredOutputs)+r.LoRA)
	same.ID, same.ExternalID = strconv.FormatUint(hash, 16), ""
	return d.Source.Script(&same)
}

// requestSeed is the seed of what is drawn for a request: its own, or else differs from request to request, but not of greedy ones
// with the same prompt.
func requestSeed(seed uint64, has bool, own int64, greedy bool, prompt []uint32, id string) uint64 {
	switch {
	case has:
		return scramble(seed ^ uint64(own))
	case greedy:
		return hashTokens(seed, prompt)
	}
	return hashText(seed, id)
}

// JSONSchema is the JSON schema that the answer to a request has to fit, "" without one.
func (r *Request) JSONSchema() string {
	if c, _, err := decodeConstraint(r.Sampling.StructuredOutputs); err == nil && c.Kind == grammar.JSON {
		return c.Text
	}
	return ""
}

// errManyConstraints and errNoConstraint are what vllm/sampling_params.py
// StructuredOutputsParams refuses.
var (
	errManyConstraints = errors.New("only one kind of constraint may be given")
	errNoConstraint    = errors.New("no constraint is given")
)

// decodeConstraint reads a StructuredOutputsParams: a map whose keys are all set, or
// only those that are not nil. guidance is set if the frontend wants it compiled by
// llguidance, not by xgrammar.
func decodeConstraint(raw []byte) (c grammar.Constraint, guidance bool, err error) {
	cur := pack.NewCursor(raw)
	n, err := cur.MapLen()
	if err != nil {
		return c, false, err
	}
	for range n {
		key, err := cur.StrString()
		if err != nil {
			return c, false, err
		}
		if key == "_backend" && cur.Kind() == pack.String {
			backend, err := cur.Str()
			if guidance = string(backend) == "guidance"; err != nil {
				return c, false, err
			}
			continue
		}
		found, err := decodeConstraintValue(&cur, key)
		if err != nil {
			return c, false, fmt.Errorf("%s: %w", key, err)
		}
		if found.Kind != 0 && c.Kind != 0 {
			return c, false, errManyConstraints
		}
		if found.Kind != 0 {
			c = found
		}
	}
	if c.Kind == 0 {
		return c, guidance, errNoConstraint
	}
	c.Empty = guidance
	return c, guidance, nil
}

// decodeConstraintValue returns a constraint without a kind where there is none.
func decodeConstraintValue(cur *pack.Cursor, key string) (c grammar.Constraint, err error) {
	if cur.Nil() {
		return c, nil
	}
	switch key {
	case "json":
		c.Kind = grammar.JSON
		if cur.Kind() == pack.String {
			c.Text, err = cur.StrString()
			return c, err
		}
		var text []byte
		text, err = cur.AppendJSON(nil)
		c.Text = string(text)
	case "json_object":
		var set bool
		if set, err = cur.Bool(); set {
			c.Kind = grammar.JSONObject
		}
	case "regex":
		c.Kind = grammar.Regex
		c.Text, err = cur.StrString()
	case "grammar":
		c.Kind = grammar.Grammar
		c.Text, err = cur.StrString()
	case "structural_tag":
		c.Kind = grammar.StructuralTag
		c.Text, err = cur.StrString()
	case "choice":
		c.Kind = grammar.Choice
		c.Choices, err = decodeTexts(cur)
	default:
		err = cur.Skip()
	}
	return c, err
}
