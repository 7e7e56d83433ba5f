// Package extract reads the wire profile of a vLLM release from its Python sources: a wheel of the package index, of
// which a few members are downloaded, a wheel on disk, or a folder. It runs none of their code and needs no Python: the
// sources are parsed by package pyast.
//
//	release, err := extract.Open(ctx, index, sources.Request{Name: "0.33.0"})
//	profile, gaps, err := extract.Extract(ctx, parser, release)
//
// The program vllm-vcr-python is made of it, see package sources.
//
// # What is read
//
// The roots are the messages: EngineCoreRequest, EngineCoreOutputs, EngineCoreReadyResponse, the handshake, the batch
// of KV events, and what the two sides decode their frames to. From these every type that a field names is followed,
// through imports and re-exports, to its declaration: a struct that moves to another module is found there, and one
// that is new is taken in without a list. Everything that vllm/v1/engine/__init__.py declares is of the
// wire too, as is what the parameters of utility methods are of.
//
//   - Structs: msgspec.Struct, dataclasses (those of pydantic, and vLLM's @config too) and NamedTuple, with the
//     fields in wire order, inherited ones included. A struct that another is derived from is taken too; of an
//     abstract class, those of its module that are derived from it.
//   - Enums, with auto() counted.
//   - Constants: call ids, extension types, media of KV events. A type alias that a field names is a constant, whose
//     value is the type that it is a name for: PauseMode is Literal['abort', 'wait', 'keep'].
//   - Utilities: the methods that vllm/v1/engine/core_client.py calls, with the engine's signature.
//   - Messages without a struct: HELLO and READY, INIT.parallel_config, UTILITY, START_DP_WAVE, the frames of KV
//     events and of their replay, and what the coordinator of data-parallel engines sends and takes.
//   - Metrics of the Python server, from the files that declare them: names, kinds, labels, buckets. They are not messages.
//
// Types and defaults have one spelling, so that another way of writing the same is no change: Optional["List[X]"] is
// list[X] | None, and a default that names a constant or a member of an enum is its value. A default that is known only
// when it runs is its source; one that a factory makes anew is empty.
//
// # Where following stops
//
// At names that are not vLLM's, such as torch.Tensor: how they are written is a matter of the encoder, not of a
// declaration. At UtilityResult, which a hook of the encoder writes. At classes without a declared field that only
// derive from dict or list: their type arguments are followed. Configuration is not reached by any message, but for
// KVEventsConfig.
//
// # What cannot be read
//
// Whatever of the wire is not plainly declared is a [sources.Gap] with its place and its reason: a root or a base class
// that is not to be found, a class under a condition, one that a call makes, a field that a loop adds, a keyword of a
// header that a profile cannot express, syntax that the parser does not know; what a module that was read binds anew,
// deletes or changes after its declaration, whichever module that is. What nothing refers to, and that is not there, is
// no gap: an older release has less.
//
// Out of reach of this package, because no declaration has it: what the Rust frontend sends and expects other than
// the Python one, when a field is set, the SCALE_ELASTIC_EP notice of elastic expert parallelism, the tensors
// that go by shared memory, and the forms that hooks of the encoder give to tensors and multimodal items.
package extract
