// Package pack reads, writes, compares and prints MessagePack without ever
// trusting it.
//
// Frames come from processes of other people, from recordings and from fuzzers.
// A general decoder trusts the lengths in them: five bytes (dd ff ff ff ff) make
// it ask for 64 GiB, and a few megabytes of nested arrays overflow its stack;
// neither can be recovered from. Here every length is checked against the bytes
// that are really there before anything else happens, every walk is a loop with
// a bounded stack, and nothing is allocated from a claimed length.
//
//   - [Validate] answers whether a frame is exactly one well-formed message.
//     Call it first, and before handing bytes to any other decoder.
//   - [Cursor] reads a message by position, checking as it goes, so it needs no
//     earlier Validate. Positional reading is what vLLM's array-encoded structs
//     want: they grow new trailing fields from release to release, so a reader
//     asks for [Cursor.ArrayLen], takes the fields it knows, and keeps or skips
//     the rest.
//   - The Append functions write the smallest form of a value.
//   - [Diff] compares two messages by value and names each difference by path,
//     [Equal] only answers whether there is one.
//   - [Format] prints a message on one bounded line.
//
// Two kinds of error are distinguished: [*SyntaxError] means the bytes are not
// MessagePack (or too deep), [*ValueError] means they are, but do not hold what
// was asked for.
//
// # Choices the format leaves open
//
//   - A str may hold any bytes. The format asks for UTF-8, but request ids and
//     stop strings come from users, and a scanner that refused them would hide
//     the frame it was meant to show. Callers that need UTF-8 check it.
//   - Any header width is accepted: msgspec writes de 00 08 for a map of eight.
//   - Map keys may be any value; vLLM's logit_bias uses integers. Duplicate keys
//     are well formed; [Diff] reports a key that is duplicated on one side only.
//   - The byte c1 is never valid.
//   - Ext values are kept raw. Timestamps (ext -1) are not interpreted.
//
// The package knows MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md)
// and nothing of vLLM; it imports the standard library only.
package pack
