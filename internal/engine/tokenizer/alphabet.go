package tokenizer

import "strings"

// alphabet names each byte by a character that can be seen: printable ones of Latin-1 by themselves, the others by
// characters from U+0100 on, in their order (bytes_to_unicode of GPT-2).
var alphabet = func() (names [256]rune) {
	next := rune(256)
	for b := range 256 {
		if '!' <= b && b <= '~' || 0xa1 <= b && b <= 0xac || 0xae <= b {
			names[b] = rune(b)
		} else {
			names[b], next = next, next+1
		}
	}
	return names
}()

var byteOf = func() map[rune]byte {
	bytes := map[rune]byte{}
	for b, name := range alphabet {
		bytes[name] = byte(b)
	}
	return bytes
}()

// toAlphabet names the bytes of a text.
func toAlphabet(text string) string {
	var b strings.Builder
	for i := range len(text) {
		b.WriteRune(alphabet[text[i]])
	}
	return b.String()
}

// fromAlphabet returns the bytes that a token's name stands for. A name with other characters stands for itself.
func fromAlphabet(name string) string {
	text := make([]byte, 0, len(name))
	for _, r := range name {
		b, ok := byteOf[r]
		if !ok {
			return name
		}
		text = append(text, b)
	}
	return string(text)
}
