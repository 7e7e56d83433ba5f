// Package coreclient is the frontend's side of the engine-core boundary: it
// listens as a vLLM frontend does, takes one engine through the start-up
// handshake, sends requests and reads answers as strictly as the line's real
// frontend.
//
// Call [Listen], give [Frontend.Handshake] to an engine, then [Frontend.Accept],
// and use [Frontend.Submit] and [Frontend.Next]. It is made for one goroutine
// that keeps many requests in flight; only Submit, Abort and Call may be used
// next to Next.
package coreclient
