// Package history shows how the wire of vLLM came to be what it is: several releases beside each other, and what each
// changed.
//
// [New] compares neighbours by [wirediff.Compare] and puts together what is worth a table: how many fields each struct
// has, what each method answers, which keys the handshake has. [HTML], [JSON] and [Markdown] write it. What could not be
// read of a release is part of it: a release with gaps is never one that changed nothing.
package history
