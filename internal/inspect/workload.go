package inspect

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/trace"
)

// Workload is what a recording asked of its engine, in the order of arrival.
type Workload struct {
	// Name is that of the recording.
	Name string
	asks []ask
	// clients is how many asked one conversation after the other, 0 if they came at times of their own.
	clients int
}

// Len is the number of requests.
func (w *Workload) Len() int { return len(w.asks) }

// several reports whether any step had more than one token of a request, as with speculative decoding or a diffusion model.
func (w *Workload) several() bool {
	return slices.ContainsFunc(w.asks, func(a ask) bool { return a.record.ITLMs != nil && len(a.record.ITLMs)+1 < a.record.OutputTokens })
}

// Turns is the number of requests that wait for the answer to an earlier one.
func (w *Workload) Turns() int {
	n := 0
	for i := range w.asks {
		if w.asks[i].parent >= 0 && !w.asks[i].next {
			n++
		}
	}
	return n
}

// An ask is one request. It comes at a time, or so long after the end of its parent.
type ask struct {
	record *trace.Record
	// parent is the index of the request whose answer it waits for, -1 for none.
	parent int
	// next is set if it does not go on from its parent, but is the same client's next conversation.
	next bool
	// at is the arrival after the first of the recording, or the time after the end of
	// the parent, ms.
	at     float64
	prompt []uint32
	answer []uint32 // what it answers, as far as a later prompt or the recording has it
	// revealed is set if a later prompt has the answer.
	revealed bool
}

// WorkloadOf takes the requests out of a recording. One whose prompt begins with the
// whole prompt of an earlier request that has ended is a turn of a conversation: it
// comes as long after that end as it was recorded, whenever that is. So does a conversation
// of one of a fixed number of clients after the one before. The others come when they came.
//
// Prompts are those that were recorded, or else made of the block hashes, equal where
// these are. What requests say then is in the prompt of the next turn, if the recorded engine had it in its prefix cache.
func WorkloadOf(t *trace.Trace) (*Workload, error) {
	order := trace.ReplaySubset(t.Records)
	if len(order) == 0 {
		return nil, fmt.Errorf("%s: no record has arrival_ms, so the times of the requests are unknown: record again with vllm-vcr record", t.Name)
	}
	w := &Workload{Name: t.Name}
	blockSize := trace.Or(t.Meta.BlockSize, defaultBlock)
	var turns Turns[int]
	for _, i := range order {
		r := &t.Records[i]
		if r.OutputTokens == 0 {
			continue // ended without an output: when is not recorded
		}
		if err := predictable(t.Name, r); err != nil {
			return nil, err
		}
		index := len(w.asks)
		a := ask{
			record: r, parent: -1, at: *r.ArrivalMs,
			prompt: promptOf(r, blockSize, uint64(index)), answer: r.OutputTokenIDs,
		}
		if a.answer == nil {
			a.answer = made(^uint64(index), r.OutputTokens)
		}
		if parent, ok := turns.Parent(r); ok {
			a.parent = parent
			a.reveal(&w.asks[parent], blockSize)
		}
		w.asks = append(w.asks, a)
		turns.Add(r, r.EndMs(*r.ArrivalMs), index)
	}
	if len(w.asks) == 0 {
		return nil, fmt.Errorf("%s: no record has an answer: nothing to predict", t.Name)
	}
	w.findClients()
	w.relate()
	return w, nil
}

// maxPrompt bounds the prompts that are made up from a number: no model has as many positions.
const maxPrompt = 1 << 24

// predictable refuses a record that does not show its steps.
func predictable(name string, r *trace.Record) error {
	place := name
	if r.Line > 0 {
		place = fmt.Sprintf("%s:%d", name, r.Line)
	}
	if r.PromptTokens == 0 {
		return fmt.Errorf("%s: prompt_tokens is 0: there is nothing to compute", place)
	}
	if outputs := len(r.ITLMs) + 1; outputs > r.OutputTokens {
		return fmt.Errorf("%s: %d tokens in %d outputs: want at least one token in each output", place, r.OutputTokens, outputs)
	} else if r.ITLMs != nil && r.OutputTokens/maxSize > outputs {
		return fmt.Errorf("%s: %d tokens in %d outputs: want at most %d tokens in each output", place, r.OutputTokens, outputs, maxSize)
	}
	if r.PromptTokens > maxPrompt {
		return fmt.Errorf("%s: prompt_tokens is %d: want at most %d", place, r.PromptTokens, maxPrompt)
	}
	return nil
}

// reveal takes the answer of the parent, if neither prompt was recorded, from this prompt: the tokens of this prompt after that of the parent. The engine found
// more of this prompt in its cache than the whole blocks of the parent's prompt, so the answer is in it.
func (a *ask) reveal(parent *ask, blockSize int) {
	whole := len(parent.record.BlockHashes) * blockSize
	if a.record.PromptTokenIDs != nil || parent.record.PromptTokenIDs != nil || parent.revealed || a.record.CachedTokens <= whole {
		return
	}
	parent.revealed = true
	copy(parent.prompt[min(whole, len(parent.prompt)):], a.prompt[min(whole, len(a.prompt)):])
	parent.answer = slices.Clone(parent.answer)
	copy(parent.answer, a.prompt[min(len(parent.prompt), len(a.prompt)):])
}

// relate makes times relative: to the end of the parent, or the first arrival.
func (w *Workload) relate() {
	zero := w.asks[0].at
	for i := range w.asks {
		a := &w.asks[i]
		if a.parent >= 0 {
			parent := w.asks[a.parent].record
			a.at -= parent.EndMs(*parent.ArrivalMs)
		} else {
			a.at -= zero
		}
	}
}

// promptOf is the prompt of a record: its ids, or ids that are equal where hashes are.
func promptOf(r *trace.Record, blockSize int, index uint64) []uint32 {
	if r.PromptTokenIDs != nil {
		return r.PromptTokenIDs
	}
	var prompt []uint32
	for _, hash := range r.BlockHashes {
		prompt = append(prompt, made(hash, blockSize)...)
	}
	if len(prompt) < r.PromptTokens {
		prompt = append(prompt, made(index, r.PromptTokens-len(prompt))...)
	}
	return prompt[:r.PromptTokens]
}

// made are n ids that depend on the source and the position.
func made(source uint64, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		x := source*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9
		ids[i] = uint32(x ^ x>>33)
	}
	return ids
}

// maxIdle is how long clients may have been idle before a conversation, as a part of its time, so that they count as clients that ask one
// after the other.
const maxIdle = 0.05

// A conversation is a request and the turns that go on from it.
type conversation struct {
	first, last int     // asks: the one it begins with, and the one that ends last
	begin, end  float64 // ms
}

// conversations lists them by their beginning.
func (w *Workload) conversations() []conversation {
	var all []conversation
	of := make([]int, len(w.asks))
	for i := range w.asks {
		a := &w.asks[i]
		end := a.record.EndMs(*a.record.ArrivalMs)
		if a.parent < 0 {
			of[i] = len(all)
			all = append(all, conversation{i, i, a.at, end})
			continue
		}
		of[i] = of[a.parent]
		if c := &all[of[i]]; end > c.end {
			c.last, c.end = i, end
		}
	}
	return all
}

// maxOpen is how many conversations there were at a time.
func maxOpen(all []conversation) int {
	ends := make([]float64, len(all))
	for i := range all {
		ends[i] = all[i].end
	}
	slices.Sort(ends)
	peak, ended := 0, 0
	for i := range all {
		for ended < len(ends) && ends[ended] <= all[i].begin {
			ended++
		}
		peak = max(peak, i+1-ended)
	}
	return peak
}

// findClients reports whether the load had a fixed number of clients, each of which began its next
// conversation when it had ended one. That is so if every conversation beyond as many as there ever were
// at a time began so soon after another had ended that hardly any client was idle. Then it comes so long
// after that end, whenever that is.
func (w *Workload) findClients() {
	all := w.conversations()
	clients := maxOpen(all)
	if 2*clients > len(all) { // too few have another before them
		return
	}
	before := make([]int, len(all)) // what the same client had before
	idle, busy := 0.0, 0.0
	var free []int // conversations that ended, whose client has no other, the first to end first
	open := []int{}
	for i := range all {
		open = slices.DeleteFunc(open, func(j int) bool {
			ended := all[j].end <= all[i].begin
			if ended {
				free = append(free, j)
			}
			return ended
		})
		slices.SortFunc(free, func(x, y int) int { return cmp.Compare(all[x].end, all[y].end) })
		open = append(open, i)
		if before[i] = -1; i < clients {
			continue
		}
		// No more than so many were ever open, so there is one, unless conversations took no time at all: those show no clients.
		if len(free) == 0 {
			return
		}
		before[i], free = free[0], free[1:]
		idle += all[i].begin - all[before[i]].end
		busy += all[i].end - all[i].begin
	}
	if idle > maxIdle*busy {
		return
	}
	w.clients = clients
	for i := clients; i < len(all); i++ {
		a := &w.asks[all[i].first]
		a.parent, a.next = all[before[i]].last, true
	}
}
