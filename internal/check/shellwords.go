package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kballard/go-shellquote"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// splitWords splits a command as a POSIX shell would that expands nothing.
func splitWords(command string) ([]string, error) { return shellquote.Split(command) }

// enginePlaceholders are what the command of an engine can ask for.
var enginePlaceholders = []string{"handshake", "handshake_host", "handshake_port", "input_address", "output_address", "trace", "match", "line", "tag", "index"}

// placeholder is a name in braces. What else is in braces, JSON for one, is
// left alone.
var placeholder = lazyregexp.New(`\{[A-Za-z_]+\}`)

// checkPlaceholders refuses words that ask for something else than the known names.
func checkPlaceholders(words, known []string) error {
	for _, word := range words {
		for _, found := range placeholder().FindAllString(word, -1) {
			if !slices.Contains(known, found[1:len(found)-1]) {
				return fmt.Errorf("unknown placeholder %s: want one of {%s}", found, strings.Join(known, "}, {"))
			}
		}
	}
	return nil
}

// hasPlaceholder reports whether a text has one of the placeholders.
func hasPlaceholder(text string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(text, "{"+name+"}") })
}

func (c CommandEngine) names(names ...string) bool { return hasPlaceholder(c.Template, names...) }

// fillPlaceholders replaces each placeholder once: what a value holds is no
// placeholder.
func fillPlaceholders(word string, values map[string]string) string {
	return placeholder().ReplaceAllStringFunc(word, func(found string) string {
		return values[found[1:len(found)-1]]
	})
}
