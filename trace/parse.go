package trace

import (
	"encoding/json"
	"math/bits"
)

// field is a known key of a record, as a bit.
type field uint32

const (
	promptTokens field = 1 << iota
	outputTokens
	ttftMs
	cachedTokens
	itlMs
	itlTokens
	itlSummary
	concurrency
	arrivalMs
	itlCtx
	blockHashes
	mmHashes
	promptTokenIDs
	outputTokenIDs
	finishReason
	endedByFrontend
	requestError
	engineClock
	tapTimes

	unknown  field = 0
	required       = promptTokens | outputTokens | ttftMs
	// plain fields have a default instead of an absence, and take no null.
	plain = required | cachedTokens | concurrency
)

func fieldOf(key []byte) field {
	switch string(key) {
	case "prompt_tokens":
		return promptTokens
	case "cached_tokens":
		return cachedTokens
	case "output_tokens":
		return outputTokens
	case "ttft_ms":
		return ttftMs
	case "itl_ms":
		return itlMs
	case "itl_tokens":
		return itlTokens
	case "itl_summary":
		return itlSummary
	case "concurrency":
		return concurrency
	case "arrival_ms":
		return arrivalMs
	case "itl_ctx":
		return itlCtx
	case "block_hashes":
		return blockHashes
	case "mm_hashes":
		return mmHashes
	case "prompt_token_ids":
		return promptTokenIDs
	case "output_token_ids":
		return outputTokenIDs
	case "finish_reason":
		return finishReason
	case "ended_by_frontend":
		return endedByFrontend
	case "request_error":
		return requestError
	case "engine_clock":
		return engineClock
	case "tap_times":
		return tapTimes
	}
	return unknown
}

// requiredName names the required fields for the error of a missing one.
var requiredName = [...]string{"prompt_tokens", "output_tokens", "ttft_ms"}

// recordParser fills records from lines, one after the other.
type recordParser struct {
	cursor
	rec       *Record
	old       Record // the storage to reuse
	seen      field
	keepExtra bool
	without   field
	sawMeta   bool
	sawFrames bool // a key of frames files
}

// parse fills rec from line, reusing the storage of its slices and pointers, and
// its own. rec is undefined after an error.
func (p *recordParser) parse(line []byte, rec *Record) error {
	*p = recordParser{cursor: cursor{b: line}, rec: rec, old: *rec, keepExtra: p.keepExtra, without: p.without}
	*rec = Record{Concurrency: 1, FinishReason: FinishAbsent}
	if err := p.object(p.member); err != nil {
		return err
	}
	if err := p.end(); err != nil {
		return err
	}
	if missing := required &^ p.seen; missing != 0 {
		return p.missing(missing)
	}
	return rec.Validate()
}

func (p *recordParser) missing(f field) error {
	name := requiredName[bits.TrailingZeros32(uint32(f))]
	if p.sawMeta {
		return invalid(name, "missing: a meta line is only allowed first; were traces concatenated?")
	}
	if p.sawFrames {
		return invalid(name, "missing: this line has the raw frames of a message: the file is a frames file, not a trace")
	}
	return invalid(name, "missing")
}

func (p *recordParser) member(key []byte) error {
	f := fieldOf(key)
	if f == unknown {
		return p.extra(key)
	}
	if p.seen&f != 0 {
		return inKey(p.fail("the key occurs twice"), key)
	}
	p.seen |= f
	switch {
	case f&plain == 0 && p.null():
		return nil
	case f&p.without != 0:
		return inKey(p.skip(2), key)
	}
	return inKey(p.field(f), key)
}

// extra consumes the value of an unknown key.
func (p *recordParser) extra(key []byte) error {
	p.sawMeta = p.sawMeta || string(key) == "meta"
	p.sawFrames = p.sawFrames || string(key) == "ch"
	if !p.keepExtra {
		return inKey(p.skip(2), key)
	}
	name := string(key)
	raw, err := p.value(2)
	if err != nil {
		return inKey(err, key)
	}
	if p.rec.Extra == nil {
		p.rec.Extra = make(map[string]json.RawMessage)
	}
	p.rec.Extra[name] = append(json.RawMessage(nil), raw...)
	return nil
}

// field consumes the value of a known key.
func (p *recordParser) field(f field) (err error) {
	c, r, old := &p.cursor, p.rec, &p.old
	switch f {
	case promptTokens:
		r.PromptTokens, err = c.count()
	case cachedTokens:
		r.CachedTokens, err = c.count()
	case outputTokens:
		r.OutputTokens, err = c.count()
	case ttftMs:
		r.TTFTMs, err = c.float()
	case itlMs:
		r.ITLMs, err = floats(c, old.ITLMs)
	case itlTokens:
		r.ITLTokens, err = uints(c, old.ITLTokens)
	case itlSummary:
		r.ITLSummary = orNew(old.ITLSummary)
		err = members(c, 3, r.ITLSummary, summaryMembers)
	case concurrency:
		r.Concurrency, err = c.uint(1<<64 - 1)
	case arrivalMs:
		r.ArrivalMs = orNew(old.ArrivalMs)
		*r.ArrivalMs, err = c.float()
	case itlCtx:
		r.ITLCtx = orNew(old.ITLCtx)
		err = members(c, 3, r.ITLCtx, contextMembers)
	case blockHashes:
		r.BlockHashes, err = uints(c, old.BlockHashes)
	case mmHashes:
		r.MMHashes, err = c.strs(old.MMHashes)
	case promptTokenIDs:
		r.PromptTokenIDs, err = uints(c, old.PromptTokenIDs)
	case outputTokenIDs:
		r.OutputTokenIDs, err = uints(c, old.OutputTokenIDs)
	case finishReason:
		r.FinishReason, err = c.finishReason()
	case endedByFrontend:
		r.EndedByFrontend, err = c.bool()
	case engineClock:
		var name string
		name, err = c.str()
		r.EngineClock = EngineClock(name)
	case tapTimes:
		r.TapTimes = orNew(old.TapTimes)
		err = members(c, 3, r.TapTimes, tapMembers)
	case requestError:
		r.Error = new(RequestError)
		err = members(c, 3, r.Error, errorMembers)
	}
	return err
}

// orNew returns p, or new storage if there is none to reuse.
func orNew[T any](p *T) *T {
	if p == nil {
		p = new(T)
	}
	return p
}

func (c *cursor) strs(old []string) ([]string, error) {
	out := old[:0]
	if out == nil {
		out = []string{}
	}
	err := c.array(func() error {
		s, err := c.str()
		out = append(out, s)
		return err
	})
	return out, err
}

func (c *cursor) finishReason() (FinishReason, error) {
	c.space()
	at := *c
	raw, escaped, err := c.raw("a string")
	if err == nil && escaped {
		raw, err = c.unquote(raw)
	}
	if err != nil {
		return FinishAbsent, err
	}
	f, ok := ParseFinishReason(string(raw))
	if !ok {
		return FinishAbsent, at.fail("want stop, length, abort, error or repetition, got %s", clip(raw))
	}
	return f, nil
}

func (c *cursor) bool() (bool, error) {
	c.space()
	if c.literal("true") {
		return true, nil
	}
	if c.literal("false") {
		return false, nil
	}
	return false, c.fail("want true or false, got %s", c.here())
}

// A member is a key of an object, and how its value is read into a T.
type member[T any] struct {
	key      string
	required bool
	read     func(c *cursor, to *T) error
}

// members reads an object of the known members, which must not occur twice. Others, whose values are at depth, are skipped.
func members[T any](c *cursor, depth int, to *T, known []member[T]) error {
	var seen uint32
	err := c.object(func(key []byte) error {
		for i := range known {
			m := &known[i]
			if m.key != string(key) {
				continue
			}
			if seen&(1<<i) != 0 {
				return within(c.fail("the key occurs twice"), m.key)
			}
			seen |= 1 << i
			return within(m.read(c, to), m.key)
		}
		return inKey(c.skip(depth), key)
	})
	for i := 0; i < len(known) && err == nil; i++ {
		if known[i].required && seen&(1<<i) == 0 {
			err = invalid(known[i].key, "missing")
		}
	}
	return err
}

var errorMembers = []member[RequestError]{
	{"code", false, func(c *cursor, e *RequestError) (err error) {
		e.Code, err = c.str()
		return err
	}},
	{"message", false, func(c *cursor, e *RequestError) (err error) {
		e.Message, err = c.str()
		return err
	}},
	{"retryable", false, func(c *cursor, e *RequestError) (err error) {
		e.Retryable, err = c.bool()
		return err
	}},
}

var summaryMembers = []member[ITLSummary]{
	{"mean_ms", true, func(c *cursor, s *ITLSummary) (err error) {
		s.MeanMs, err = c.float()
		return err
	}},
	{"count", true, func(c *cursor, s *ITLSummary) (err error) {
		s.Count, err = c.count()
		return err
	}},
}

var tapMembers = []member[TapTimes]{
	{"ttft_ms", true, func(c *cursor, t *TapTimes) (err error) {
		t.TTFTMs, err = c.float()
		return err
	}},
	{"itl_ms", true, func(c *cursor, t *TapTimes) (err error) {
		t.ITLMs, err = floats(c, t.ITLMs)
		return err
	}},
}

var contextMembers = []member[ITLCtx]{
	{"num_running", true, func(c *cursor, x *ITLCtx) (err error) {
		x.NumRunning, err = uints(c, x.NumRunning)
		return err
	}},
	{"prefill_tokens", true, func(c *cursor, x *ITLCtx) (err error) {
		x.PrefillTokens, err = uints(c, x.PrefillTokens)
		return err
	}},
}

// floats consumes an array of numbers into the storage of old.
func floats(c *cursor, old []float64) ([]float64, error) {
	if err := c.expect('[', "an array of numbers"); err != nil {
		return nil, err
	}
	out := room(c, old)
	if c.accept(']') {
		return out, nil
	}
	for {
		v, err := c.float()
		if err != nil {
			return nil, err
		}
		out = append(out, v)
		if !c.accept(',') {
			return out, c.expect(']', "',' or ']'")
		}
	}
}
