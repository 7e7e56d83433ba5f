// Package recorder is the tap between a vLLM frontend and its engine cores: it
// forwards every message unchanged, and writes a trace of them.
//
// [Run] does all of it. [Observer] is the half that writes, without sockets: it
// takes the messages of one engine as [Event] values, and [Derive] feeds it from a
// file of raw messages instead of a wire, so that a trace can be made again.
//
// # What is observed
//
// A request begins with its ADD and ends with an output that has a finish reason;
// then its record is written, before the next event is looked at. ttft_ms is from the
// ADD to the first output with a token, itl_ms between outputs with tokens. Outputs have
// the times at which the engine made them, by the timestamps of its messages: on a busy
// machine the tap receives several messages at once. The difference between the clocks
// is that of the message that came fastest. Where the timestamps are of no use, the times
// are those at which the tap received the messages; engine_clock has the reason, and where
// both are known and differ by more than a millisecond, tap_times has the tap's
// ([trace.EngineClock]). The capture's zero is the engine's first request (or its
// first statistics, should they come before), not the start of the tap: a replay
// need not wait as long as the first client did.
//
//   - A request that its frontend ends by an ABORT, because it found a stop string or
//     its client left, is written with the tokens so far and the key
//     ended_by_frontend. One that had no token yet, and one that the engine ends with
//     the reason abort, is written only with [Options].RecordAborted.
//   - A second ADD under the id of a request in flight is refused by the engine:
//     it is counted, its refusal is passed over, and the first request goes on.
//   - An answer that cannot be read, or was too large to be looked at, costs the
//     records of the requests it names, or may name: without it tokens would be
//     missing without a sign of it. They are counted as lost.
//   - An event stamped before its predecessor counts as simultaneous with it.
//
// # What is written
//
// The meta line names the source "tap", and holds what config_hash was computed
// from: gpu, vllm_tag (or else vllm_version) and engine_config. Its own keys are
// "line", whose codec read the messages, "recorder_version", and "captured_at",
// when the recording began.
//
// Beyond the common keys a record has request_id; where they are not the default
// sampling_params, lora_name, priority and client_index; and stop_reason if it is a
// token id. Content is written on demand only: RecordTokens adds output_token_ids
// and stop reasons in words, RecordPrompts adds prompt_token_ids, cache_salt and
// the sampling parameters that are neither numbers nor truth values nor
// stop_token_ids. A frames file holds everything.
//
// # When it ends
//
// With the tap, or before it: see [Config].Until. Then the files are finished as soon
// as no request is in flight, in their order among the messages, and what is said
// after that is forwarded and not even copied.
//
// # When a file fails
//
// Forwarding never depends on recording. A file that cannot be written on, for a
// full disk, is cut behind its last whole line and left under its temporary name,
// which the error says; the other files go on. A killed process leaves the same:
// records are on their way to the operating system one by one.
package recorder
