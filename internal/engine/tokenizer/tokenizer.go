package tokenizer

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxFile bounds a tokenizer.json. The largest of released models have 35 MB.
const maxFile = 256 << 20

// Tokenizer encodes and decodes by one tokenizer.json, or by [Words].
type Tokenizer struct {
	words     *words // nil of a tokenizer.json
	normalize normalizer
	split     []splitter
	model     bpe
	added     addedTokens
	texts     []string        // what an id stands for, as bytes
	isAdded   map[uint32]bool // ids of added tokens
	special   []bool          // by id, whether a frontend does not show it
	before    []uint32        // what a frontend puts around a prompt
	after     []uint32
}

// Load reads a tokenizer.json, or that of the folder of a model. An error names the file.
func Load(path string) (*Tokenizer, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "tokenizer.json")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open tokenizer: %w", err)
	}
	defer file.Close()
	raw, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read tokenizer: %w", err)
	}
	if len(raw) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d MB, which no tokenizer.json is", path, maxFile>>20)
	}
	t, err := Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Encode returns the ids of a text. Added tokens are found in it; none is put around it, see [Tokenizer.Template].
func (t *Tokenizer) Encode(text string) []uint32 {
	if t.words != nil {
		return t.words.encode(text)
	}
	if text == "" {
		return nil
	}
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	ids := make([]uint32, 0, len(text)/3+4)
	t.added.raw.split(text, func(part string, id uint32, token bool) {
		if token {
			ids = append(ids, id)
			return
		}
		t.added.normalized.split(t.normalize.apply(part), func(part string, id uint32, token bool) {
			if token {
				ids = append(ids, id)
				return
			}
			ids = t.encodePart(ids, part)
		})
	})
	return ids
}

// EncodeOutput returns ids that decode to exactly this text, as a model may say it: nothing is normalised or put before
// it, and special tokens, which a frontend does not show, are spelt out. ok is false where the vocabulary cannot spell
// it.
func (t *Tokenizer) EncodeOutput(text string) (ids []uint32, ok bool) {
	if t.words != nil {
		ids = t.words.encode(text)
		return ids, t.words.decode(ids) == text // else two words have one hash
	}
	t.added.raw.split(text, func(part string, id uint32, token bool) {
		switch {
		case !token:
			ids = t.encodePart(ids, part)
		case t.special[id]:
			ids = t.encodePart(ids, t.texts[id])
		default:
			ids = append(ids, id)
		}
	})
	if t.Decode(ids) != text { // white space around an added token, or a split that leaves something out
		ids = t.model.encode(ids[:0], text)
	}
	return ids, t.Decode(ids) == text
}

// Normalize returns what a text is before it is split. Decode of Encode of a text is the same for both.
func (t *Tokenizer) Normalize(text string) string {
	if t.words != nil {
		return text
	}
	return t.normalize.apply(strings.ToValidUTF8(text, string(utf8.RuneError)))
}

// Added reports whether an id is that of an added token, as those that a chat template puts around messages.
func (t *Tokenizer) Added(id uint32) bool { return t.isAdded[id] }

// encodePart appends the ids of a text in which no added token is.
func (t *Tokenizer) encodePart(ids []uint32, part string) []uint32 {
	pieces := []string{part}
	for _, s := range t.split {
		next := make([]string, 0, len(part)/4+4)
		for _, piece := range pieces {
			next = s.split(next, piece)
		}
		pieces = next
	}
	for _, piece := range pieces {
		ids = t.model.encode(ids, piece)
	}
	return ids
}

// Decode returns the text of ids, special tokens included. What is no UTF-8 is replaced by U+FFFD, once for each part of
// a character; ids that are not in use stand for nothing.
func (t *Tokenizer) Decode(ids []uint32) string {
	if t.words != nil {
		return t.words.decode(ids)
	}
	var text []byte
	for _, id := range ids {
		if int(id) < len(t.texts) {
			text = append(text, t.texts[id]...)
		}
	}
	return lossy(text)
}

// Bytes returns what an id stands for, and whether it is a special token, which frontends do not show. It may be a part of a
// character.
func (t *Tokenizer) Bytes(id uint32) (text string, special bool) {
	if t.words != nil {
		return t.words.text(id)
	}
	if int(id) >= len(t.texts) {
		return "", false
	}
	return t.texts[id], t.special[id]
}

// Name returns the token of an id as the file has it, see [Tokenizer.TokenID]; "" for one that is not in use.
func (t *Tokenizer) Name(id uint32) string {
	if t.words != nil {
		text, _ := t.words.text(id)
		return text
	}
	if int(id) >= len(t.texts) || t.isAdded[id] {
		text, _ := t.Bytes(id)
		return text
	}
	return toAlphabet(t.texts[id])
}

// Lossy is a text of bytes, in which what is no UTF-8 is replaced as by [Tokenizer.Decode].
func Lossy(text []byte) string { return lossy(text) }

// VocabSize is one more than the largest id in use, the added tokens included.
func (t *Tokenizer) VocabSize() int {
	if t.words != nil {
		return wordsSize
	}
	return len(t.texts)
}

// TokenID returns the id of a token by its name in the file: an added token's text, or the model's name of a token, in
// which a space is "Ġ".
func (t *Tokenizer) TokenID(token string) (id uint32, ok bool) {
	if t.words != nil {
		return WordsEnd, token == wordsEndName
	}
	if id, ok = t.added.ids[token]; ok {
		return id, true
	}
	id, ok = t.model.vocab[token]
	return id, ok
}

// Template returns the special tokens that a frontend puts before and after the ids of a prompt of one text.
func (t *Tokenizer) Template() (before, after []uint32) { return t.before, t.after }

// IsWords reports whether this is the tokenizer of [Words].
func (t *Tokenizer) IsWords() bool { return t.words != nil }

// lossy replaces what is no UTF-8 by one U+FFFD for each maximal part of a character, as Unicode recommends. Go's own
// functions replace each byte, or a whole run at once.
func lossy(text []byte) string {
	if utf8.Valid(text) {
		return string(text)
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		if r == utf8.RuneError && n == 1 {
			n = brokenLength(text)
			b.WriteRune(utf8.RuneError)
		} else {
			b.Write(text[:n])
		}
		text = text[n:]
	}
	return b.String()
}

// brokenLength is the length of the longest beginning of a character that text, which begins with none, has: at least 1.
func brokenLength(text []byte) int {
	for n := min(3, len(text)); n > 1; n-- {
		if beginsCharacter(text[:n]) {
			return n
		}
	}
	return 1
}

// beginsCharacter reports whether some bytes after part make a character of it: the lowest or the highest that may follow
// do then.
func beginsCharacter(part []byte) bool {
	for _, tail := range []string{"\x80\x80", "\xbf\xbf"} {
		whole := string(part) + tail
		if r, n := utf8.DecodeRuneInString(whole); r != utf8.RuneError && n > len(part) {
			return true
		}
	}
	return false
}

// normalizer is a list of changes that a text goes through before it is split.
type normalizer []func(string) string

func (n normalizer) apply(text string) string {
	for _, change := range n {
		text = change(text)
	}
	return text
}

// forms are those of Unicode. A run of more than 30 combining marks, which is no text, is broken up by U+034F.
var forms = map[string]func(string) string{
	"NFC": norm.NFC.String, "NFD": norm.NFD.String, "NFKC": norm.NFKC.String, "NFKD": norm.NFKD.String,
}
