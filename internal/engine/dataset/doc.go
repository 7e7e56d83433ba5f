// Package dataset answers requests with the completions of a dataset: rows of a prompt and a model's answer, in
// JSON Lines, JSON, CSV, Parquet or SQLite. A Hugging Face tokenizer.json turns them into tokens, so that a real
// frontend before the player shows the completion's text, byte for byte.
//
// [Load] reads a dataset, and [Set.Source] makes the source for a player.
//
// # Rows
//
// A row of JSON Lines, JSON, CSV and Parquet is an object. Its prompt is the first text among the keys prompt,
// instruction, question, query, input_text and context, to which a text under input or inputs is added on a line of its
// own; its completion is the first text among output, response, completion, answer, target and label. A row of messages,
// or of conversations as ShareGPT writes them, has a pair for each answer of the assistant. What has no prompt or no
// completion is counted in [Set.Skipped].
//
// SQLite holds a table llmd with the SHA-256 of the ids of a prompt, each four bytes, the lowest first, and the ids of
// the answer: (id INTEGER, prompt_hash BLOB, gen_tokens JSON, n_gen_tokens INTEGER), gen_tokens being
// {"strings": […], "numbers": […]}. It needs no tokenizer. Parquet compressed by LZ4 is refused.
//
// # Matching
//
// A request gets the row, in this order,
//
//   - whose prompt has the hash of its ids (SQLite),
//   - whose prompt is its text, the special tokens around it left out,
//   - whose prompt is its last message of a chat. Messages are the text between added tokens, with or without a first
//     line that names the role: so ChatML, Llama 3, DeepSeek and Mistral write a conversation. Where several rows end in
//     the same message, that whose earlier messages are all in the request goes first,
//   - whose prompt begins with the same tokens, if the options have it.
//
// A row answers one request before it answers another; when all that match have, they answer again.
//
// The answer is the completion and the end of sequence. A request that ignores the end of sequence, or asks for more
// tokens than the completion has, gets the completion again from its beginning.
package dataset
