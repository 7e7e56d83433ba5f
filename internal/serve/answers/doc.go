// Package answers has the answers that a test chooses: rules in a file, or sent to a server that runs, each of which says
// which requests it concerns and what they are answered with.
//
// A [Store] is two things. As a middleware before a frontend it finds the rule of a request, and as the source of the
// player behind that frontend it writes what the model would have written: the text with reasoning and calls of tools
// as the parsers of the frontend read them. So metrics, usage, streams and limits are those of any other answer.
package answers
