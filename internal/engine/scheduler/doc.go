// Package scheduler decides what an engine computes in each step, as vLLM's does
// (vllm/v1/core/sched/scheduler.py): which requests are in the batch, and how many tokens of
// which fit into the step.
//
// What runs is served first, in the order in which it was admitted, so decodes
// claim the step's tokens before a new prompt does; a prompt that does not fit is
// cut into chunks. A request that gets no block of the KV cache pushes the one
// that was admitted last, or the one of least priority, out of the batch; that one
// loses its blocks and is computed anew, as far as the prefix cache does not know
// it. In a step without such a preemption waiting requests are admitted, as long as
// the batch, the step, the KV cache and the adapters' slots have room.
//
//	s := scheduler.New[*answer](scheduler.Options{MaxNumSeqs: 128, MaxNumBatchedTokens: 2048, Pool: pool})
//	s.Add(request)
//	for step := s.Schedule(); len(step.Scheduled) > 0; step = s.Schedule() {
//		// compute it; a request whose Computed is the length of its Tokens says the next one
//	}
//
// It knows no wire and no time, and is not safe for concurrent use.
package scheduler
