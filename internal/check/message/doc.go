// Package message reads what several suites judge of an engine's messages: the keys of its registration, the layout of its
// outputs, numbers and tensors.
package message
