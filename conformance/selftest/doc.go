// Package selftest makes the conformance runner prove that it can fail.
//
// A check that has never been red proves nothing, and the replay suite asks a
// player that was handed the answers. So [Run] puts a tamperer between the player
// and the runner: an engine core towards the runner, a frontend towards the
// player, that passes every message on until a [Fault] rewrites, drops, repeats,
// moves or adds one, or ends the engine. Other faults are in what is stored: a bit
// of a golden, its provenance, a token that was changed after registration.
//
// For every fault exactly the checks that it concerns must turn red, and the first
// failure of each must have the right code and name the request, the position and
// the two values. A fault that no check sees is [CodeUncaught], a check that is red
// without reason [CodeWrongCheck], a failure that says too little [CodeUnclear].
// The control, a run through the tamperer without a fault, must be green.
//
// An engine that is started by a command has a time of its own: its messages cannot be
// compared with recorded ones, and are checked by the line's profile. A fault that the
// profile tells is played once more behind a tamperer of that kind, and so is the
// control.
//
// The suites live and frontend have faults too: a player that makes up tokens, or a frontend, behind a tamperer that changes one
// field of its messages, or a proxy that changes one of its HTTP answers. The check that a fault is in front of must report its code.
// In the suites prefill and decode the player moves KV caches by agents in this process.
//
// Faults change the bytes of real messages, at the places that the line's profile
// names, so they are faults of the wire and not of this project's encoder.
package selftest
