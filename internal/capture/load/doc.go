// Package load makes the traffic of which goldens are recorded.
//
// A [Workload] is what one client after another asks of an OpenAI-compatible server: [Run] plays it, and fails when the
// server leaves anything unanswered that it should have answered. What is asked depends on the seed alone: each session
// draws from a generator of its own, so that how sessions interleave changes nothing. Only a conversation's own earlier
// answers enter its prompts. A [Shape] says how much of a workload is asked, and when.
//
//	report, err := load.Run(ctx, load.Config{
//		URL: "http://127.0.0.1:8000", Model: "tiny", Workload: load.Multiturn, Seed: 7,
//	})
//
// [Config].Each is given a [Record] of each request. [Compare] holds these against what a tap has recorded of the same
// load: who finds nothing has two witnesses that saw the same.
//
// Nothing here knows what stands behind the server. To record a golden, that is a tap: see docs/capturing.md.
package load
