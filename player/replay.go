package player

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/trace"
)

// Match says how a request finds its record.
type Match string

const (
	// MatchIndex takes the number in the request id ("replay-7") as the
	// position in the trace's replay subset.
	MatchIndex Match = "index"
	// MatchPrefix finds the record whose prompt shares the longest chain of
	// blocks with the request's prompt.
	MatchPrefix Match = "prefix"
	// MatchExact finds the record of the whole prompt: by its ids where they
	// were recorded, else by its chain of blocks and its length.
	MatchExact Match = "exact"
	// MatchRequestID finds the record whose recorded request id is the request's,
	// or is what a frontend makes of the same id of a client. It needs a trace
	// that was read with its extra keys.
	MatchRequestID Match = "request-id"
)

// Matches are all ways to find a record.
func Matches() []Match { return []Match{MatchIndex, MatchPrefix, MatchExact, MatchRequestID} }

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
}

// Replay is a [Source] that says what a recorded engine said. Several players may
// share one: a record that has answered one of them is used for all.
type Replay struct {
	name    string
	opt     ReplayOptions
	records []*trace.Record // the replay subset, by index
	finder  finder

	mu      sync.Mutex
	used    []bool
	summary ReplaySummary
}

// finder finds records. It is told which are used, and changes nothing.
type finder interface {
	// find returns the index of the record that answers a request, and how many
	// tokens of the prompt it was found by.
	find(r *Request, used []bool) (index, depth int, err error)
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
		r := &t.Records[i]
		s.records = append(s.records, r)
		if r.OutputTokenIDs != nil {
			withTokens++
		}
	}
	switch {
	case len(s.records) == 0:
		return nil, fmt.Errorf("%s: no record has arrival_ms, so nothing can be replayed", t.Name)
	case withTokens == 0:
		return nil, fmt.Errorf("%s: no record has output_token_ids; record with --record-tokens", t.Name)
	}
	s.used = make([]bool, len(s.records))
	var err error
	s.finder, err = newFinder(t, s.records, opt)
	return s, err
}

func newFinder(t *trace.Trace, records []*trace.Record, opt ReplayOptions) (finder, error) {
	switch opt.Match {
	case MatchIndex, "":
		return &indexed{records, opt.Strict}, nil
	case MatchPrefix:
		return newChains(t, records, opt.BlockSize, opt.MinDepth)
	case MatchExact:
		return newExact(t, records, opt.BlockSize)
	case MatchRequestID:
		return newNamed(t, records)
	}
	return nil, fmt.Errorf("match %q: want one of %q", opt.Match, Matches())
}

// errNoRecord marks a request that strict replay has no answer for.
var errNoRecord = errors.New("no record answers it")

// Script answers with the matching record. It may be called by several players at
// once.
func (s *Replay) Script(r *Request) (Script, error) {
	s.mu.Lock()
	rec, err := s.take(r)
	s.mu.Unlock()
	if err == nil {
		return scriptOf(rec), nil
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
		return nil, fmt.Errorf("%w: record %d (line %d) has answered a request, and each may answer one", errNoRecord, i, rec.Line)
	}
	s.summary.count(s.used[i], depth, len(r.PromptTokenIDs))
	s.used[i] = true
	return rec, nil
}

// Rewind makes every record unused, as if nothing had been asked. The summary goes
// on counting.
func (s *Replay) Rewind() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.used)
}

// indexed finds a record by the number in the request id.
type indexed struct {
	records []*trace.Record
	strict  bool // compare the length of the prompt too
}

func (f *indexed) find(r *Request, _ []bool) (index, depth int, err error) {
	i, ok := ReplayIndex(r.ID, r.ExternalID)
	if !ok {
		return 0, 0, fmt.Errorf("%w: the id names no record (want replay-N)", errNoRecord)
	}
	if i >= len(f.records) {
		return 0, 0, fmt.Errorf("%w: the trace has records 0 to %d", errNoRecord, len(f.records)-1)
	}
	rec := f.records[i]
	if rec.OutputTokenIDs == nil {
		return 0, 0, fmt.Errorf("%w: record %d (line %d) has no output_token_ids", errNoRecord, i, rec.Line)
	}
	if n := len(r.PromptTokenIDs); f.strict && n != rec.PromptTokens {
		return 0, 0, fmt.Errorf("%w: its prompt has %d tokens, record %d (line %d) has %d",
			errNoRecord, n, i, rec.Line, rec.PromptTokens)
	}
	return i, len(r.PromptTokenIDs), nil
}

func scriptOf(rec *trace.Record) Script {
	s := Script{
		Tokens:       rec.OutputTokenIDs,
		Chunks:       rec.Chunks(),
		Finish:       FinishReason(rec.FinishReason.Wire() + 1),
		CachedTokens: rec.CachedTokens,
		FirstToken:   milliseconds(rec.TTFTMs),
	}
	for _, gap := range rec.ITLMs {
		s.Gaps = append(s.Gaps, milliseconds(gap))
	}
	return s
}

func milliseconds(ms float64) time.Duration {
	return time.Duration(ms * float64(time.Millisecond))
}

// ReplayIndex reads the record number out of a request id. A frontend wraps the
// client's id: "replay-7" arrives as cmpl-replay-7-1a2b3c4d from vllm-rs and as
// cmpl-replay-7-0-1a2b3c4d from the Python frontend, with eight random hex
// digits that may all be decimal, so they are cut off first where the external
// id shows them; the children of a request for n>1 have a "1_" in front as well.
// Without a "replay-" the number after the last dash counts, unless it may be
// those digits, or a frontend made the id: every completion of the Python
// frontend ends in the number of its prompt, which is no record's.
func ReplayIndex(id, external string) (index int, ok bool) {
	wrapped := true
	if external != "" && strings.Contains(id+"-", external+"-") {
		id, wrapped = external, false
	}
	if at := strings.LastIndex(id, "replay-"); at >= 0 {
		digits, _, _ := strings.Cut(id[at+len("replay-"):], "-")
		return parseIndex(digits)
	}
	if strings.Contains(id, "cmpl-") {
		return 0, false
	}
	dash := strings.LastIndexByte(id, '-')
	if wrapped && dash >= 0 && len(id)-dash-1 == randomDigits {
		return 0, false
	}
	return parseIndex(id[dash+1:])
}

// randomDigits is the number of hex digits that frontends append to an id
// (vllm/v1/engine/input_processor.py assign_request_id).
const randomDigits = 8

func parseIndex(digits string) (int, bool) {
	n, err := strconv.ParseUint(digits, 10, 31)
	return int(n), err == nil
}
