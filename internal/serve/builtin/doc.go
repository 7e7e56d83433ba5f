// Package builtin is an HTTP frontend of vLLM in the process of the player: `vllm-vcr serve --frontend builtin`. It
// answers as the released Rust frontend of the newest line does (status, JSON, the order of chunks, the types of
// errors), and takes several answers (n above 1, several prompts) as the Python frontend does.
//
// A request is decoded and checked ([Server.ServeHTTP]), its prompt becomes token ids, and each wanted answer becomes a
// request of the engine. The goroutine of the engine hands each output to a [sequence], which keeps it for the
// goroutine of the HTTP request. That one turns ids into text, looks for stop strings, and writes. It writes all that
// came meanwhile at once, so a slow client costs few system calls. When the client leaves, the requests of the engine
// are aborted.
package builtin
