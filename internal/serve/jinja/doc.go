// Package jinja runs chat templates: the part of Jinja2 that the chat_template of models on the Hugging Face hub use, with the
// settings and functions that the library transformers gives them (trim_blocks, lstrip_blocks, tojson, raise_exception,
// strftime_now). A template with anything else is refused when it is parsed, by the name of what is not supported.
//
// There are Jinja libraries in Go. Those call methods by names that are only known when they run, and then the linker keeps every
// method of every type of the program.
package jinja
