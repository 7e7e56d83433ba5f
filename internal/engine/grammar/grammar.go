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

// Constraint is what a request asks its output to conform to.
type Constraint struct {
	Kind    Kind
	Text    string
	Choices []string
}

// Language is the set of texts that conform to a constraint. Texts may be drawn
// from several goroutines at the same time.
type Language struct{ root *node }

// Compile reads a constraint. It fails if that cannot be understood, or if
// nothing conforms to it.
func Compile(c Constraint) (*Language, error) {
	if len(c.Text) > maxText {
		return nil, fmt.Errorf("%d bytes are too large for a constraint: %d are allowed", len(c.Text), maxText)
	}
	root, err := compile(c)
	if err != nil {
		return nil, err
	}
	if err := measure(root); err != nil {
		return nil, err
	}
	if root.least == never {
		return nil, errNothing
	}
	l := &Language{root: root}
	// What only shows when a text is looked at.
	if _, _, err := l.Text(0, 0, probe); err != nil {
		return nil, err
	}
	return l, nil
}

// maxText bounds what is read of a constraint, in bytes.
const maxText = 1 << 20

// probe is how many bytes of a text a constraint is tried with.
const probe = 1 << 16

func compile(c Constraint) (*node, error) {
	switch c.Kind {
	case JSON:
		return compileSchemaText(c.Text)
	case JSONObject:
		return compileSchemaText(`{"type": "object"}`)
	case Regex:
		return compileRegex(c.Text)
	case Choice:
		return compileChoice(c.Choices)
	case Grammar:
		return compileGrammar(c.Text)
	case StructuralTag:
		return compileTag(c.Text)
	}
	return nil, fmt.Errorf("constraint of unknown kind %d", c.Kind)
}

func compileChoice(choices []string) (*node, error) {
	all := choice()
	for _, c := range choices {
		all.kids = append(all.kids, literal(c))
	}
	return all, nil
}

// Text writes a text. It may be about size bytes longer than the shortest one.
// After limit bytes it is cut off, and not whole: a request that has no tokens
// left gets no further either. The error says that none was found that conforms.
func (l *Language) Text(seed uint64, size, limit int) (text string, whole bool, err error) {
	d := &draw{rand: rand.New(rand.NewPCG(seed, 0)), purse: size, limit: max(limit, 1)}
	d.write(l.root)
	if d.err != nil {
		return "", false, d.err
	}
	if len(d.out) < d.limit {
		return string(d.out), true, nil
	}
	return string(d.out[:d.limit]), false, nil
}
