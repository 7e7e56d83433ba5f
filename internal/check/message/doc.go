// Package message reads what several suites judge of an engine's messages: the keys of its registration, and the layout of its
// outputs.
package message
