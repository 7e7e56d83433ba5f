package action

import (
	"errors"
	"fmt"
	"strings"
)

// Split takes a text apart into words as a shell does, and does nothing else that a shell does: what a shell would
// replace or act on outside single quotes is refused, as its author expects that and would get the characters.
func Split(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord := false
	quote := rune(0)
	runes := []rune(text)
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		switch {
		case quote == '\'' && r != '\'', quote == '"' && !strings.ContainsRune("\"\\$`", r):
			word.WriteRune(r)
		case r == quote:
			quote = 0
		case r == '\\':
			if i++; i == len(runes) {
				return nil, errors.New("it ends in a backslash")
			}
			if quote != 0 && !strings.ContainsRune("\"\\$`", runes[i]) {
				word.WriteRune('\\')
			}
			word.WriteRune(runes[i])
			inWord = true
		case strings.ContainsRune("$`", r), quote == 0 && strings.ContainsRune("|&;<>()", r):
			return nil, fmt.Errorf("%q would mean something to a shell, and there is none: put it into single quotes", r)
		case r == '\'', r == '"':
			quote, inWord = r, true
		case strings.ContainsRune(" \t\r\n", r):
			if inWord {
				words, inWord = append(words, word.String()), false
				word.Reset()
			}
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	switch {
	case quote != 0:
		return nil, fmt.Errorf("the quote %c is not closed", quote)
	case inWord:
		words = append(words, word.String())
	}
	return words, nil
}
