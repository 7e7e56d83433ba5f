package report

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestMarkdownLimit: the summary is never longer than its limit, is cut between
// parts, and says how much is missing.
func TestMarkdownLimit(t *testing.T) {
	d := New(large(4000), someRun())
	more := regexp.MustCompile(`… and (\d+) causes more: see the JSON report`)
	for _, limit := range []int{4 << 10, 20 << 10, 100 << 10} {
		var b bytes.Buffer
		require.NoError(t, Markdown(&b, d, limit))
		text := b.String()
		require.True(t, len(text) <= limit && len(text) >= limit-2<<10, "%d bytes under a limit of %d", len(text), limit)
		shown := strings.Count(text, "<details>")
		if shown != strings.Count(text, "</details>") || shown == 0 {
			t.Errorf("%d details of which %d are closed", shown, strings.Count(text, "</details>"))
		}
		m := more.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("nothing says that cases are missing: %s", text[len(text)-300:])
		}
		if want := grouped(400 - shown); m[1] != want {
			t.Errorf("%s more, but %d of 400 are shown", m[1], shown)
		}
	}
	var none bytes.Buffer
	if err := Markdown(&none, d, 0); err != nil || none.Len() > 0 {
		t.Errorf("%d bytes under no limit, %v", none.Len(), err)
	}
	var whole bytes.Buffer
	require.NoError(t, Markdown(&whole, d, MarkdownLimit))
	if shown := strings.Count(whole.String(), "<details>"); shown != 400 || more.MatchString(whole.String()) {
		t.Errorf("%d of 400 cases are shown within %d bytes", shown, MarkdownLimit)
	}
}

// TestMarkdownGatingFirst: what is cut is what does not gate.
func TestMarkdownGatingFirst(t *testing.T) {
	d := New(large(900), someRun())
	text := string(render(t, renderers[4].write, d))
	if first, last := strings.Index(text, "(does not gate)"), strings.LastIndex(text, "<code>0.26/"); first < 0 || first < last {
		t.Errorf("a case that does not gate is at %d, before one that gates at %d", first, last)
	}
}

// TestMarkdownEscapes: outside of fences, no foreign text is markup.
func TestMarkdownEscapes(t *testing.T) {
	for text, want := range map[string]string{
		"a|b`c`*d*_e_":  "a&#124;b&#96;c&#96;&#42;d&#42;&#95;e&#95;",
		"[x](y) <b> @z": "&#91;x&#93;(y) &lt;b&gt; &#64;z",
		"a\nb":          "a b",
	} {
		require.Equal(t, escape(text), want, "escape(%q)", text)
	}
	var b strings.Builder
	fence(&b, "text", "before\n````\nafter\n")
	if got := b.String(); !strings.HasPrefix(got, "`````text\n") || !strings.HasSuffix(got, "\n`````\n\n") {
		t.Errorf("a fence ends with the text's: %q", got)
	}
}
