package tokenizer

// Package regexp takes a microsecond and more for each piece of a text. The patterns of most models differ in little, and most texts
// are ASCII. So the pieces of such texts are found here, and the regular expression is left what is next to other characters.

// A scanner finds the pieces of a pattern of the family of GPT-2 in ASCII.
type scanner struct {
	// digits is how many make a piece at most; 0 is any number, which may have a space before it.
	digits int
	// later is true of the patterns since GPT-4: contractions may be in upper case, any character but a digit and the end of a line may
	// stand before letters, and the ends of lines make pieces of their own.
	later bool
}

// scanners are those of the patterns of released models.
var scanners = map[string]*scanner{
	gpt2Pattern: {},
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: {3, true}, // Llama 3
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:      {1, true}, // Qwen
}

type class uint8

const (
	other   class = iota // punctuation and control characters
	letter               // \p{L}
	digit                // \p{N}
	blank                // \s, but for the next
	lineEnd              // \r and \n
	foreign              // not ASCII
	noClass              // the end of the text
)

var classes = func() (all [256]class) {
	for c := range all {
		switch {
		case c >= 0x80:
			all[c] = foreign
		case c|0x20 >= 'a' && c|0x20 <= 'z':
			all[c] = letter
		case c >= '0' && c <= '9':
			all[c] = digit
		case c == '\r' || c == '\n':
			all[c] = lineEnd
		case c == ' ' || c >= '\t' && c <= '\r':
			all[c] = blank
		}
	}
	return all
}()

func classAt(text string, at int) class {
	if at >= len(text) {
		return noClass
	}
	return classes[text[at]]
}

// run is where characters of one class that begin at a place end.
func run(text string, at int, c class) int {
	for classAt(text, at) == c {
		at++
	}
	return at
}

// find returns the length of the piece that text begins with, or 0 where a character that is not ASCII may matter.
func (s *scanner) find(text string) (n int) {
	if n = s.contraction(text); n > 0 {
		return n
	}
	first := classAt(text, 0)
	lead := 0 // characters before letters
	if text[0] == ' ' || s.later && (first == other || first == blank) {
		lead = 1
	}
	if first == letter || lead == 1 && classAt(text, 1) == letter {
		return s.ends(text, run(text, lead, letter))
	}
	if lead == 1 && classAt(text, 1) == foreign {
		return 0
	}
	space := 0 // before digits or punctuation
	if text[0] == ' ' {
		space = 1
	}
	switch c := classAt(text, space); {
	case first == foreign:
		return 0
	case first == digit && s.digits > 0:
		if n = run(text[:min(len(text), s.digits)], 0, digit); n == s.digits {
			return n
		}
		return s.ends(text, n)
	case c == digit && s.digits == 0:
		return s.ends(text, run(text, space, digit))
	case c == other:
		n = s.ends(text, run(text, space, other))
		if s.later && n > 0 {
			n = run(text, n, lineEnd)
		}
		return n
	}
	return s.whiteSpace(text)
}

// ends is n, unless the character there may belong to the piece.
func (s *scanner) ends(text string, n int) int {
	if classAt(text, n) == foreign {
		return 0
	}
	return n
}

// contraction is the length of 's, 't, 're, 've, 'm, 'll or 'd.
func (s *scanner) contraction(text string) int {
	if len(text) < 2 || text[0] != '\'' {
		return 0
	}
	low := func(at int) byte {
		switch {
		case at >= len(text):
			return 0
		case s.later && classes[text[at]] == letter:
			return text[at] | 0x20
		}
		return text[at]
	}
	switch a, b := low(1), low(2); {
	case a == 's' || a == 't' || a == 'm' || a == 'd':
		return 2
	case a == 'r' && b == 'e' || a == 'v' && b == 'e' || a == 'l' && b == 'l':
		return 3
	}
	return 0
}

// whiteSpace is the length of a piece of white space: up to the last end of a line in it, if that counts, else without its last
// character, which goes with what follows.
func (s *scanner) whiteSpace(text string) int {
	n, lines := 0, 0
	for c := classAt(text, n); c == blank || c == lineEnd; c = classAt(text, n) {
		if n++; c == lineEnd {
			lines = n
		}
	}
	switch {
	case classAt(text, n) == foreign:
		return 0
	case s.later && lines > 0:
		return lines
	case n == len(text) || n == 1:
		return n
	}
	return n - 1
}
