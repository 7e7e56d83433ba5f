// Package jinja runs chat templates: the part of Jinja2 that the chat_template of models on the Hugging Face hub use, with the
// settings and functions that the library transformers gives them (trim_blocks, lstrip_blocks, tojson, raise_exception,
// strftime_now). A template with anything else is refused when it is parsed, by the name of what is not supported.
//
// Templates are foreign code: what one may cost is bounded, see [Template.Run].
//
// The Jinja libraries in Go sort the keys of tojson and do not parse macros with defaults, so that prompts differ from vLLM's.
package jinja
