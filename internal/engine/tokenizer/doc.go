// Package tokenizer turns text into token ids and back by a Hugging Face tokenizer.json: byte-level BPE, the kind of
// Qwen, Llama 3, GPT-2, DeepSeek and most others, with added tokens, Unicode normalisation and the patterns that split
// a text before it is encoded.
//
// [Load] reads a file, or the folder of a model. The ids are those of the Rust library `tokenizers`: what it would do
// differently is refused when the file is read, by the name of the part that is not supported, and never encoded
// wrongly. That goes for other models (Unigram, WordPiece, BPE over characters) and for regular expressions beyond
// those of package regexp and the one lookahead that all such patterns have, \s+(?!\S).
//
// The two may know different versions of Unicode: a character that was added to it of late can be normalised differently.
//
// A Tokenizer is safe for concurrent use.
package tokenizer
