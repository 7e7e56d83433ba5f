// Package vllmrs runs the Rust frontend of a vLLM release, vllm-rs, as a child process. Package openai is the
// client of its HTTP side.
//
//	server, err := vllmrs.Start(ctx, vllmrs.Options{Binary: "…/vllm-rs", ModelDir: dir})
//	…
//	defer server.Close()
//	// let an engine core dial server.Handshake(), then:
//	err = server.Healthy(ctx)
//	completion, err := server.Complete(ctx, openai.Request{ID: "replay-7", Prompt: ids, MaxTokens: 16, Stream: true})
//
// The command line below makes it wait for one engine instead of starting its own; it is the same for every line from
// 0.25 to 0.33:
//
//	vllm-rs serve MODEL --served-model-name NAME --data-parallel-size 1 --data-parallel-size-local 0
//	  --data-parallel-address 127.0.0.1 --data-parallel-rpc-port P --host 127.0.0.1 --port H
//	  --engine-ready-timeout-secs N
//
// The frontend listens on P at once and on H only when the engine has registered. A lost engine is not noticed by
// itself: open requests then hang, and only their context ends them.
package vllmrs
