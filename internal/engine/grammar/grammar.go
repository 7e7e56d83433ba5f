package grammar

import (
	"fmt"
	"math/rand/v2"
)

// Kind is what a text is constrained by.
type Kind uint8

// Kinds of constraints, in the order of vllm/sampling_params.py
// StructuredOutputsParams.
const (
	JSON          Kind = iota + 1 // Text is a JSON schema
	JSONObject                    // any JSON object
	Regex                         // Text is a regular expression, of all the text
	Choice                        // one of Choices
	Grammar                       // Text is an EBNF grammar, with ::=, or a Lark grammar
	StructuralTag                 // Text is a JSON description of tags
)

// Constraint is what the output of a request has to conform to.
type Constraint struct {
	Kind    Kind
	Text    string
	Choices []string
	// Empty lets a rule of a grammar be empty, as llguidance does. xgrammar
	// wants "" or () there.
	Empty bool
}

// Language is the set of texts that conform to a constraint. Texts may be drawn
// from several goroutines at the same time.
type Language struct {
	root     *node
	patterns map[string]*pattern // read only
	cost     int                 // steps of compiling it
	size     int
}

// Compile reads a constraint. It fails if that cannot be understood, if nothing
// conforms to it, or if w has no steps left.
func Compile(w *Work, c Constraint) (*Language, error) {
	size := len(c.Text)
	for _, choice := range c.Choices {
		size += len(choice)
	}
	if size > maxText {
		return nil, fmt.Errorf("the constraint has %d bytes: at most %d are allowed", size, maxText)
	}
	l, before := &Language{}, w.left
	err := w.bounded(func() (err error) {
		if l.root, err = compile(w, c); err != nil {
			return err
		}
		if l.size, err = measure(w, l.root); err != nil {
			return err
		}
		if l.root.least == never {
			return errNothing
		}
		// What only shows when a text is looked at.
		_, _, err = l.text(w, 0, 0, probe)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.cost, l.patterns, l.size = before-w.left, w.patterns, l.size+size+w.kept
	w.patterns, w.kept = nil, 0
	return l, nil
}

// Charge lets w pay what compiling has cost: what a request gets does not depend on
// whether the language of its constraint was kept.
func (l *Language) Charge(w *Work) error { return w.Spend(l.cost) }

// Least is how many bytes every text has at least.
func (l *Language) Least() int { return l.root.least }

// Size is about how many bytes the language holds.
func (l *Language) Size() int { return l.size }

// maxText bounds what is read of a constraint, in bytes.
const maxText = 1 << 20

// probe is how many bytes of a text a constraint is tried with.
const probe = 1 << 16

func compile(w *Work, c Constraint) (*node, error) {
	switch c.Kind {
	case JSON:
		return compileSchemaText(w, c.Text)
	case JSONObject:
		return compileSchemaText(w, `{"type": "object"}`)
	case Regex:
		return compileRegex(w, c.Text)
	case Choice:
		all := choice()
		w.spend(2 * len(c.Choices))
		for _, text := range c.Choices {
			all.kids = append(all.kids, literal(text))
		}
		return all, nil
	case Grammar:
		return compileGrammar(w, c.Text, c.Empty)
	case StructuralTag:
		return compileTag(w, c.Text)
	}
	return nil, fmt.Errorf("constraint of unknown kind %d", c.Kind)
}

// Text writes a text. It may be about size bytes longer than the shortest one.
// After limit bytes it is cut off, and not whole: a request that has no tokens
// left gets no further either. It is an error that no text was found that conforms, or
// that w has no steps left.
func (l *Language) Text(w *Work, seed uint64, size, limit int) (text string, whole bool, err error) {
	w.known = l.patterns
	err = w.bounded(func() (err error) {
		text, whole, err = l.text(w, seed, size, limit)
		return err
	})
	return text, whole, err
}

func (l *Language) text(w *Work, seed uint64, size, limit int) (text string, whole bool, err error) {
	d := &draw{work: w, rand: rand.New(rand.NewPCG(seed, 0)), budget: size, limit: max(limit, 1)}
	d.write(l.root)
	if d.err != nil {
		return "", false, d.err
	}
	if len(d.out) < d.limit {
		return string(d.out), true, nil
	}
	return string(d.out[:d.limit]), false, nil
}
