// Package protocol speaks the vLLM V1 engine-core wire of every line since
// 0.25: the MessagePack messages that a frontend (HTTP, tokenizer) and an
// engine core (scheduler, GPU) exchange over ZeroMQ.
//
// # Lines are data
//
// A line, such as 0.33, is a [Profile]: the ordered fields of every struct
// that crosses the wire, its encoding (array or map), defaults, and the result
// kind of each utility method, generated from the published wheel and embedded
// from profiles/*.json. [NewCodec] compiles a profile once; the hot paths then
// index arrays and look up no names. In what lines differ beyond their
// declarations is a table of [LineRule], the only place that names lines.
//
// # Which call first
//
// An engine decodes with [Codec.DecodeRequest], [DecodeAbort] and
// [DecodeUtilityCall], and answers with a [Batch] per engine step and client,
// one [Stream] per request. A frontend encodes with [Codec.AppendRequest] and
// reads with [Codec.DecodeOutputs]. The handshake of either role is a state
// machine without sockets: [EngineHandshake] and [FrontendHandshake].
//
// # What cannot be encoded
//
// Some frames end a real frontend for good: every open request fails and only
// a restart helps. An envelope with nothing in it, an array longer than the
// frontend knows, a data-parallel wave field on a client socket, a statistics
// map without its required keys, and missing logprobs that were asked for are
// such frames. The types of this package have no way to write them: array
// lengths come from the profile, [Batch.Finish] refuses an empty envelope, wave
// messages are [CoordinatorMessage] values that no client socket takes,
// [SchedulerStats] is always written whole, and a [Stream] remembers what its
// request asked for. What a newer line adds with a default is written with that
// default; a line that adds a required field is refused by [NewCodec].
//
// Facts cite the vLLM source file at a release, for instance
// vllm/v1/engine/__init__.py at 0.33.0.
package protocol

//go:generate env VLLM_VCR_NETWORK=1 go test ../../upstream/extract -run TestProfilesOfTheIndex -update
