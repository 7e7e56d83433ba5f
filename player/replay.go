package player

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/trace"
)

// ReplayOptions configures [NewReplay].
type ReplayOptions struct {
	// Match is default MatchIndex.
	Match Match
	// Strict ends a request that no record answers with an error. Otherwise
	// Fallback answers it, by default with random tokens.
	Strict   bool
	Fallback Source
	// Once lets each record answer one request: when all that match have, no
	// record answers. Otherwise they answer again, the first one first.
	Once bool
	// MinDepth is how many tokens of its prompt a request must share with a record
	// at [MatchPrefix]; at least a block.
	MinDepth int
	// BlockSize is used for prefix matching when the trace names none; in [Options] it
	// is default that of the KV cache.
	BlockSize int
	// OnUnmatched gets each request that no record answers, and why. Several players that share
	// the replay may call it at once. The request is valid during the call only.
	OnUnmatched func(r *Request, err error)
}

// Replay is a [Source] that answers as a recorded engine did. Several players may
// share one: a record that has answered one of them is used for all.
type Replay struct {
	name    string
	opt     ReplayOptions
	records []*trace.Record // the replay subset, by index, without what only the finder needs
	finder  finder

	mu      sync.Mutex
	used    []bool
	summary ReplaySummary
}

// NewReplay prepares a trace for replay. It fails when nothing in the trace can
// be replayed: no record has both an arrival and token ids, or none can be found
// by opt.Match.
func NewReplay(t *trace.Trace, opt ReplayOptions) (*Replay, error) {
	s := &Replay{name: t.Name, opt: opt}
	if s.opt.Fallback == nil {
		s.opt.Fallback = Random{Vocab: defaultVocab}
	}
	withTokens := 0
	for _, i := range trace.ReplaySubset(t.Records) {
		r := t.Records[i]
		s.records = append(s.records, &r)
		if r.OutputTokenIDs != nil {
			withTokens++
		}
	}
	switch {
	case len(s.records) == 0:
		return nil, fmt.Errorf("%s: no record has arrival_ms, so nothing can be replayed", t.Name)
	case withTokens == 0:
		return nil, fmt.Errorf("%s: no record has output_token_ids; record with --record-tokens, or replay the times alone with --replay-steps", t.Name)
	}
	s.used = make([]bool, len(s.records))
	var err error
	s.finder, err = newFinder(t, s.records, opt)
	for _, r := range s.records {
		r.ITLCtx, r.BlockHashes, r.Extra = nil, nil, nil
	}
	return s, err
}

// Script answers with the matching record. It may be called by several players at
// once.
func (s *Replay) Script(r *Request) (Script, error) {
	s.mu.Lock()
	rec, err := s.take(r)
	s.mu.Unlock()
	if err == nil {
		return s.scriptOf(rec, r)
	}
	if s.opt.OnUnmatched != nil {
		s.opt.OnUnmatched(r, err)
	}
	if s.opt.Strict {
		return Script{}, fmt.Errorf("%s: request %s: %w", s.name, r.ID, err)
	}
	return s.opt.Fallback.Script(r)
}

// take returns the record that answers a request, marks it used and counts it.
func (s *Replay) take(r *Request) (*trace.Record, error) {
	s.summary.Requests++
	i, depth, err := s.finder.find(r, s.used)
	if err != nil {
		s.summary.Unmatched++
		return nil, err
	}
	rec := s.records[i]
	if s.used[i] && s.opt.Once {
		s.summary.Exhausted++
		return nil, fmt.Errorf("%w: record %d (line %d) has answered another request already, and each record may answer one only", errNoRecord, i, rec.Line)
	}
	s.summary.count(s.used[i], depth, len(r.PromptTokenIDs))
	s.used[i] = true
	return rec, nil
}

// Rewind makes every record unused, as before the first request. The summary goes
// on counting.
func (s *Replay) Rewind() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.used)
}

// scriptOf answers as recorded. Where the frontend ended the request, the engine would
// have gone on: what was not recorded is drawn at random.
func (s *Replay) scriptOf(rec *trace.Record, r *Request) (Script, error) {
	answer := Script{
		Tokens:       rec.OutputTokenIDs,
		Chunks:       rec.Chunks(),
		Finish:       FinishReason(rec.ReplayEnd().Wire() + 1),
		Error:        rec.Error,
		CachedTokens: rec.CachedTokens,
		FirstToken:   milliseconds(rec.TTFTMs),
	}
	for _, gap := range rec.ITLMs {
		answer.Gaps = append(answer.Gaps, milliseconds(gap))
	}
	if rec.EndedByFrontend {
		more, err := s.opt.Fallback.Script(r)
		if err != nil {
			return answer, err
		}
		answer.Fill = more.Fill
	}
	return answer, nil
}

func milliseconds(ms float64) time.Duration {
	return time.Duration(ms * float64(time.Millisecond))
}

// ReplaySummary counts how requests found their records.
type ReplaySummary struct {
	Requests  int `json:"requests"`       // all of them
	Whole     int `json:"matched_whole"`  // matched by their whole prompt, or by an id
	Partial   int `json:"matched_prefix"` // matched by the beginning of their prompt
	Again     int `json:"matched_again"`  // of those matched, by a record that had answered before
	Unmatched int `json:"unmatched"`      // found no record
	Exhausted int `json:"exhausted"`      // found only used records that may answer once
	// Depths counts the partial matches by the tokens they share with their record.
	Depths  map[int]int `json:"-"`
	Records int         `json:"records"`        // that can answer
	Unused  int         `json:"records_unused"` // records that have answered nothing since the last rewind
}

// count adds a match by depth of so many tokens of a prompt.
func (s *ReplaySummary) count(again bool, depth, prompt int) {
	if again {
		s.Again++
	}
	if depth == prompt {
		s.Whole++
		return
	}
	s.Partial++
	if s.Depths == nil {
		s.Depths = map[int]int{}
	}
	s.Depths[depth]++
}

// Summary returns what was matched so far.
func (s *Replay) Summary() ReplaySummary {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.summary
	sum.Depths = maps.Clone(sum.Depths)
	for i, rec := range s.records {
		if answers(rec) {
			sum.Records++
			if !s.used[i] {
				sum.Unused++
			}
		}
	}
	return sum
}

// maxDepths is how many depths a summary names.
const maxDepths = 8

// String is one line for a person.
func (s ReplaySummary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d matched a record by the whole prompt or the id, %d by the beginning of the prompt",
		safetext.Count(s.Requests, "request"), s.Whole, s.Partial)
	if len(s.Depths) > 0 {
		depths := slices.Sorted(maps.Keys(s.Depths))
		var parts []string
		for _, d := range depths[:min(len(depths), maxDepths)] {
			parts = append(parts, fmt.Sprintf("%d of %d tokens", s.Depths[d], d))
		}
		if len(depths) > maxDepths {
			parts = append(parts, fmt.Sprintf("the others of up to %d", depths[len(depths)-1]))
		}
		fmt.Fprintf(&b, " (%s)", strings.Join(parts, ", "))
	}
	fmt.Fprintf(&b, ", %d no record, %d only records that may not answer again; %d got a record that had answered before; %d of %d records unused",
		s.Unmatched, s.Exhausted, s.Again, s.Unused, s.Records)
	return b.String()
}
