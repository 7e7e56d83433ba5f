package builtin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/player"
)

// A reasoningFormat is how models of a kind mark their reasoning, and what of the white space around it vllm-rs 0.33
// leaves out.
type reasoningFormat struct {
	begin, end string
	first      bool // a line end behind the first mark
	last       bool // a line end before the last mark
	behind     int  // so many line ends behind the last mark
}

// reasoningFormats are the values of --reasoning-parser, with the names of vLLM.
var reasoningFormats = map[string]reasoningFormat{
	"deepseek_r1": {"<think>", "</think>", true, false, 0},
	"deepseek_v3": {"<think>", "</think>", false, false, 0},
	"deepseek_v4": {"<think>", "</think>", false, false, 0},
	"glm45":       {"<think>", "</think>", false, false, 1},
	"glm47":       {"<think>", "</think>", false, false, 0},
	"kimi_k2":     {"<think>", "</think>", false, false, 0},
	"minimax_m2":  {"<think>", "</think>", true, true, 2},
	"nemotron_v3": {"<think>", "</think>", true, true, 1},
	"qwen3":       {"<think>", "</think>", true, true, 2},
	"step3":       {"<think>", "</think>", true, false, 0},
	"step3p5":     {"<think>", "</think>", true, true, 1},
}

// findReasoning finds the format of a parser; nil is none.
func findReasoning(name string) (*reasoningFormat, error) {
	if name == "" || name == "none" || name == "auto" {
		return nil, nil
	}
	if f, ok := reasoningFormats[name]; ok {
		return &f, nil
	}
	return nil, fmt.Errorf("--reasoning-parser %s: the builtin frontend knows %s and none", name, strings.Join(slices.Sorted(maps.Keys(reasoningFormats)), ", "))
}

// stage is where an answer to a prompt begins: the prompt may have begun the reasoning, or ended it.
func (f *reasoningFormat) stage(prompt string) uint8 {
	switch begin, end := strings.LastIndex(prompt, f.begin), strings.LastIndex(prompt, f.end); {
	case begin > end:
		return inReasoning
	case end > begin:
		return afterReasoning
	}
	return beforeReasoning
}

// An answerParser separates reasoning, calls of tools and text.
type answerParser struct {
	format *reasoningFormat // nil is none
	stage  uint8
	rest   string // that was not handled, before the calls
	begun  bool   // something of the reasoning has come
	skip   int    // line ends before the text that are left out
	calls  bool   // calls of tools are looked for
	tools  callParser

	metrics *metrics // counts how often calls are looked for
	stream  bool
	of      int // kind of the request
}

const (
	beforeReasoning uint8 = iota // the mark at its beginning may come
	inReasoning
	afterReasoning
)

// add handles a part of the text. last handles all of it.
func (p *answerParser) add(text string, last bool, each func(callEvent)) {
	if p.format != nil && p.stage != afterReasoning {
		text = p.reason(text, last, each)
	}
	for p.skip > 0 && text != "" {
		if p.skip--; text[0] == '\n' {
			text = text[1:]
		} else {
			p.skip = 0
		}
	}
	switch {
	case p.calls:
		found := false
		p.tools.add(text, last, func(e callEvent) {
			found = found || e.text == ""
			each(e)
		})
		p.metrics.looked(p.stream, found, p.of)
	case text != "":
		each(callEvent{text: text})
	}
}

// reason hands the reasoning on, and returns what follows it.
func (p *answerParser) reason(text string, last bool, each func(callEvent)) string {
	p.rest += text
	if p.stage == beforeReasoning {
		head := strings.TrimLeft(p.rest, " \n")
		switch {
		case strings.HasPrefix(head, p.format.begin):
			p.rest, p.stage = head[len(p.format.begin):], inReasoning
		case !last && strings.HasPrefix(p.format.begin, head):
			return "" // more of the mark may come
		default:
			p.stage = afterReasoning
			text, p.rest = p.rest, ""
			return text
		}
	}
	if !p.begun && p.rest != "" {
		p.begun = true
		if p.format.first {
			p.rest = strings.TrimPrefix(p.rest, "\n")
		}
	}
	at := strings.Index(p.rest, p.format.end)
	end := at
	switch {
	case at < 0 && last:
		end = len(p.rest)
	case at < 0 && p.format.last:
		end = len(p.rest) - max(overlap(p.rest, p.format.end), overlap(p.rest, "\n"+p.format.end))
	case at < 0:
		end = len(p.rest) - overlap(p.rest, p.format.end)
	case p.format.last:
		end = len(strings.TrimSuffix(p.rest[:at], "\n"))
	}
	if end > 0 {
		each(callEvent{reasoning: p.rest[:end]})
	}
	if at < 0 {
		p.rest = p.rest[end:]
		return ""
	}
	text, p.rest, p.stage, p.skip = p.rest[at+len(p.format.end):], "", afterReasoning, p.format.behind
	return text
}

// parser makes the parser of an answer.
func (s *Server) parser(q *chatRequest) answerParser {
	return answerParser{calls: q.calls, format: s.reasoning, stage: q.stage, metrics: s.metrics, stream: q.Stream}
}

// whole parses an answer that has ended.
func (p *answerParser) whole(text string) (reasoning, shown string) {
	if p.format == nil && !p.calls { // the text is simply shown
		return "", text
	}
	var r, t strings.Builder
	p.add(text, true, func(e callEvent) {
		r.WriteString(e.reasoning)
		t.WriteString(e.text)
	})
	return r.String(), t.String()
}

// reasoningTokens counts the tokens of reasoning in answers, as vllm-rs does: those whose text is shown.
func (s *Server) reasoningTokens(q *chatRequest, all []*sequence) (n int) {
	if s.reasoning == nil {
		return 0
	}
	for _, one := range all {
		p := answerParser{format: s.reasoning, stage: q.stage}
		d := newDecoder(s.opt.Tokenizer, &params{SkipSpecial: q.SkipSpecial}, false)
		shown, waiting := false, 0 // tokens whose text may yet be left out
		note := func(e callEvent) { shown = shown || e.reasoning != "" }
		for _, id := range one.tokens {
			before := p.stage
			if shown = false; before == inReasoning {
				waiting++
			}
			d.push(id)
			p.add(d.next(false), false, note)
			held := 0
			if p.rest != "" || p.stage == afterReasoning {
				held = min(waiting, 1) // the last one
			}
			switch {
			case shown:
				n, waiting = n+waiting-held, held
			case p.rest == "":
				waiting = 0
			}
			if p.stage == afterReasoning {
				waiting = 0
				break
			}
		}
		if shown = false; waiting > 0 {
			if p.add("", true, note); shown {
				n += waiting
			}
		}
	}
	return n
}

// Reasons reports whether the format of the parser of this name is known.
func Reasons(parser string) bool { f, err := findReasoning(parser); return f != nil && err == nil }

// Reasoned is what an answer to a prompt begins with that has this reasoning. The end of the prompt counts: it may have
// begun the reasoning, or ended it.
func Reasoned(parser, prompt, reasoning string) string {
	f, err := findReasoning(parser)
	if f == nil || err != nil {
		return ""
	}
	text := "\n" + reasoning + "\n" + f.end + "\n\n"
	switch f.stage(prompt) {
	case inReasoning:
		return text
	case afterReasoning:
		return ""
	}
	return f.begin + text
}

// WithReasoning lets answers begin with a few sentences of reasoning, as those of a model whose answers the parser of
// this name reads. Only drawn answers to free text have them: those that follow a grammar stay as they are. Without
// such a parser nothing changes.
func WithReasoning(source player.Source, tok *tokenizer.Tokenizer, parser string) player.Source {
	format, err := findReasoning(parser)
	if err != nil || format == nil {
		return source
	}
	const thoughts = "\nThe question is clear. A few sentences are enough.\n"
	rest := thoughts + format.end + "\n\n"
	return &reasoned{source, tok, format, tok.Encode(format.begin + rest), tok.Encode(rest)}
}

type reasoned struct {
	player.Source
	tok    *tokenizer.Tokenizer
	format *reasoningFormat
	// whole is the reasoning, and opened that for a prompt that has its first mark.
	whole, opened []uint32
}

// promptEnd is how many tokens at the end of a prompt are looked at: chat templates begin or end the reasoning there.
const promptEnd = 32

func (r *reasoned) Script(q *player.Request) (player.Script, error) {
	script, err := r.Source.Script(q)
	if err != nil || script.Fill == nil || script.Tokens != nil || q.Sampling.StructuredOutputs != nil || q.PromptIsEmbeds {
		return script, err
	}
	before := r.whole
	switch r.format.stage(r.tok.Decode(q.PromptTokenIDs[max(0, len(q.PromptTokenIDs)-promptEnd):])) {
	case inReasoning:
		before = r.opened
	case afterReasoning:
		return script, nil
	}
	fill := script.Fill
	script.Fill = func(position int) uint32 {
		if position < len(before) {
			return before[position]
		}
		return fill(position - len(before))
	}
	return script, nil
}
