package tokenizer

import (
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

// mostWords is how many texts of tokens are kept, and longestWord how many bytes the text of a token has. What was kept first is
// dropped first. Both bound the memory that clients can fill.
const (
	mostWords   = 1 << 16
	longestWord = 256
)

// Words returns a tokenizer for models without one, as llm-d-inference-sim has it: a token is a word or a sign with the white space
// behind it, and its id is the FNV-1a hash of this text. So the ids of a text never change, and there is no vocabulary; the text of an id
// is known if it was encoded lately.
func Words() *Tokenizer { return &Tokenizer{words: &words{texts: map[uint32]string{}}} }

// words are the tokens that were seen.
type words struct {
	mu    sync.RWMutex
	texts map[uint32]string
	kept  []uint32 // in the order in which they came, from next on
	next  int
}

// SplitWords is a text in the tokens of [Words].
func SplitWords(text string) (tokens []string) {
	for len(text) > 0 {
		n := wordLength(text)
		for n < len(text) && n < longestWord {
			r, size := utf8.DecodeRuneInString(text[n:])
			if !unicode.IsSpace(r) {
				break
			}
			n += size
		}
		tokens = append(tokens, text[:n])
		text = text[n:]
	}
	return tokens
}

// wordLength is the length of the word or the sign that a text begins with, 0 for white space.
func wordLength(text string) (n int) {
	for n < len(text) && n < longestWord-utf8.UTFMax {
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

func (w *words) encode(text string) []uint32 {
	tokens := SplitWords(text)
	ids := make([]uint32, len(tokens))
	missing := false
	w.mu.RLock()
	for i, token := range tokens {
		ids[i] = hashWord(token)
		_, known := w.texts[ids[i]]
		missing = missing || !known
	}
	w.mu.RUnlock()
	if !missing {
		return ids
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, id := range ids {
		if _, known := w.texts[id]; known {
			continue
		}
		w.texts[id] = strings.Clone(tokens[i])
		if len(w.kept) < mostWords {
			w.kept = append(w.kept, id)
			continue
		}
		delete(w.texts, w.kept[w.next])
		w.kept[w.next] = id
		w.next = (w.next + 1) % mostWords
	}
	return ids
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
