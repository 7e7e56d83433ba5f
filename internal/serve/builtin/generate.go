package builtin

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// A generation is what one HTTP request lets the engines generate.
type generation struct {
	server *Server
	id     string // that the client knows
	noted  bool   // in the register of the server
	params *params
	all    []*sequence  // by the index of the choice
	one    [1]*sequence // the room for all of one answer

	wake chan struct{} // something has come
	mu   sync.Mutex    // of what the sequences got
	held int64         // bytes of an answer that is not streamed, under mu
	full bool          // held would have made those of the server too many, under mu
}

// A sequence is one answer: a request of an engine. It is the [player.EngineReceiver] of this request.
type sequence struct {
	gen    *generation
	index  int // of the choice
	engine int
	id     string
	// external is the id that the client knows.
	external string
	prompt   []uint32
	eager    bool // each output is handled when it comes, and not all of them at the end

	// What has come and was not taken, under the mutex of the generation.
	*pieces
	waiting bool         // Full was true
	length  atomic.Int32 // of the pieces that have come

	// Of the goroutine of the HTTP request.
	decoder  decoder
	tokens   []uint32 // of the answer, if they are needed
	table    []*protocol.Logprobs
	prompts  *protocol.Logprobs
	count    int // of tokens
	cached   int
	stored   int
	ended    bool
	finish   protocol.FinishReason
	stop     stopReason
	failure  *protocol.RequestError
	transfer []byte // kv_transfer_params as msgpack
	pooled   []float32

	plan   *plan  // of the simulator
	reason string // in the place of that of finish

	record requestRecord // of the goroutine of the engine
}

// stopReason is the stop string or the stop token that ended an answer, if one did.
type stopReason struct {
	text  string
	token int64
	kind  uint8 // 0 none, 1 text, 2 token
}

// A piece is an output of the engine.
type piece struct {
	ids      []uint32
	finish   protocol.FinishReason
	stop     stopReason
	logprobs *protocol.Logprobs
	prompt   *protocol.Logprobs
	cached   int
	stored   int // tokens, in the prefix cache
	failure  *protocol.RequestError
	transfer []byte
	pooled   []float32
	at       float64   // of the engine's clock
	received time.Time // with stop strings
}

// pieces are the outputs of a request, those that come and those that are being handled. They are used again by other
// requests.
type pieces struct{ come, taken []piece }

var piecePool = sync.Pool{New: func() any { return new(pieces) }}

// maxPieces is how many outputs wait for a client that reads slowly, of all answers to its request together (and of each
// at least minPieces). Then its requests get no more. Rooms for more than maxKeptPieces are not kept.
const (
	maxPieces     = 1 << 10
	minPieces     = 1 << 4
	maxKeptPieces = 1 << 9
)

// maxHeld is how many bytes the answers have together that are not streamed and have not ended. Each token counts
// heldToken, each candidate in log-probabilities heldCandidate: about what JSON needs for it.
const (
	maxHeld       = 1 << 30
	heldToken     = 8
	heldCandidate = 100
)

// release gives the pieces of a sequence back. Outputs that are on their way are lost.
func (q *sequence) release() {
	q.gen.mu.Lock()
	p := q.pieces
	q.pieces = nil
	q.gen.mu.Unlock()
	if p == nil || cap(p.come)+cap(p.taken) > maxKeptPieces {
		return
	}
	for _, list := range [][]piece{p.come[:cap(p.come)], p.taken[:cap(p.taken)]} {
		for i := range list {
			list[i] = piece{ids: list[i].ids[:0]}
		}
	}
	p.come, p.taken = p.come[:0], p.taken[:0]
	piecePool.Put(p)
}

// Receive keeps an output for the HTTP request.
func (q *sequence) Receive(o *player.EngineOutput, at float64) {
	later := len(q.decoder.stops) > 0
	q.gen.server.metrics.output(q, o, at, later)
	p := piece{finish: o.Finish, logprobs: o.Logprobs, prompt: o.PromptLogprobs, failure: o.Error, at: at}
	if later {
		p.received = time.Now()
	}
	switch {
	case o.HasStopToken:
		p.stop = stopReason{kind: 2, token: o.StopToken}
	case o.StopString != "":
		p.stop = stopReason{kind: 1, text: o.StopString}
	}
	if o.Prefill != nil {
		p.cached, p.stored = o.Prefill.Cached, o.Prefill.CacheCreation
	}
	if o.KVTransfer != nil {
		p.transfer = bytes.Clone(o.KVTransfer)
	}
	if o.Pooling != nil {
		p.pooled = slices.Clone(o.Pooling.Values)
	}
	g := q.gen
	g.mu.Lock()
	if q.pieces == nil { // the client has left
		g.mu.Unlock()
		return
	}
	if last := len(q.come) - 1; !q.eager && last >= 0 && p.finish == protocol.Unfinished && p.logprobs == nil && q.come[last].logprobs == nil {
		q.come[last].ids = append(q.come[last].ids, o.Tokens...) // it is looked at in the end only
	} else if n := len(q.come); n < cap(q.come) {
		q.come = q.come[:n+1]
		p.ids = append(q.come[n].ids[:0], o.Tokens...)
		q.come[n] = p
	} else {
		p.ids = append(p.ids, o.Tokens...)
		q.come = append(q.come, p)
	}
	q.length.Store(int32(len(q.come)))
	full := !g.params.Stream && !g.hold(&p, len(o.Tokens))
	g.mu.Unlock()
	if q.eager || full || o.Finish != protocol.Unfinished {
		g.notify()
	}
}

// hold counts the bytes of a piece, and reports whether there is room for them.
func (g *generation) hold(p *piece, tokens int) bool {
	size := int64(heldToken * tokens)
	for _, table := range []*protocol.Logprobs{p.logprobs, p.prompt} {
		if table != nil {
			size += int64(heldCandidate * len(table.TokenIDs))
		}
	}
	g.held += size
	if g.server.held.Add(size) > g.server.maxHeld {
		g.full = true
	}
	return !g.full
}

// Full reports whether the client reads too slowly.
func (q *sequence) Full() bool {
	limit := max(maxPieces/len(q.gen.all), minPieces)
	if !q.eager || int(q.length.Load()) < limit {
		return false
	}
	q.gen.mu.Lock()
	defer q.gen.mu.Unlock()
	q.waiting = q.pieces != nil && len(q.come) >= limit
	return q.waiting
}

func (g *generation) notify() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// generate begins an answer to each prompt, or as many as n says. id is that of the HTTP request. They have to be ended
// by [generation.close].
func (s *Server) generate(ctx context.Context, p *params, id string, prompts [][]uint32, lora *protocol.LoRA) (*generation, *apiError) {
	total := 0
	for _, prompt := range prompts {
		if total += len(prompt); total > maxPrompts/p.answers {
			return nil, badRequest("prompt", "the prompts have more than %d tokens, which is the limit with n=%d", maxPrompts/p.answers, p.answers)
		}
	}
	common, err := p.share(ctx, s)
	if err != nil {
		return nil, err
	}
	g := &generation{server: s, id: id, noted: p.rpc || s.open.all, params: p, wake: make(chan struct{}, 1)}
	var room [1]*player.EngineRequest
	requests := room[:0]
	if g.all = g.one[:0]; len(prompts)*p.answers > 1 {
		g.all, requests = make([]*sequence, 0, len(prompts)*p.answers), make([]*player.EngineRequest, 0, len(prompts)*p.answers)
	}
	if p.rank > len(s.balance.open) {
		return nil, badRequest("", "engine-core error")
	}
	if err := s.sim.admit(cap(g.all)); err != nil {
		return nil, err
	}
	eager := p.Stream || len(p.Stop) > 0
	arrival := time.Now()
	for number, prompt := range prompts {
		for n := range p.answers {
			external := id
			if len(g.all) > 0 {
				external += "-" + strconv.Itoa(len(g.all)) // as the requests that serve makes of one before another frontend
			}
			q := &sequence{gen: g, index: len(g.all), id: internalID(external), external: external, prompt: prompt, eager: eager}
			if q.engine = p.rank - 1; q.engine < 0 {
				q.engine = s.balance.choose()
			} else {
				s.balance.take(q.engine)
			}
			q.pieces = piecePool.Get().(*pieces)
			g.all = append(g.all, q)
			q.decoder = newDecoder(s.opt.Tokenizer, p, !p.Stream)
			r := s.opt.Group.NewRequest(q.engine)
			if err = p.fill(s, &common, r, prompt); err == nil && ctx.Err() != nil {
				err = errLeft
			}
			if err != nil {
				for _, q := range g.all {
					s.balance.end(q.engine)
				}
				s.sim.left(cap(g.all), "")
				return nil, err
			}
			r.ID, r.ExternalID, r.Receiver, r.LoRA = q.id, external, q, lora
			r.PromptTokenIDs = append(r.PromptTokenIDs, prompt...)
			r.ArrivalTime = float64(arrival.UnixNano()) / 1e9
			if p.Seed != nil && n > 0 {
				r.Sampling.Seed += int64(n)
			}
			q.record = requestRecord{arrival: arrival, maxTokens: r.Sampling.MaxTokens, n: p.answers, prompt: len(prompt), pools: p.pooling != nil}
			if !chosenOf(ctx).is {
				s.choose(q, r, number, n)
			}
			requests = append(requests, r)
		}
	}
	if g.noted {
		s.open.add(g)
	}
	for i, r := range requests {
		if q := g.all[i]; q.plan != nil && q.plan.now {
			q.Receive(&player.EngineOutput{Finish: q.plan.finish}, 0)
			continue
		}
		s.opt.Group.Submit(g.all[i].engine, r)
	}
	return g, nil
}

// internalID is the id of a request for the engine.
func internalID(external string) string {
	n := rand.Uint32()
	b := append(append(make([]byte, 0, len(external)+9), external...), '-')
	return string(hex.AppendEncode(b, []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}))
}

var (
	errGone   = errors.New("the client has left")
	errEngine = errors.New("the engine has ended")
)

// next waits until something has come, and hands each piece to take with what can be shown of it.
func (g *generation) next(ctx context.Context, take func(q *sequence, p *piece, text string) error) error {
	select {
	case <-g.wake:
	default:
		select {
		case <-g.wake:
		case <-ctx.Done():
			return errGone
		case <-g.server.ended:
			return errEngine
		}
	}
	for _, q := range g.all {
		if q.ended {
			continue
		}
		g.mu.Lock()
		if g.full {
			g.mu.Unlock()
			return errHeld
		}
		q.come, q.taken = q.taken[:0], q.come
		resume := q.waiting
		q.waiting = false
		q.length.Store(0)
		g.mu.Unlock()
		if resume {
			g.server.opt.Group.Resume(q.engine)
		}
		for i := range q.taken {
			p := &q.taken[i]
			text := q.take(p)
			if err := take(q, p, text); err != nil {
				return err
			}
			if q.ended {
				break
			}
		}
	}
	return nil
}

// take counts a piece and decodes it. A stop string ends the answer: what comes after it is cut off from the piece.
func (q *sequence) take(p *piece) (text string) {
	visible := p.ids
	if q.gen.params.onlyIDs {
		visible = nil
	}
	if p.finish == protocol.FinishStop && !q.decoder.includeStop && len(visible) > 0 && q.plan == nil {
		visible = visible[:len(visible)-1] // what ended the answer is in the token ids, and not in the text
	}
	for i, id := range visible {
		if stop := q.decoder.push(id); stop != "" {
			p.ids = p.ids[:i+1]
			if p.logprobs != nil {
				p.logprobs = firstRows(p.logprobs, i+1)
			}
			if p.finish == protocol.Unfinished {
				q.gen.server.opt.Group.Abort(q.engine, q.id) // it does not know of stop strings
			}
			p.finish, p.stop = protocol.FinishStop, stopReason{kind: 1, text: stop}
			break
		}
	}
	if len(q.decoder.stops) > 0 {
		q.gen.server.metrics.tokens(q, len(p.ids), p.at, p.received, p.finish)
	}
	q.count += len(p.ids)
	q.cached, q.stored = max(q.cached, p.cached), max(q.stored, p.stored)
	if p.prompt != nil {
		q.prompts = p.prompt
	}
	if p.finish != protocol.Unfinished {
		q.ended, q.finish, q.stop, q.failure, q.transfer = true, p.finish, p.stop, p.failure, p.transfer
		q.pooled = p.pooled
		if q.reason == reasonRemote && q.transfer == nil {
			q.transfer = remoteTransfer
		}
		q.gen.server.leave(q)
	}
	if k := q.gen.params; k.keepTokens || !k.Stream && (k.ReturnTokenIDs || k.onlyIDs) {
		q.tokens = append(q.tokens, p.ids...)
	}
	if q.gen.params.Stream {
		return q.decoder.next(q.ended)
	}
	if p.logprobs != nil {
		q.table = append(q.table, p.logprobs)
	}
	return ""
}

// firstRows is the table of the first n tokens.
func firstRows(t *protocol.Logprobs, n int) *protocol.Logprobs {
	return &protocol.Logprobs{Width: t.Width, TokenIDs: t.TokenIDs[:n*t.Width], Values: t.Values[:n*t.Width], Ranks: t.Ranks[:n]}
}

// whole waits for the end of all answers.
func (g *generation) whole(ctx context.Context) *apiError {
	for g.open() {
		switch err := g.next(ctx, func(*sequence, *piece, string) error { return nil }); err {
		case nil:
		case errGone:
			return errLeft
		case errHeld:
			return errHeld
		default:
			return errInternal
		}
	}
	for _, q := range g.all {
		if q.finish == protocol.FinishError {
			return ofEngine(q.failure)
		}
	}
	return nil
}

func (g *generation) open() bool {
	return slices.ContainsFunc(g.all, func(q *sequence) bool { return !q.ended })
}

// close aborts what has not ended.
func (g *generation) close() {
	if g.noted {
		g.server.open.remove(g)
	}
	for _, q := range g.all {
		if !q.ended {
			q.ended = true
			g.server.leave(q)
			g.server.opt.Group.Abort(q.engine, q.id)
			g.server.metrics.aborted(q)
		}
		q.release()
	}
	g.mu.Lock()
	g.server.held.Add(-g.held)
	g.held = 0
	g.mu.Unlock()
}

// leave is called once for each answer, when it has ended.
func (s *Server) leave(q *sequence) {
	s.balance.end(q.engine)
	s.sim.left(1, q.id)
}

// finishReason is how an answer ended.
func (q *sequence) finishReason() string {
	if q.reason != "" && q.finish != protocol.FinishError {
		return q.reason
	}
	return finishReason(q.finish)
}

// A balance gives each request to the engine that has the fewest, as the internal load balancing of vLLM does.
type balance struct {
	mu   sync.Mutex
	open []int
}

// choose counts a request to the engine that it returns, until end.
func (b *balance) choose() int {
	if len(b.open) == 1 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	engine := slices.Index(b.open, slices.Min(b.open))
	b.open[engine]++
	return engine
}

// take counts a request to an engine that was chosen elsewhere.
func (b *balance) take(engine int) {
	if len(b.open) == 1 {
		return
	}
	b.mu.Lock()
	b.open[engine]++
	b.mu.Unlock()
}

func (b *balance) end(engine int) {
	if len(b.open) == 1 {
		return
	}
	b.mu.Lock()
	b.open[engine]--
	b.mu.Unlock()
}
