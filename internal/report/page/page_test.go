package page_test

import (
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/report/page"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestWrite(t *testing.T) {
	const hostile = "\"'><img/src=x><!--&amp;\x00"
	const harmless = "&#34;&#39;&gt;&lt;img/src=x&gt;&lt;!--&amp;amp;\uFFFD"
	tests := []struct {
		name    string
		content page.Content
		want    string
	}{
		{"text", page.Text(hostile), harmless},
		{"markup", page.Markup("<b>"), "<b>"},
		{"element", page.El("p", page.Class("a"), page.Text("x"), page.Text("y")), `<p class="a">xy</p>`},
		{"attributes behind what is inside", page.El("p", page.Text("x"), page.Attr("id", "a")), `<p id="a">x</p>`},
		{"hostile value", page.El("p", page.Attr("id", hostile)), `<p id="` + harmless + `"></p>`},
		{"void", page.Void("input", page.Bare("checked")), `<input checked>`},
		{"no attribute", page.El("p", page.AttrWhen(false, page.Bare("open"))), `<p></p>`},
		{"an attribute", page.El("p", page.AttrWhen(true, page.Bare("open"))), `<p open></p>`},
		{"lines", page.Lines(page.Text("a"), page.Text("b")), "a\nb\n"},
		{"each", page.Each([]string{"a", "<"}, func(s string) page.Text { return page.Text(s) }), "a&lt;"},
		{"when", page.Contents{page.When(true, page.Text("a")), page.When(false, page.Text("b"))}, "a"},
		{"anchor", page.El("a", page.ToAnchor(`0.28-A"b %`)), `<a href="#0.28-A%22b%20%25"></a>`},
		{"link", page.El("a", page.To("https://example.org/a?b=1&c=2#L3")), `<a href="https://example.org/a?b=1&amp;c=2#L3"></a>`},
		{"script for a link", page.El("a", page.To("javascript:alert(1)")), `<a></a>`},
		{"no host", page.El("a", page.To("https:///x")), `<a></a>`},
		{"plain http", page.El("a", page.To("http://example.org")), `<a></a>`},
		{"no URL", page.El("a", page.To("https://[")), `<a></a>`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var b strings.Builder
			require.NoError(t, page.Write(&b, test.content))
			if b.String() != test.want {
				t.Errorf("got %s, want %s", b.String(), test.want)
			}
		})
	}
}
