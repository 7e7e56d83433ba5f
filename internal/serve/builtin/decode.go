package builtin

import (
	"bytes"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
)

// A decoder turns the ids of an answer into text as they come, and finds stop strings in it (vllm-rs
// decoded_text_event_stream).
type decoder struct {
	tok         *tokenizer.Tokenizer
	showSpecial bool
	stops       []string
	// includeStop leaves a stop string in the text. Otherwise as many bytes are held back as may be the beginning of
	// one.
	includeStop bool
	hold        int
	minTokens   int // that come before stop strings are looked for

	tokens  int    // so many were decoded
	pending []byte // of a character that is not whole
	text    []byte // that was decoded, but for what was dropped
	sent    int    // so much of text was taken
	// keep holds all of the text, for an answer in one piece.
	keep bool
}

func newDecoder(tok *tokenizer.Tokenizer, p *params, keep bool) decoder {
	d := decoder{
		tok: tok, stops: p.Stop, includeStop: p.IncludeStop, minTokens: int(p.MinTokens), keep: keep,
		showSpecial: p.SkipSpecial != nil && !*p.SkipSpecial,
	}
	if !d.includeStop {
		for _, s := range d.stops {
			d.hold = max(d.hold, len(s)-1)
		}
	}
	return d
}

// push decodes one id. It returns the stop string that ends the answer, or "", and then leaves text as it is to be
// shown.
func (d *decoder) push(id uint32) (stop string) {
	d.tokens++
	before := len(d.text)
	text, special := d.tok.Bytes(id)
	if special && !d.showSpecial {
		text = ""
	}
	if len(d.pending) == 0 && utf8.ValidString(text) {
		d.text = append(d.text, text...)
	} else {
		d.pending = append(d.pending, text...)
		if len(d.pending) > 0 && partial(d.pending) == 0 {
			d.text = append(d.text, tokenizer.Lossy(d.pending)...)
			d.pending = d.pending[:0]
		}
	}
	if len(d.stops) == 0 || len(d.text) == before || d.tokens <= d.minTokens {
		return ""
	}
	for _, s := range d.stops {
		from := max(before+1-len(s), 0)
		if at := bytes.Index(d.text[from:], []byte(s)); at >= 0 {
			end := from + at
			if d.includeStop {
				end += len(s)
			}
			d.text, d.pending = d.text[:end], d.pending[:0]
			d.sent = min(d.sent, end)
			return s
		}
	}
	return ""
}

// partial is how many bytes at the end of text may be the beginning of a character: all of them are held back then.
func partial(text []byte) int {
	for n := 1; n <= min(utf8.UTFMax, len(text)); n++ {
		c := text[len(text)-n]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(text[len(text)-n:]) {
				return n
			}
			break
		}
	}
	// A byte that belongs to no character is shown when something follows it.
	if r, n := utf8.DecodeLastRune(text); r == utf8.RuneError && n == 1 {
		return 1
	}
	return 0
}

// next takes what can be shown. last takes everything.
func (d *decoder) next(last bool) string {
	end := len(d.text) - d.hold
	if last {
		if len(d.pending) > 0 {
			d.text = append(d.text, tokenizer.Lossy(d.pending)...)
			d.pending = d.pending[:0]
		}
		end = len(d.text)
	}
	for end > d.sent && end < len(d.text) && !utf8.RuneStart(d.text[end]) {
		end--
	}
	if end <= d.sent {
		return ""
	}
	text := string(d.text[d.sent:end])
	d.sent = end
	if !d.keep {
		// What is kept is what a stop string may begin in.
		if from := d.sent - d.longest(); from > 4<<10 || len(d.stops) == 0 {
			from = max(from, 0)
			d.text = append(d.text[:0], d.text[from:]...)
			d.sent -= from
		}
	}
	return text
}

func (d *decoder) longest() (n int) {
	for _, s := range d.stops {
		n = max(n, len(s))
	}
	return n
}

// whole is the text of an answer that has ended.
func (d *decoder) whole() string {
	if len(d.pending) > 0 {
		d.text = append(d.text, tokenizer.Lossy(d.pending)...)
		d.pending = nil
	}
	return string(d.text)
}

// shown is how a candidate for a token is named in log-probabilities.
func (s *Server) shown(id uint32, showSpecial bool) string {
	text, special := s.opt.Tokenizer.Bytes(id)
	if special && !showSpecial {
		return ""
	}
	if utf8.ValidString(text) {
		return text
	}
	return tokenizer.Lossy([]byte(text))
}

// characters counts as OpenAI's text_offset does.
func characters(text string) int { return utf8.RuneCountInString(text) }
