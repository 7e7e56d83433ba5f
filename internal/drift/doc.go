// Package drift tells whether a release of vLLM still speaks what this build knows of it.
//
// It looks at a release in layers, of which each is one [Layer] with a [Verdict] of its own. There is one today,
// "live": the frontend of the release, vllm-rs, is taken out of its wheel ([Fetch]) and put before the embedded
// player ([Live]): first the frontend suite, then the goldens replayed behind it.
//
// A release is judged as its own line of the support window. One that has none yet, which is what a nightly check
// is for, is judged as the newest line before it ([LineFor]): if it says the same, engines of that line serve it.
//
// A verdict is never [None] unless something was asserted.
package drift
