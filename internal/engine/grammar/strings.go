package grammar

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode/utf8"
)

// stringOf returns the JSON strings that conform.
func (s *schemas) stringOf(all []*object) *node {
	low, high := s.atLeast(all, "minLength"), s.atMost(all, "maxLength")
	if low > high {
		return choice()
	}
	if pattern, ok := s.text(all, "pattern"); ok {
		return s.patterned(pattern, low, high)
	}
	if format, ok := s.text(all, "format"); ok {
		if write := formats[format]; write != nil {
			return quoted(lengthChecked(leaf(len(write(rand.New(rand.NewPCG(0, 0)))), func(d *draw) string { return write(d.rand) }), low, high))
		}
	}
	return quoted(words(low, high))
}

// text is a member that is a string; of the first schema that has it. That the
// others hold is looked at afterwards.
func (s *schemas) text(all []*object, key string) (string, bool) {
	for _, o := range all {
		if v, ok := o.get(key); ok {
			text, isText := v.(string)
			if !isText {
				s.fail("JSON schema: %s is not a string", key)
			}
			return text, true
		}
	}
	return "", false
}

// patterned returns strings that match, in all their length: what may stand
// around a match of a pattern without anchors is left out.
func (s *schemas) patterned(pattern string, low, high int) *node {
	re, err := s.work.pattern(pattern)
	if err != nil {
		s.fail("JSON schema: pattern: %w", err)
		return choice()
	}
	body := regexNode(s.work, re.parsed)
	stretch(body, low, high)
	return quoted(lengthChecked(checked(body, re.check(pattern)), low, high))
}

// stretch applies the bounds on the length to a pattern that repeats one class,
// such as ^[a-z]+$. Others are drawn until their length fits.
func stretch(n *node, low, high int) {
	for n.op == opSeq {
		var kids []*node
		for _, kid := range n.kids {
			if kid.op != opLiteral || kid.text != "" {
				kids = append(kids, kid)
			}
		}
		if len(kids) != 1 {
			return
		}
		n = kids[0]
	}
	if n.op != opRepeat || n.kids[0].op != opClass {
		return
	}
	n.min = max(n.min, low)
	if high < longest && (n.max < 0 || n.max > high) {
		n.max = high
	}
	if n.max >= 0 && n.min > n.max {
		n.op, n.kids = opAlt, nil
	}
}

func lengthChecked(n *node, low, high int) *node {
	if low == 0 && high >= longest {
		return n
	}
	return checked(n, func(w *Work, text []byte) error {
		w.spend(len(text) / 32)
		if count := utf8.RuneCount(text); count < low || count > high {
			return fmt.Errorf("no text was found of %d to %d characters", low, high)
		}
		return nil
	})
}

var vocabulary = strings.Fields(`amber basin cedar delta ember field grove harbor island juniper kelp lantern meadow
	north orchard prairie quarry river summit timber umber valley willow yarrow zephyr`)

// words returns words separated by spaces, of so many characters.
func words(low, high int) *node {
	return leaf(low, func(d *draw) string {
		if low > d.limit {
			return strings.Repeat("a", d.limit) // the rest is cut off
		}
		d.work.spend(1 + low/16)
		size := low + d.extra(min(high-low, 2*maxRunes), 1)
		var b strings.Builder
		for b.Len() < size {
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(vocabulary[d.rand.IntN(len(vocabulary))])
		}
		text := b.String()[:size]
		if before, found := strings.CutSuffix(text, " "); found {
			text = before + "s"
		}
		return text
	})
}

// formats write a text of a format; those of vllm's backends and some more.
var formats = map[string]func(*rand.Rand) string{
	"date": date, "time": clock, "date-time": func(r *rand.Rand) string { return date(r) + "T" + clock(r) },
	"duration": func(r *rand.Rand) string { return fmt.Sprintf("P%dDT%dH", r.IntN(30), r.IntN(24)) },
	"email":    email, "idn-email": email, "hostname": hostname, "idn-hostname": hostname,
	"ipv4": func(r *rand.Rand) string { return fmt.Sprintf("192.0.2.%d", r.IntN(256)) },
	"ipv6": func(r *rand.Rand) string { return fmt.Sprintf("2001:db8::%x", r.IntN(1<<16)) },
	"uuid": func(r *rand.Rand) string {
		return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", r.Uint32(), r.IntN(1<<16), r.IntN(1<<12), r.IntN(1<<12), r.Uint64()>>16)
	},
	"uri": link, "iri": link, "uri-reference": path, "iri-reference": path,
	"uri-template": func(r *rand.Rand) string { return "https://" + hostname(r) + "/{id}" },
	"json-pointer": path, "relative-json-pointer": func(r *rand.Rand) string { return "0" + path(r) },
	"regex": func(r *rand.Rand) string { return "^" + word(r) + "$" },
}

func word(r *rand.Rand) string { return vocabulary[r.IntN(len(vocabulary))] }
func date(r *rand.Rand) string {
	return fmt.Sprintf("20%02d-%02d-%02d", r.IntN(100), 1+r.IntN(12), 1+r.IntN(28))
}

func clock(r *rand.Rand) string {
	return fmt.Sprintf("%02d:%02d:%02dZ", r.IntN(24), r.IntN(60), r.IntN(60))
}
func hostname(r *rand.Rand) string { return word(r) + ".example.com" }
func email(r *rand.Rand) string    { return word(r) + "@example.com" }
func link(r *rand.Rand) string     { return "https://" + hostname(r) + path(r) }
func path(r *rand.Rand) string     { return "/" + word(r) }

// matches reports whether a string has a pattern somewhere.
func (w *Work) matches(pattern, text string) (bool, error) {
	p, err := w.pattern(pattern)
	if err != nil {
		return false, errors.New("pattern is not a regular expression")
	}
	return p.match(w, []byte(text), false), nil
}
