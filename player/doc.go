// Package player is a vLLM engine core that replays: a real frontend of any
// line since 0.25 connects to it as to the engine of a GPU, and gets recorded
// tokens in recorded chunks.
//
// [New] takes [Options]; [Player.Run] dials the frontend's handshake address,
// registers on every input socket and serves until its context ends or the
// frontend is gone. Inside, one goroutine owns every request: it takes what the
// sockets' readers put into an inbox, makes one engine step, and looks at the
// inbox again, so an abort is seen between two steps however much work waits.
// The step loop knows no sockets and takes its time from a [Clock].
//
// Steps are those of a real engine: a prompt that is longer than a step has tokens
// is computed in several, and requests share blocks of the prefix cache. A step without
// outputs is reported too, be it a part of a prompt or the one after the last request.
//
// What a request is answered with is a [Script], written by a [Source]: the
// record that the request's id names, the record whose prompt it repeats, seeded
// random tokens, or whatever a source of another module makes of a [Request].
//
// A player never drops a request: what it cannot decode, match or serve is
// answered with an error output.
package player
