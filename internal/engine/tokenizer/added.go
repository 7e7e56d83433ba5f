package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is an entry of added_tokens.
type addedToken struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// addedTokens are found in a text before it is encoded: raw ones in the text as it is, the others in what the normalizer
// makes of it.
type addedTokens struct {
	ids             map[string]uint32
	raw, normalized finder
}

// finder finds the leftmost of its tokens in a text, and of those the longest.
type finder struct {
	tokens map[string]found
	// lengths of the tokens that begin with a byte, longest first.
	lengths [256][]int
}

type found struct {
	id    uint32
	token addedToken
}

func (f *finder) add(content string, id uint32, token addedToken) {
	if f.tokens == nil {
		f.tokens = map[string]found{}
	}
	f.tokens[content] = found{id, token}
	lengths := f.lengths[content[0]]
	at := 0
	for at < len(lengths) && lengths[at] > len(content) {
		at++
	}
	if at < len(lengths) && lengths[at] == len(content) {
		return
	}
	longer := append([]int(nil), lengths[:at]...)
	f.lengths[content[0]] = append(append(longer, len(content)), lengths[at:]...)
}

// split calls part with the parts of a text in their order: tokens, by their id, and what is between them. It ends when part returns false,
// and reports whether it never did.
func (f *finder) split(text string, part func(text string, id uint32, token bool) bool) bool {
	if f.tokens == nil && text != "" {
		return part(text, 0, false)
	}
	done := 0 // so much of the text was given out
	for at := 0; at < len(text); {
		hit, stop, ok := f.at(text, at)
		if !ok {
			at++
			continue
		}
		start := at
		at = stop
		if hit.token.SingleWord && (endsWithWord(text[:start]) || startsWithWord(text[stop:])) {
			continue
		}
		if hit.token.LStrip {
			start = done + len(strings.TrimRightFunc(text[done:start], isSpace))
		}
		if hit.token.RStrip {
			stop = len(text) - len(strings.TrimLeftFunc(text[stop:], isSpace))
		}
		if done < start && !part(text[done:start], 0, false) || !part("", hit.id, true) {
			return false
		}
		done = stop
	}
	return done >= len(text) || part(text[done:], 0, false)
}

// at returns the longest token that begins at a place of a text, and where it ends.
func (f *finder) at(text string, at int) (hit found, stop int, ok bool) {
	for _, n := range f.lengths[text[at]] {
		if at+n > len(text) {
			continue
		}
		if hit, ok = f.tokens[text[at:at+n]]; ok {
			return hit, at + n, true
		}
	}
	return found{}, 0, false
}

func isSpace(r rune) bool { return unicode.Is(unicode.White_Space, r) }

func startsWithWord(text string) bool {
	r, n := utf8.DecodeRuneInString(text)
	return n > 0 && isWord(r)
}

func endsWithWord(text string) bool {
	r, n := utf8.DecodeLastRuneInString(text)
	return n > 0 && isWord(r)
}

// isWord is \w of Unicode's annex on regular expressions.
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc,
		unicode.Join_Control)
}
