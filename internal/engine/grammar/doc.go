// Package grammar writes texts that conform to what a request constrains its
// output to: a JSON schema, a regular expression, a list of choices, an EBNF or
// Lark grammar, or structural tags (vllm/sampling_params.py
// StructuredOutputsParams). It has no model: it takes the place of one whose every
// token was masked by such a grammar.
//
// [Compile] turns a [Constraint] into a [Language]. Its error is why that cannot be
// understood or that nothing conforms to it. [Language.Text] writes a text of it:
// the same seed and size give the same text, and size 0 gives about the shortest
// one.
//
// # How it works
//
// Every constraint becomes a graph of nodes, in which a cycle is a recursive
// rule. The length of the shortest text of each node is computed first. A text is
// then drawn from the root: a choice that makes it longer than the shortest is
// paid from a budget of so many bytes, and without it the shortest is
// taken, so that every walk ends. What a graph cannot express (not, oneOf, unique
// items, word boundaries) is looked at afterwards, and drawn again when it does
// not hold.
package grammar
