// Package openai is a client of the OpenAI HTTP side of a vLLM frontend: what it answers ([Response]), how streams are
// read ([Events]), and a [Client] that reads completions by token ids.
//
// # What comes back
//
// Seen from the Rust frontends of 0.25.1, 0.26.0, 0.27.1, 0.28.0, 0.29.0, 0.30.0, 0.31.0, 0.32.0 and 0.33.0 with
// "return_token_ids": true. A whole answer has all ids in choices[0].token_ids. A stream is, in this order:
//
//   - an opening event with prompt_token_ids, no text and no token ids;
//   - one event for each output of the engine, in order, with its token ids, however small its text and however fast
//     they come; an output without tokens is an event with "token_ids": [];
//   - one terminal event with finish_reason and stop_reason, and no token ids;
//   - one event without choices, with the usage;
//   - [DONE].
//
// Up to 0.31 the opening and the terminal event have no token_ids, from 0.32 an empty list. Ids are reported as the
// engine sent them: the EOS or stop id that ended a stream is among them and counted in the usage, special ids are too,
// though their text is left out, and the frontend cuts nothing at max_tokens. Up to 0.29 an id that its tokenizer does
// not know fails the request with status 500. A failure after the first event is an event with an error object.
package openai
