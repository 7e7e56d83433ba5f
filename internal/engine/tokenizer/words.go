package tokenizer

import (
	"context"
	"math"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// WordsEnd is the only special token of [Words]. It ends an answer.
const (
	WordsEnd     = 2
	wordsEndName = "</s>"
)

// maxWords is how many texts of tokens are kept, and maxWord how many bytes the text of a token has at most before its last character. What
// was kept first is dropped first. Both bound the memory that clients can fill.
const (
	maxWords = 1 << 16
	maxWord  = 256
)

// Words returns a tokenizer for models without one, as llm-d-inference-sim has it: a token is a word or a sign with the white space
// behind it, and its id is the FNV-1a hash of this text. So the ids of a text never change, and there is no vocabulary; the text of an id
// is known if it was encoded lately.
func Words() *Tokenizer {
	return &Tokenizer{words: &words{texts: map[uint32]string{}}, maxBytes: maxWord + utf8.UTFMax}
}

// words are the tokens that were seen.
type words struct {
	mu    sync.RWMutex
	texts map[uint32]string
	kept  []uint32 // in the order in which they came, from next on
	next  int
}

// cutWord is the first token of a text, and the text behind it.
func cutWord(text string) (token, rest string) {
	n := wordLength(text)
	for n < len(text) && n < maxWord {
		r, size := utf8.DecodeRuneInString(text[n:])
		if !unicode.IsSpace(r) {
			break
		}
		n += size
	}
	return text[:n], text[n:]
}

// wordLength is the length of the word or the sign that a text begins with, 0 for white space.
func wordLength(text string) (n int) {
	for n < len(text) && n < maxWord-utf8.UTFMax {
		r, size := utf8.DecodeRuneInString(text[n:])
		if isWord := unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' && n > 0; !isWord {
			if n == 0 && !unicode.IsSpace(r) {
				return size
			}
			return n
		}
		n += size
	}
	return n
}

func hashWord(text string) uint32 {
	h := uint32(2166136261)
	for i := range len(text) {
		h = (h ^ uint32(text[i])) * 16777619
	}
	if h == WordsEnd {
		h++
	}
	return h
}

// maxUnseen is how many words are encoded at once, with the lock and without a look at a context.
const maxUnseen = 1 << 12

func (w *words) encode(ctx context.Context, text string, maxTokens int) (ids []uint32, err error) {
	for text != "" {
		begin := text
		w.mu.RLock()
		missing, n := false, 0
		for token := ""; text != "" && n < maxUnseen; n++ {
			token, text = cutWord(text)
			id := hashWord(token)
			_, known := w.texts[id]
			missing = missing || !known
			ids = append(ids, id)
		}
		w.mu.RUnlock()
		if missing {
			w.keep(begin, ids[len(ids)-n:])
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(ids) > maxTokens {
			return nil, ErrTooLong
		}
	}
	return ids, nil
}

// keep keeps the words that a text begins with, by their ids.
func (w *words) keep(text string, ids []uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		var token string
		token, text = cutWord(text)
		if _, known := w.texts[id]; known {
			continue
		}
		w.texts[id] = strings.Clone(token)
		if len(w.kept) < maxWords {
			w.kept = append(w.kept, id)
			continue
		}
		delete(w.texts, w.kept[w.next])
		w.kept[w.next] = id
		w.next = (w.next + 1) % maxWords
	}
}

// text is that of an id; one that is not known has a name.
func (w *words) text(id uint32) (text string, special bool) {
	if id == WordsEnd {
		return wordsEndName, true
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	if text, known := w.texts[id]; known {
		return text, false
	}
	return "token_" + strconv.FormatUint(uint64(id), 10) + " ", false
}

func (w *words) decode(ids []uint32) string {
	var b strings.Builder
	for _, id := range ids {
		text, _ := w.text(id)
		b.WriteString(text)
	}
	return b.String()
}

// wordsSize is the size of the vocabulary: all hashes.
const wordsSize = math.MaxUint32
