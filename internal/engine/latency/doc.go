// Package latency says how long an engine takes for the steps it makes.
//
// A scheduler composes a [Step]: which requests decode, which prompts are
// computed and how much of each. A [Model] is the time that the step occupies the
// engine, and how many tokens each decode says if that is the model's to say.
// There are two: [Knobs], which are set by a person, and [Fit],
// which is learned from recordings.
//
// All chance of a request comes from the request's own key and from how much it
// has said, not from a stream that others draw from as well. So the same request
// draws the same values whatever else is in the step, in whichever order the
// step lists it, and however often it is computed again.
package latency
