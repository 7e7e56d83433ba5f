// Package kvconsumer holds the suite kv-consumer. A program that reads KV events, such as the index of a router, is put before ranks of
// an engine of ours: pools of KV blocks with a publisher each. After each step the program answers which blocks it believes to be
// cached, and the answer is compared with the pools.
package kvconsumer

import (
	"context"
	_ "embed"
	"errors"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
)

// Assertions of the suite.
const (
	Stored    check.Assertion = "stored"
	Removed   check.Assertion = "removed"
	Cleared   check.Assertion = "cleared"
	Keys      check.Assertion = "keys"
	Digests   check.Assertion = "digests"
	Ranks     check.Assertion = "ranks"
	Gap       check.Assertion = "gap"
	Late      check.Assertion = "late"
	Reconnect check.Assertion = "reconnect"
	Restart   check.Assertion = "restart"
	Lost      check.Assertion = "lost"
)

// Codes of what the suite reports.
const (
	CodeProtocol             = check.CodeConsumerProtocol // it does not answer as the protocol demands
	CodeSilent    check.Code = "B002"                     // it ended, or does not answer any more
	CodeUnheard   check.Code = "B003"                     // it does not subscribe to the topic
	CodeBehind    check.Code = "B004"                     // it has not applied all batches
	CodeStale     check.Code = "B005"                     // it believes in blocks that are not in the cache
	CodeForgotten check.Code = "B006"                     // it does not know of blocks that are in the cache
)

//go:embed consumer.md
var codes string

// Checks are those of the suite, in their order.
var Checks = []check.Check{
	{Name: Stored, Codes: codes, Levels: levels, Run: judged(bench{}, (*bench).stored)},
	{Name: Removed, Levels: levels, Run: judged(bench{}, (*bench).removed)},
	{Name: Cleared, Levels: levels, Run: judged(bench{}, (*bench).cleared)},
	{Name: Keys, Levels: levels, Run: judged(bench{}, (*bench).keys)},
	{Name: Digests, Levels: levels, Run: judged(bench{digests: true}, (*bench).stored)},
	{Name: Ranks, Levels: levels, Run: judged(bench{at: check.KVEndpoints{Ranks: 2}}, (*bench).bothRanks)},
	{Name: Gap, Levels: levels, Run: judged(bench{}, (*bench).gap)},
	{Name: Late, Levels: levels, Run: judged(bench{}, (*bench).late)},
	{Name: Reconnect, Levels: levels, Run: judged(bench{}, (*bench).reconnect)},
	{Name: Restart, Levels: levels, Run: judged(bench{at: check.KVEndpoints{Ranks: 2}}, (*bench).restart)},
	{Name: Lost, Levels: levels, Run: judged(bench{bufferSteps: 2}, (*bench).lost)},
}

var levels = []check.Level{check.LevelKVEvents}

// Cases lists the cases of the suite on a line.
func Cases(line compat.Line, gating bool) []check.Case {
	var cases []check.Case
	for _, k := range Checks {
		cases = append(cases, check.Case{Line: line, Suite: check.SuiteKVConsumer, Assertion: k.Name, Gating: gating})
	}
	return cases
}

// judged makes the function of a check, which has a consumer and ranks of its own.
func judged(of bench, judge func(*bench) error) func(context.Context, *check.Env, *check.Golden, check.Case) (check.Outcome, error) {
	return func(ctx context.Context, e *check.Env, _ *check.Golden, c check.Case) (f check.Outcome, err error) {
		b := of
		b.ctx, b.env, b.f = ctx, e, &f
		if err := b.open(c.Line); err != nil {
			return f, err
		}
		defer b.close()
		err = judge(&b)
		if wrong := (failed{}); errors.As(err, &wrong) {
			f.Asserted++
			f.Fail(check.Failure(wrong))
			return f, nil
		}
		return f, err
	}
}

// failed is a failure that ends a case.
type failed check.Failure

func (f failed) Error() string { return f.Message }

// wrong is a failure as an error.
func wrong(code check.Code, format string, args ...any) error {
	return failed(check.Failed(code, format, args...))
}

// steps makes the steps one after the other, until one fails.
func steps(all ...func() error) error {
	for _, step := range all {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// stored: prompts that share a beginning, whose events name a parent.
func (b *bench) stored() error {
	r := b.ranks[0]
	return steps(
		b.start,
		r.publish(prompt(2, 0)), r.publish(prompt(4, 0)), r.publish(prompt(1, 9000)),
		b.settle("three prompts were stored"),
	)
}

// removed: blocks make way for others, also for those that come back in the same batch.
func (b *bench) removed() error {
	r := b.ranks[0]
	return steps(
		b.start,
		r.publish(prompt(4, 0)), r.publish(prompt(6, 9000)),
		b.settle("blocks made way for others"),
		r.publish(prompt(4, 0), prompt(6, 9000)),
		b.settle("in one batch, blocks were removed and stored again"),
	)
}

// cleared: the cache is reset, and filled again.
func (b *bench) cleared() error {
	r := b.ranks[0]
	return steps(
		b.start,
		r.publish(prompt(4, 0)), b.settle("a prompt was stored"),
		r.reset, b.settle("the cache was reset"),
		r.publish(prompt(2, 0)), b.settle("after a reset, a prompt was stored"),
	)
}

// keys: the same tokens with an adapter, a salt and an image.
func (b *bench) keys() error {
	r, tokens := b.ranks[0], prompt(1, 0).Tokens
	with := func(extra kvcache.Extra) *kvcache.Sequence {
		s := kvcache.NewSequence(tokens)
		s.Extra = extra
		return s
	}
	return steps(
		b.start,
		r.publish(with(kvcache.Extra{})),
		r.publish(with(kvcache.Extra{LoRA: kvcache.LoRA{ID: 1, Name: "adapter", Path: "/adapter"}})),
		r.publish(with(kvcache.Extra{Salt: "salt"})),
		r.publish(with(kvcache.Extra{Features: []kvcache.Feature{{ID: "image", Offset: 3, Length: 8}}})),
		b.settle("the same tokens were stored plain, with an adapter, with a salt, and with an image"),
	)
}

// bothRanks: two ranks store the same prompt, and one of them removes it.
func (b *bench) bothRanks() error {
	return steps(
		b.start,
		b.ranks[0].publish(prompt(4, 0)), b.ranks[1].publish(prompt(4, 0)), b.ranks[1].publish(prompt(8, 9000)),
		b.settle("rank 1 removed blocks that rank 0 also has"),
		b.ranks[0].reset,
		b.settle("the cache of rank 0 was reset"),
	)
}

// gap: batches do not arrive, and the next ones show it.
func (b *bench) gap() error {
	r := b.ranks[0]
	return steps(
		b.start,
		r.publish(prompt(2, 0)), b.settle("a prompt was stored"),
		r.withhold(prompt(3, 3000)), r.withhold(prompt(4, 6000)), r.publish(prompt(2, 9000)), r.publish(prompt(1, 0)),
		b.settle("batches 1 and 2 did not arrive, and are at the replay endpoint"),
		r.publish(prompt(8, 12000)), // removes what arrived twice
		b.settle("after the gap, all blocks made way for others"),
	)
}

// late: the consumer comes when three batches have been published.
func (b *bench) late() error {
	r := b.ranks[0]
	return steps(
		r.publish(prompt(2, 0)), r.publish(prompt(6, 3000)), r.publish(prompt(1, 6000)),
		b.start,
		r.publish(prompt(1, 9000)),
		b.settle("the consumer started after batch 2"),
	)
}

// reconnect: the connection ends, and a batch is published before it is there again.
func (b *bench) reconnect() error {
	r := b.ranks[0]
	return steps(
		b.start,
		r.publish(prompt(2, 0)), b.settle("a prompt was stored"),
		func() error { return r.open(r.next) },
		r.withhold(prompt(4, 3000)), r.awaitSubscription, r.publish(prompt(4, 6000)),
		b.settle("the connection ended, and batch 1 did not arrive"),
	)
}

// restart: the engine of a rank starts again, first with all its batches arriving, then without the first one.
func (b *bench) restart() error {
	r := b.ranks[0]
	return steps(
		b.start,
		r.publish(prompt(2, 0)), r.publish(prompt(2, 3000)), r.publish(prompt(1, 6000)), b.ranks[1].publish(prompt(2, 0)),
		b.settle("both ranks stored prompts"),
		r.restart, r.awaitSubscription, r.publish(prompt(1, 9000)),
		b.settle("the engine of rank 0 was started again, and its numbers begin at 0"),
		r.publish(prompt(1, 0)), r.publish(prompt(1, 3000)), b.settle("it stored prompts again"),
		r.restart, r.withhold(prompt(3, 9000)), r.awaitSubscription, r.publish(prompt(1, 6000)),
		b.settle("the engine of rank 0 was started again, and batch 0 did not arrive"),
	)
}

// lost: batches do not arrive, and the engine does not have them any more. Blocks that may be gone must be forgotten.
func (b *bench) lost() error {
	r := b.ranks[0]
	return steps(
		b.start,
		r.publish(prompt(4, 0)), b.settle("a prompt was stored"),
		r.withhold(prompt(7, 3000)), r.withhold(prompt(2, 6000)), r.withhold(prompt(1, 9000)), r.publish(prompt(1, 12000)),
		b.settleAtMost("batches 1 and 2 did not arrive, and the engine does not have them any more"),
		r.reset, r.publish(prompt(2, 0)),
		b.settle("after batches were lost, the cache was reset and a prompt was stored"),
	)
}
