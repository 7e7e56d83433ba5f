package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
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
	texts     []string        // the bytes of an id
	isAdded   map[uint32]bool // ids of added tokens
	special   []bool          // by id, whether a frontend does not show it
	before    []uint32        // what a frontend puts around a prompt
	after     []uint32
	maxBytes  int // of a text that one token may stand for; 0: unknown
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

// ErrTooLong is the error of [Tokenizer.EncodeWithin] for a text of more tokens than it may have.
var ErrTooLong = errors.New("the text has too many tokens")

// Encode returns the ids of a text. Added tokens are found in it; none is put around it, see [Tokenizer.Template].
func (t *Tokenizer) Encode(text string) []uint32 {
	ids, _ := t.EncodeWithin(context.Background(), text, math.MaxInt)
	return ids
}

// EncodeWithin is [Tokenizer.Encode] of a text that may have at most maxTokens tokens, else its error is [ErrTooLong]: before the work, if
// [Tokenizer.MinTokens] is larger, or as soon as there are more. It looks at ctx every few milliseconds.
func (t *Tokenizer) EncodeWithin(ctx context.Context, text string, maxTokens int) ([]uint32, error) {
	if t.MinTokens(text) > maxTokens {
		return nil, ErrTooLong
	}
	if t.words != nil {
		return t.words.encode(ctx, text, maxTokens)
	}
	if text == "" {
		return nil, nil
	}
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	e := t.encoding(ctx, maxTokens)
	e.ids = make([]uint32, 0, min(len(text)/3+4, maxTokens))
	t.added.raw.split(text, func(part string, id uint32, token bool) bool {
		if token {
			return e.add(id)
		}
		return t.added.normalized.split(t.normalize.apply(part), func(part string, id uint32, token bool) bool {
			if token {
				return e.add(id)
			}
			return e.part(part)
		})
	})
	return e.ids, e.err
}

// MinTokens is a lower bound of the number of tokens of a text, by its bytes. It is found without encoding the text, and is 0 where a
// tokenizer.json leaves parts of a text out.
func (t *Tokenizer) MinTokens(text string) int {
	if t.maxBytes == 0 || len(text) < t.maxBytes || !utf8.ValidString(text) { // else a run of invalid bytes becomes one character
		return 0
	}
	return len(text) / t.maxBytes
}

// An encoding is a text that is being encoded.
type encoding struct {
	t         *Tokenizer
	ctx       context.Context
	maxTokens int
	ids       []uint32
	// part appends the ids of a text in which no added token is.
	part   func(text string) bool
	unseen int // bytes since ctx was looked at
	err    error
}

func (t *Tokenizer) encoding(ctx context.Context, maxTokens int) *encoding {
	e := &encoding{t: t, ctx: ctx, maxTokens: maxTokens}
	e.part = e.piece
	for _, s := range slices.Backward(t.split) {
		next := e.part
		e.part = func(text string) bool { return s.split(text, next) }
	}
	return e
}

// add appends an id. It reports whether there may be more.
func (e *encoding) add(id uint32) bool {
	e.ids = append(e.ids, id)
	return e.goesOn(1)
}

// piece appends the ids of a piece, which no merge crosses.
func (e *encoding) piece(text string) bool {
	if m := &e.t.model; !m.drops && len(text)/m.longest > e.maxTokens-len(e.ids) {
		e.err = ErrTooLong
		return false
	}
	if e.ids, e.err = e.t.model.encode(e.ctx, e.ids, text); e.err != nil {
		return false
	}
	return e.goesOn(len(text))
}

// goesOn reports whether there may be more ids after another n bytes.
func (e *encoding) goesOn(n int) bool {
	if e.unseen += n; e.unseen >= 1<<14 {
		e.unseen, e.err = 0, e.ctx.Err()
	}
	if e.err == nil && len(e.ids) > e.maxTokens {
		e.err = ErrTooLong
	}
	return e.err == nil
}

// EncodeOutput returns ids that decode to exactly this text, as a model's output may: nothing is normalised or put before
// it, and special tokens, which a frontend does not show, are spelt out. ok is false where the vocabulary cannot spell
// it.
func (t *Tokenizer) EncodeOutput(text string) (ids []uint32, ok bool) {
	if t.words != nil {
		ids = t.Encode(text)
		return ids, t.words.decode(ids) == text // else two words have one hash
	}
	e := t.encoding(context.Background(), math.MaxInt)
	t.added.raw.split(text, func(part string, id uint32, token bool) bool {
		switch {
		case !token:
			return e.part(part)
		case t.special[id]:
			return e.part(t.texts[id])
		}
		return e.add(id)
	})
	if t.Decode(e.ids) != text { // white space around an added token, or a split that leaves something out
		e.ids, _ = t.model.encode(e.ctx, e.ids[:0], text)
	}
	return e.ids, t.Decode(e.ids) == text
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

// Decode returns the text of ids, special tokens included. Invalid UTF-8 is replaced by U+FFFD, once for each part of
// a character; ids that are not in use have no text.
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

// Bytes returns the bytes of an id, and whether it is a special token, which frontends do not show. It may be a part of a
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

// Lossy is a text of bytes, in which invalid UTF-8 is replaced as by [Tokenizer.Decode].
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

// lossy replaces invalid UTF-8 by one U+FFFD for each maximal part of a character, as Unicode recommends. Go's own
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

// forms are those of Unicode. A run of more than 30 combining marks, which is not text, is broken up by U+034F.
var forms = map[string]func(string) string{
	"NFC": norm.NFC.String, "NFD": norm.NFD.String, "NFKC": norm.NFKC.String, "NFKD": norm.NFKD.String,
}
