// Package kvconsumer holds the suite kv-consumer. A program that reads KV events, such as the index of a router, is put before ranks of
// an engine of ours: pools of KV blocks with a publisher each. After each step the program answers which blocks it believes to be
// cached, and the answer is compared with the pools.
package kvconsumer

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
)

// Assertions of the suite.
const (
	Stored    check.Assertion = "stored"
	Removed   check.Assertion = "removed"
	Cleared   check.Assertion = "cleared"
	Keys      check.Assertion = "keys"
	Places    check.Assertion = "places"
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

// casesText has the steps of each case.
//
//go:embed cases.txt
var casesText string

// Checks are those of the suite, in their order.
var Checks = []check.Check{
	{Name: Stored, Codes: codes, Levels: levels, Run: judged(bench{}, "stored")},
	{Name: Removed, Levels: levels, Run: judged(bench{}, "removed")},
	{Name: Cleared, Levels: levels, Run: judged(bench{}, "cleared")},
	{Name: Keys, Levels: levels, Run: judged(bench{}, "keys")},
	{Name: Places, Levels: levels, Run: judged(bench{}, "places")},
	{Name: Digests, Levels: levels, Run: judged(bench{digests: true}, "stored")},
	{Name: Ranks, Levels: levels, Run: judged(bench{at: check.KVEndpoints{Ranks: 2}}, "ranks")},
	{Name: Gap, Levels: levels, Run: judged(bench{}, "gap")},
	{Name: Late, Levels: levels, Run: judged(bench{}, "late")},
	{Name: Reconnect, Levels: levels, Run: judged(bench{}, "reconnect")},
	{Name: Restart, Levels: levels, Run: judged(bench{at: check.KVEndpoints{Ranks: 2}}, "restart")},
	{Name: Lost, Levels: levels, Run: judged(bench{bufferSteps: 2}, "lost")},
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

// judged makes the function of a check, which has a consumer and ranks of its own, and the steps of a case of cases.txt.
func judged(of bench, steps string) func(context.Context, *check.Env, *check.Golden, check.Case) (check.Outcome, error) {
	return func(ctx context.Context, e *check.Env, _ *check.Golden, c check.Case) (f check.Outcome, err error) {
		b := of
		b.ctx, b.env, b.f = ctx, e, &f
		if err := b.open(c.Line); err != nil {
			return f, err
		}
		defer b.close()
		_, text, known := strings.Cut(casesText, "\n== "+steps+": ")
		if !known {
			return f, fmt.Errorf("cases.txt has no case %s", steps)
		}
		text, _, _ = strings.Cut(text, "\n== ")
		for i, step := range strings.Split(strings.TrimSpace(text), "\n") {
			if i > 0 && err == nil { // the first line is what the case is about
				err = b.step(step)
			}
		}
		err = f.End(err)
		return f, err
	}
}

// step makes a step of cases.txt.
func (b *bench) step(text string) error {
	verb, rest, _ := strings.Cut(text, " ")
	switch verb {
	case "start":
		return b.start()
	case "settle", "settle-at-most":
		return b.compare(rest, verb == "settle")
	}
	number, err := strconv.Atoi(verb)
	if err != nil || number >= len(b.ranks) {
		return fmt.Errorf("cases.txt: no rank or verb %q: %s", verb, text)
	}
	r := b.ranks[number]
	verb, rest, _ = strings.Cut(rest, " ")
	switch verb {
	case "publish":
		return r.compute(rest, r.pub.Publish)
	case "withhold":
		return r.compute(rest, r.pub.Withhold)
	case "copy", "drop":
		return r.elsewhere(rest, verb == "copy")
	case "reset":
		return r.reset()
	case "reconnect":
		return r.open(r.next)
	case "restart":
		return r.restart()
	case "await":
		return r.awaitSubscription()
	}
	return fmt.Errorf("cases.txt: no verb %q: %s", verb, text)
}
