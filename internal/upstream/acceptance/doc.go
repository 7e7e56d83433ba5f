// Package acceptance measures which messages of an engine a released frontend takes: whether a message is acceptable is
// decided by the frontend, not by this project.
//
// [New] walks what a line's profile declares of HELLO, the registration, READY, EngineCoreOutputs and the results of
// calls, and makes a [Probe] for each variant of each place: a message that is right but for that place. [Rust] sends
// each to the line's vllm-rs and sees what becomes of a request, and of the frontend. A [Table] keeps that; those of
// all lines are in the folder tables. [StartPython] has the same done to the Python client of a release. [NewRequests]
// and [Engine] are the other direction: what the engine core makes of the messages of a frontend, which the player is
// compared with. Nothing is listed by hand but what a value has to say to answer the request, so a new line's fields
// are measured too.
package acceptance
