package pyast

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestTree(t *testing.T) {
	tree := parse(t, newParser(t), "class A(B, kw=1):  # c\n    é: int = 3\n")
	var got []string
	for n := range tree.Root.All() {
		parent := "-"
		if n.Parent != nil {
			parent = n.Parent.Kind
		}
		got = append(got, fmt.Sprintf("%s %s %q %v %d %s", parent, n.Kind, n.Field, n.Named, n.Line, n.Text()))
	}
	want := strings.Split(strings.TrimSpace(`
- module "" true 1 class A(B, kw=1):  # c|    é: int = 3|
module class_definition "" true 1 class A(B, kw=1):  # c|    é: int = 3
class_definition class "" false 1 class
class_definition identifier "name" true 1 A
class_definition argument_list "superclasses" true 1 (B, kw=1)
argument_list ( "" false 1 (
argument_list identifier "" true 1 B
argument_list , "" false 1 ,
argument_list keyword_argument "" true 1 kw=1
keyword_argument identifier "name" true 1 kw
keyword_argument = "" false 1 =
keyword_argument integer "value" true 1 1
argument_list ) "" false 1 )
class_definition : "" false 1 :
class_definition comment "" true 1 # c
class_definition block "body" true 2 é: int = 3
block expression_statement "" true 2 é: int = 3
expression_statement assignment "" true 2 é: int = 3
assignment identifier "left" true 2 é
assignment : "" false 2 :
assignment type "type" true 2 int
type identifier "" true 2 int
assignment = "" false 2 =
assignment integer "right" true 2 3
`), "\n")
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], "|", "\n")
	}
	require.NoDiff(t, cmp.Diff(want, got), "(-want +got)")
}

// TestChildren: neither comments nor the backslashes that continue a line are children, and a nil node has none.
func TestChildren(t *testing.T) {
	list := expression(t, parse(t, newParser(t), "x = [1, # one\n 2, \\\n 3]\n"))
	var got []string
	for n := range list.NamedChildren() {
		got = append(got, n.Text())
	}
	if want := []string{"1", "2", "3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	none := list.ByField("body")
	for n := range none.NamedChildren() {
		t.Errorf("a child: %v", n)
	}
	for n := range none.All() {
		t.Errorf("within: %v", n)
	}
	if none != nil || none.ByField("name") != nil || none.Text()+Canonical(none) != "" || none.Errors() != nil {
		t.Errorf("%v, %v, %q, %q", none, none.ByField("name"), none.Text(), Canonical(none))
	}
	if _, err := Literal(none); err == nil {
		t.Error("no expression is a literal")
	}
}

func TestErrors(t *testing.T) {
	p := newParser(t)
	tests := []struct {
		name, source string
		want         []string
	}{
		{name: "none", source: "def f(): pass\n"},
		{name: "nothing"},
		{name: "newer Python", source: "type A[T: int] = list[T]\nx = f'{y['z']}' t'{y}'\nmatch x:\n    case 1: ...\n"},
		{
			name:   "a statement of the future",
			source: "class A:\n    x: int\n\n\nloop x until y:\n    z = 1\n\nclass B:\n    y: int\n",
			want:   []string{`line 5, column 1: cannot read "loop x until"`},
		},
		{name: "a missing bracket", source: "x = (1 +\n", want: []string{`line 1, column 1: cannot read "x = (1 +"`}},
		{name: "a missing name", source: "é = 1\né = [é.]\n", want: []string{`line 2, column 7: cannot read "."`}},
		{name: "a missing line end", source: "é = 1 2\ny = 3\n$ = 4\n", want: []string{
			`line 1, column 6: a line end is missing`, `line 3, column 1: cannot read "$ ="`,
		}},
		{name: "an open string", source: "x = 'a\ny = 1\n", want: []string{`line 1, column 5: cannot read "'"`}},
		{name: "long", source: "$" + strings.Repeat("é$", 70), want: []string{
			`line 1, column 1: cannot read "` + strings.Repeat("$é", 30) + `" …`,
		}},
		{name: "escapes of a terminal", source: "x = 1 \x1b[31m\u202e\n", want: []string{
			`line 1, column 1: cannot read "x = 1 \x1b[31m\u202e"`,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, e := range parse(t, p, test.source).Errors() {
				got = append(got, e.Error())
			}
			require.NoDiff(t, cmp.Diff(test.want, got), "(-want +got)")
		})
	}
}

// TestErrorsIn reads on around an error: what it does not touch is whole.
func TestErrorsIn(t *testing.T) {
	const source = "class A:\n    x: int\n\nloop x until y:\n    z = 1\n\nclass B:\n    y: = 1\n\nclass C:\n    z: int\n"
	tree := parse(t, newParser(t), source)
	got := map[string]int{}
	for n := range tree.Root.All() {
		if n.Kind == "class_definition" {
			got[n.ByField("name").Text()] = len(n.Errors())
		}
	}
	require.NoDiff(t, cmp.Diff(map[string]int{"A": 0, "B": 1, "C": 0}, got), "errors of classes (-want +got)")
}
