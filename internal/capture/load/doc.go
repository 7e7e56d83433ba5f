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
// load: if nothing is found, two witnesses saw the same.
//
// A [Session] makes a real engine send more of its wire than conversations do. It is a file with the options of engine and frontend
// and the requests in order. [Parse] reads one, [Session.Prepare] makes the models, adapters and folders that it names without any
// network, and [RunSession] sends the requests. A golden keeps the raw frames of both sides.
//
// A [Dir] is the folder that the containers of a capture's pod share: the load generator, the tap, and the client that fetches the
// files. Each file is written under another name first, so it is whole:
//
//	load-begun    the load generator has begun, and no other may begin here
//	load-done     it has all its answers, and its own files are whole: the tap may finish its files
//	ready         the tap's files have their final names: everything can be fetched
//	fetched       the client has everything: the pod may end
//	failed        the load has failed, for the reason in the file: there will be nothing to fetch
//
// Nothing here depends on what is behind the server. To record a golden, that is a tap: see docs/capturing.md.
package load
