// Package pyclient drives the engine core client of a vLLM release in Python as the frontend of an engine.
//
// [Sources] takes the Python files of a release out of its published wheel. [Nearest] finds an environment that has
// torch, msgspec and zmq, that of a CPU engine. [Run] puts the files before the packages of that, and starts one
// embedded driver with its interpreter. The driver constructs the release's own AsyncMPClient and SyncMPClient, which
// do the handshake, encode requests and decode outputs as the release does, and tries cases: tokens to the end, stop
// ids, several streams, aborts, log-probabilities, adapters, utility calls, the engine's death. It says what came out
// as JSON lines; what must have come out is known here:
//
//	source := player.Random{Seed: 1, Vocab: 2048}
//	results, err := pyclient.Run(ctx, pyclient.Options{
//		Python: engine.Python, Sources: tree, Model: dir, MaxModelLen: 2048, NumGPUBlocks: 100, BlockSize: 16,
//		Says: func(id string) func(int) uint32 {
//			script, _ := source.Script(&player.Request{ID: id})
//			return script.Fill
//		},
//		Engine: func(handshake string) (func(context.Context) error, error) {
//			p, err := player.New(player.Options{
//				Handshake: handshake, VLLMVersion: line, Source: source, Vocab: 2048,
//				MaxModelLen: 2048, NumGPUBlocks: 100, BlockSize: 16,
//			})
//			return p.Run, err
//		},
//	})
//
// The frontend binds the address of the handshake, and the engine dials it, once for each client.
//
// # What it comes to
//
// A [Result] says of one case that the client did what it must ([Passed]), that it did not ([Failed]), that it could
// not be tried ([Unjudged]), or that the release has no such method and need not have it ([Skipped]). The error of Run
// is what keeps the cases from being tried at all: no interpreter, an environment without torch, a module that the
// release does not have (any more), a driver that breaks or hangs. It names the place, and results that were there
// before it are returned with it. No result and no error never come together.
//
// A client that fails to read a message reads no more: the first failure is the finding, and what comes after it is
// unjudged.
//
// # What the environment decides
//
// All of package vllm is of the wheel, and nothing of it of the environment, not even of the same release: a frontend
// needs no compiled operations. Everything else is of the environment, in the versions of the release that it was made
// for.
//
// # What the driver can reach
//
// It gets nothing of its owner's environment but PATH and what says where temporary files go, and a home folder that is
// removed afterwards. It is configured to use no network and to report nothing, and runs the code of the release with
// the rights of its owner.
package pyclient
