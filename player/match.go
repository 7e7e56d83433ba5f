package player

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// Match is how a request finds its record.
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
	// MatchAuto is MatchIndex for a request whose id has replay-N. For any other request it
	// is MatchPrefix, then MatchExact, then MatchIndex, as far as the trace has what they need.
	MatchAuto Match = "auto"
)

// Matches are all ways to find a record.
func Matches() []Match {
	return []Match{MatchAuto, MatchIndex, MatchPrefix, MatchExact, MatchRequestID}
}

// finder finds records.
type finder interface {
	// find returns the index of the record that answers a request, and how many
	// tokens of the prompt it was found by.
	find(r *Request, used []bool) (index, depth int, err error)
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
	case MatchAuto:
		return newAuto(t, records, opt), nil
	}
	return nil, fmt.Errorf("match %q: want one of %q", opt.Match, Matches())
}

// errNoRecord marks a request that strict replay has no answer for.
var errNoRecord = errors.New("no record answers this request")

// indexed finds a record by the number in the request id.
type indexed struct {
	records []*trace.Record
	strict  bool // compare the length of the prompt too
}

func (f *indexed) find(r *Request, _ []bool) (index, depth int, err error) {
	i, ok := ReplayIndex(r.ID, r.ExternalID)
	if !ok {
		return 0, 0, fmt.Errorf("%w: its id has no record number (records are numbered from 0: replay-0, replay-1, …)", errNoRecord)
	}
	if i >= len(f.records) {
		return 0, 0, fmt.Errorf("%w: its id names record %d, and the trace has records 0 to %d", errNoRecord, i, len(f.records)-1)
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

// auto finds a record by the number in an id that has replay-N, and else by the prompt.
type auto struct {
	byIndex  *indexed
	byPrompt []finder // empty where the trace has neither prompts nor hashes of them
}

func newAuto(t *trace.Trace, records []*trace.Record, opt ReplayOptions) *auto {
	f := &auto{byIndex: &indexed{records, opt.Strict}}
	if byPrefix, err := newChains(t, records, opt.BlockSize, opt.MinDepth); err == nil {
		f.byPrompt = append(f.byPrompt, byPrefix)
	}
	if byPrompt, err := newExact(t, records, opt.BlockSize); err == nil {
		f.byPrompt = append(f.byPrompt, byPrompt) // finds prompts of less than a block too
	}
	return f
}

func (f *auto) find(r *Request, used []bool) (index, depth int, err error) {
	_, numbered := ReplayIndex(r.ID, r.ExternalID)
	if len(f.byPrompt) == 0 || numbered && strings.Contains(r.ID+" "+r.ExternalID, "replay-") {
		return f.byIndex.find(r, used)
	}
	for _, finder := range f.byPrompt {
		var none error
		if index, depth, none = finder.find(r, used); none == nil {
			return index, depth, nil
		}
		err = cmp.Or(err, none)
	}
	if numbered {
		return f.byIndex.find(r, used)
	}
	return 0, 0, err
}

// ReplayIndex reads the record number out of a request id. A frontend wraps the
// client's id: "replay-7" arrives as cmpl-replay-7-1a2b3c4d from vllm-rs and as
// cmpl-replay-7-0-1a2b3c4d from the Python frontend, with eight random hex
// digits that may all be decimal, so they are cut off first where the external
// id shows them; the children of a request for n>1 have a "1_" in front as well.
// Without a "replay-" the number after the last dash counts, unless it may be
// those digits, or a frontend made the id: every completion of the Python
// frontend ends in the number of its prompt, which no record has.
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

// chains finds records by prompt. Each record is listed under every hash of its
// block chain; the deepest hash that a prompt shares with any record decides,
// and a record serves one request before it serves another.
type chains struct {
	blockSize int
	minDepth  int // tokens that must be shared, at least a block
	listed    []listed
	blocks    []int // of each record
	records   []*trace.Record
	// The request at hand.
	hashes []uint64
	images []string
}

// listed is a record under one hash. They are sorted by hash, then in the order of the trace: long traces have millions.
type listed struct {
	hash   uint64
	record int
}

func newChains(t *trace.Trace, records []*trace.Record, blockSize, minDepth int) (*chains, error) {
	c := &chains{blockSize: trace.Or(t.Meta.BlockSize, blockSize), records: records, blocks: make([]int, len(records))}
	if c.blockSize < 1 {
		return nil, fmt.Errorf("%s: meta.block_size is %d, and prefix matching needs the number of tokens per block; give --block-size, or --replay-match index", t.Name, c.blockSize)
	}
	c.minDepth = max(minDepth, c.blockSize)
	total := 0
	for i, rec := range records {
		c.blocks[i] = len(rec.BlockHashes)
		total += c.blocks[i]
	}
	c.listed = make([]listed, 0, total)
	for i, rec := range records {
		if answers(rec) {
			for _, h := range rec.BlockHashes {
				c.listed = append(c.listed, listed{h, i})
			}
		}
	}
	slices.SortFunc(c.listed, func(x, y listed) int { return cmp.Or(cmp.Compare(x.hash, y.hash), cmp.Compare(x.record, y.record)) })
	if len(c.listed) == 0 {
		return nil, fmt.Errorf("%s: no record has block_hashes, which prefix matching needs; use --replay-match index, or record again with vllm-vcr record", t.Name)
	}
	return c, nil
}

// answers reports whether a record has what a request is answered with.
func answers(rec *trace.Record) bool { return len(rec.OutputTokenIDs) > 0 || rec.OutputTokens == 0 }

// find returns the record that answers a prompt.
func (c *chains) find(r *Request, used []bool) (index, depth int, err error) {
	c.hashes = trace.AppendBlockHashes(c.hashes[:0], r.PromptTokenIDs, c.blockSize)
	c.images = protocol.FeatureHashes(r.MMFeatures)
	for blocks := len(c.hashes); blocks > 0; blocks-- {
		if candidates := c.of(c.hashes[blocks-1]); len(candidates) > 0 {
			index = c.choose(candidates, r.PromptTokenIDs, used)
			if depth = c.depth(c.records[index], blocks, r.PromptTokenIDs); depth >= c.minDepth {
				return index, depth, nil
			}
			break
		}
	}
	return 0, 0, fmt.Errorf("%w: no recorded prompt has the same first %d tokens as its prompt of %d tokens",
		errNoRecord, c.minDepth, len(r.PromptTokenIDs))
}

// depth is how many tokens a prompt shares with a record: as many as its blocks
// have, and more where the record has its ids.
func (c *chains) depth(rec *trace.Record, blocks int, prompt []uint32) int {
	n := blocks * c.blockSize
	for n < min(len(prompt), len(rec.PromptTokenIDs)) && prompt[n] == rec.PromptTokenIDs[n] {
		n++
	}
	return n
}

// of is the records of a hash.
func (c *chains) of(hash uint64) []listed {
	from, _ := slices.BinarySearchFunc(c.listed, hash, func(l listed, hash uint64) int { return cmp.Compare(l.hash, hash) })
	to := from
	for to < len(c.listed) && c.listed[to].hash == hash {
		to++
	}
	return c.listed[from:to]
}

// choose ranks the candidates: the same prompt, then the same number of blocks
// and of tokens, then the same number of blocks; among those the same images, then
// an unused record before a used one, so that a retry is served its own record
// again and not a longer one; the earliest arrival decides among equals.
func (c *chains) choose(candidates []listed, prompt []uint32, used []bool) int {
	best, bestRank := 0, -1
	for _, l := range candidates {
		if rank := c.rank(l.record, prompt, used[l.record]); rank > bestRank {
			best, bestRank = l.record, rank
		}
	}
	return best
}

func (c *chains) rank(i int, prompt []uint32, used bool) int {
	rec, rank := c.records[i], 0
	switch {
	case c.blocks[i] != len(c.hashes):
	case rec.PromptTokens != len(prompt):
		rank = 4
	case rec.PromptTokenIDs == nil || !slices.Equal(rec.PromptTokenIDs, prompt):
		rank = 8
	default:
		rank = 12
	}
	if slices.Equal(rec.MMHashes, c.images) {
		rank += 2
	}
	if !used {
		rank++
	}
	return rank
}

// exact finds records by the whole prompt, and by its images.
type exact struct {
	blockSize int
	// byIDs and byChain are keyed by what exactKey makes of a prompt's tokens, and
	// of its last block.
	byIDs, byChain map[exactKey][]int
	records        []*trace.Record
}

// exactKey is the length of a prompt and a hash of it.
type exactKey struct {
	tokens int
	hash   uint64
}

// wholePrompt is the key of a prompt by its ids: its chain in blocks of one token
// ends in a hash of all.
func wholePrompt(prompt []uint32) exactKey {
	key := exactKey{tokens: len(prompt)}
	if hashes := trace.BlockHashes(prompt, len(prompt)); hashes != nil {
		key.hash = hashes[0]
	}
	return key
}

func newExact(t *trace.Trace, records []*trace.Record, blockSize int) (*exact, error) {
	e := &exact{
		blockSize: trace.Or(t.Meta.BlockSize, blockSize), records: records,
		byIDs: map[exactKey][]int{}, byChain: map[exactKey][]int{},
	}
	for i, rec := range records {
		n := len(rec.BlockHashes)
		switch {
		case !answers(rec):
		case rec.PromptTokenIDs != nil:
			key := wholePrompt(rec.PromptTokenIDs)
			e.byIDs[key] = append(e.byIDs[key], i)
		case n > 0 && e.blockSize > 0 && n == rec.PromptTokens/e.blockSize:
			key := exactKey{rec.PromptTokens, rec.BlockHashes[n-1]}
			e.byChain[key] = append(e.byChain[key], i)
		}
	}
	if len(e.byIDs)+len(e.byChain) == 0 {
		return nil, fmt.Errorf("%s: no record has prompt_token_ids, or block_hashes of its whole prompt; "+
			"exact matching needs one of them", t.Name)
	}
	return e, nil
}

func (e *exact) find(r *Request, used []bool) (index, depth int, err error) {
	prompt, images := r.PromptTokenIDs, protocol.FeatureHashes(r.MMFeatures)
	candidates := slices.Clone(e.byIDs[wholePrompt(prompt)])
	candidates = slices.DeleteFunc(candidates, func(i int) bool { return !slices.Equal(e.records[i].PromptTokenIDs, prompt) })
	if len(candidates) == 0 {
		if hashes := trace.BlockHashes(prompt, e.blockSize); hashes != nil {
			candidates = slices.Clone(e.byChain[exactKey{len(prompt), hashes[len(hashes)-1]}])
		}
	}
	candidates = slices.DeleteFunc(candidates, func(i int) bool { return !slices.Equal(e.records[i].MMHashes, images) })
	if len(candidates) == 0 {
		return 0, 0, fmt.Errorf("%w: no recorded prompt is the same as its prompt of %d tokens", errNoRecord, len(prompt))
	}
	return firstUnused(candidates, used), len(prompt), nil
}

// firstUnused returns the first of the candidates that is not used, else the first.
func firstUnused(candidates []int, used []bool) int {
	for _, i := range candidates {
		if !used[i] {
			return i
		}
	}
	return candidates[0]
}

// named finds records by their recorded request id.
type named struct {
	byID map[string][]int
}

func newNamed(t *trace.Trace, records []*trace.Record) (*named, error) {
	f := &named{byID: map[string][]int{}}
	for i, rec := range records {
		var id string
		if raw, ok := rec.Extra["request_id"]; !ok || !answers(rec) || json.Unmarshal(raw, &id) != nil || id == "" {
			continue
		}
		f.byID[id] = append(f.byID[id], i)
		if client := clientID(id); client != id {
			f.byID[client] = append(f.byID[client], i)
		}
	}
	if len(f.byID) == 0 {
		return nil, fmt.Errorf("%s: no record has a request_id; matching by it needs a trace that vllm-vcr recorded", t.Name)
	}
	return f, nil
}

// find looks for the id of the engine, then for that of the client.
func (f *named) find(r *Request, used []bool) (index, depth int, err error) {
	for _, id := range []string{r.ID, r.ExternalID, clientID(r.ID)} {
		if candidates := f.byID[id]; id != "" && len(candidates) > 0 {
			return firstUnused(candidates, used), len(r.PromptTokenIDs), nil
		}
	}
	return 0, 0, fmt.Errorf("%w: no record has its request id", errNoRecord)
}

// clientID is an engine's request id without the random digits that a frontend
// appends to the client's.
func clientID(id string) string {
	dash := strings.LastIndexByte(id, '-')
	if dash < 1 || len(id)-dash-1 != randomDigits || strings.Trim(id[dash+1:], "0123456789abcdef") != "" {
		return id
	}
	return id[:dash]
}

// drawID is the id that draws depend on: without what a frontend drew itself, so that a
// client that names its requests gets the same again. Each of n answers has its own.
func drawID(id, external string) string {
	if client := clientID(id); external != "" && strings.HasSuffix(client, external) {
		return client
	}
	return id
}
