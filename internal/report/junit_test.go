package report

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// node is an XML element.
type node struct {
	name     string
	attrs    map[string]string
	text     string
	children []*node
}

func (n *node) all(name string) []*node {
	return slices.DeleteFunc(slices.Clone(n.children), func(c *node) bool { return c.name != name })
}

// junitShape is what readers of JUnit know: per element its attributes, those that
// must be there with a "!", and its children.
var junitShape = map[string]struct{ attrs, children []string }{
	"":           {nil, []string{"testsuites"}},
	"testsuites": {[]string{"name!", "tests", "failures", "errors", "skipped", "time"}, []string{"testsuite"}},
	"testsuite":  {[]string{"name!", "tests!", "failures!", "errors!", "id!", "skipped", "time!", "timestamp"}, []string{"properties", "testcase"}},
	"properties": {nil, []string{"property"}},
	"property":   {[]string{"name!", "value!"}, nil},
	"testcase":   {[]string{"name!", "classname!", "time"}, []string{"skipped", "error", "failure", "system-out"}},
	"skipped":    {[]string{"message!"}, nil},
	"error":      {[]string{"message!", "type!"}, nil},
	"failure":    {[]string{"message!", "type!"}, nil},
	"system-out": {nil, nil},
}

// parseJUnit reads a document strictly: well-formed XML, with nothing that a reader
// of JUnit does not know, and every count that of its children.
func parseJUnit(data []byte) (*node, error) {
	dec := xml.NewDecoder(bytes.NewReader(data))
	root := &node{}
	open := []*node{root}
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return root, countsHold(root)
		} else if err != nil {
			return nil, err
		}
		current := open[len(open)-1]
		switch token := token.(type) {
		case xml.StartElement:
			child := &node{name: token.Name.Local, attrs: map[string]string{}}
			for _, a := range token.Attr {
				child.attrs[a.Name.Local] = a.Value
			}
			if err := wellKnown(current.name, child); err != nil {
				return nil, err
			}
			current.children, open = append(current.children, child), append(open, child)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			current.text += string(token)
		}
	}
}

func wellKnown(parent string, n *node) error {
	if !slices.Contains(junitShape[parent].children, n.name) {
		return fmt.Errorf("<%s> in <%s>", n.name, parent)
	}
	shape := junitShape[n.name]
	for name := range n.attrs {
		if !slices.Contains(shape.attrs, name) && !slices.Contains(shape.attrs, name+"!") {
			return fmt.Errorf("<%s %s>", n.name, name)
		}
	}
	for _, name := range shape.attrs {
		name, must := strings.CutSuffix(name, "!")
		if _, ok := n.attrs[name]; must && !ok {
			return fmt.Errorf("<%s> has no %s", n.name, name)
		}
	}
	return nil
}

func countsHold(root *node) error {
	for _, all := range root.children {
		sums := map[string]int{}
		for _, suite := range all.children {
			counts := map[string]int{"tests": len(suite.all("testcase"))}
			for _, c := range suite.all("testcase") {
				counts["failures"] += len(c.all("failure"))
				counts["errors"] += len(c.all("error"))
				counts["skipped"] += len(c.all("skipped"))
			}
			for _, name := range []string{"tests", "failures", "errors", "skipped"} {
				if strconv.Itoa(counts[name]) != cmp.Or(suite.attrs[name], "0") {
					return fmt.Errorf("suite %s: %s is %s of %d", suite.attrs["name"], name, suite.attrs[name], counts[name])
				}
				sums[name] += counts[name]
			}
		}
		for name, n := range sums {
			if strconv.Itoa(n) != cmp.Or(all.attrs[name], "0") {
				return fmt.Errorf("%s is %s of %d", name, all.attrs[name], n)
			}
		}
	}
	return nil
}

func TestJUnitIsStrict(t *testing.T) {
	for name, d := range runs() {
		if _, err := parseJUnit(render(t, JUnit, d)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestXMLText: what no XML document may hold is left out, the rest stays.
func TestXMLText(t *testing.T) {
	for r := rune(0); r <= 0x10FFFF; r++ {
		text := xmlText("a" + string(r) + "b")
		var b bytes.Buffer
		require.NoError(t, xml.EscapeText(&b, []byte(text)))
		// encoding/xml replaces what is not allowed.
		if replaced := strings.Contains(b.String(), "\uFFFD"); replaced && r != 0xFFFD && (r < 0xD800 || r > 0xDFFF) {
			t.Fatalf("%U is not left out", r)
		}
		if r == ' ' || r == '\n' || r == 'ä' || r == 0x1F600 {
			if text != "a"+string(r)+"b" {
				t.Errorf("%U is left out", r)
			}
		}
	}
	if got := xmlText("a\x00\x1f\xffb"); got != "a\uFFFDb" {
		t.Errorf("%q", got)
	}
}
