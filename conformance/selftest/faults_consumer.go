package selftest

import (
	"github.com/vllm-vcr/conformance/conformance"
	suite "github.com/vllm-vcr/conformance/internal/check/kvconsumer"
)

// consumerFaults are put in front of the suite kv-consumer: a consumer with one defect.
func consumerFaults() (all []Fault) {
	for _, row := range []struct {
		check        conformance.Assertion
		defect, says string
		code         conformance.Code
		finds        string
	}{
		{suite.Stored, "text", "it prints a line of a log on stdout", suite.CodeProtocol, "want a line of JSON"},
		{suite.Stored, "greets", "its first line has another verb", suite.CodeProtocol, "the first line of the consumer has the verb"},
		{suite.Stored, "answers-otherwise", "its answer has another verb", suite.CodeProtocol, `answers "ask" by the verb`},
		{suite.Stored, "dies", "it ends when it is asked", suite.CodeSilent, "the consumer ended"},
		{suite.Stored, "hangs", "it answers nothing", suite.CodeSilent, "did not print a line"},
		{suite.Stored, "deaf", "it subscribes to nothing", suite.CodeUnheard, "did not subscribe"},
		{suite.Stored, "arrays", "it reads events as arrays, and drops those that are maps", suite.CodeForgotten, "three prompts were stored"},
		{suite.Stored, "rounds", "it reads hashes as numbers with 53 bits", suite.CodeStale, "three prompts were stored"},
		{suite.Removed, "never-removes", "it ignores BlockRemoved", suite.CodeStale, "blocks made way"},
		{suite.Removed, "removes-last", "it applies the removals of a batch after all else", suite.CodeForgotten, "removed and stored again"},
		{suite.Cleared, "never-clears", "it ignores AllBlocksCleared", suite.CodeStale, "the cache was reset"},
		{suite.Keys, "no-keys", "it drops events with extra keys", suite.CodeForgotten, "the same tokens"},
		{suite.Places, "one-place", "it forgets a block that one group or medium drops", suite.CodeForgotten, "a group with a sliding window dropped"},
		{suite.Digests, "numbers-only", "it drops hashes that are bytes", suite.CodeForgotten, "three prompts were stored"},
		{suite.Ranks, "one-index", "it has one index for all ranks", suite.CodeStale, "rank 1 removed"},
		{suite.Gap, "no-replay", "it goes on after a gap", suite.CodeStale, "batches 1 and 2 did not arrive"},
		{suite.Gap, "counts-twice", "it counts a batch twice that came by a replay, too", suite.CodeStale, "after the gap"},
		{suite.Late, "joins-late", "it does not ask for what was published before it came", suite.CodeForgotten, "started after batch 2"},
		{suite.Reconnect, "connects-once", "it does not connect again", suite.CodeUnheard, "did not subscribe"},
		{suite.Restart, "keeps-after-restart", "it takes batches of an engine that was started again for old ones", suite.CodeBehind, "its numbers begin at 0"},
		{suite.Lost, "keeps-what-is-lost", "it keeps blocks although batches are lost for ever", suite.CodeStale, "does not have them any more"},
	} {
		all = append(all, Fault{Name: "kv-consumer-" + row.defect, Says: row.says, suite: &suiteFault{
			suite: conformance.SuiteKVConsumer, check: row.check, code: row.code, finds: row.finds, defect: row.defect,
		}})
	}
	return all
}
