// Package lazyregexp compiles regular expressions at their first use. A command uses few of those that the program has, and
// compiling all of them takes longer than the rest of its start.
package lazyregexp

import (
	"regexp"
	"sync"
)

// New returns a function that returns the compiled pattern. It panics at its first call if the pattern is wrong, so each
// pattern needs a test that uses it.
func New(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
