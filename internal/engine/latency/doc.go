// Package latency models how long the steps of an engine take.
//
// A scheduler composes a [Step]: which requests decode, which prompts are
// computed and how much of each. A [Model] is the time that the step occupies the
// engine, and, if it decides that, how many tokens each decode brings.
// There are two: [Knobs], which are set by a person, and [Fit],
// which is learned from recordings.
//
// All chance of a request comes from the request's own key and from how much it
// output, not from a stream that others draw from as well. So the same request
// draws the same values whatever else is in the step, in whichever order the
// step lists it, and however often it is computed again.
package latency
