package wirediff_test

import (
	"bytes"
	"encoding/json"
	"html"
	"io"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
)

// breakout leaves every place of a page where it is not escaped.
const breakout = "\"'><img/src=x><!--&amp;%41\x00\n::error::"

func renderHistory(t *testing.T, write func(*wirediff.History, io.Writer) error, h *wirediff.History) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, write(h, &b))
	return b.String()
}

// extended is the fixture with an end to each of its texts, but for those that decide what is shown.
func extended(t *testing.T, end string) *wirediff.History {
	h := historyFixture(t)
	extend(reflect.ValueOf(h), end)
	return h
}

func extend(v reflect.Value, end string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			extend(v.Elem(), end)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			// A URL is made of escaped parts.
			if f := v.Type().Field(i); f.IsExported() && f.Name != "URL" {
				extend(v.Field(i), end)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			extend(v.Index(i), end)
		}
	case reflect.String:
		if v.Type() == reflect.TypeFor[string]() && v.String() != "" {
			v.SetString(v.String() + end)
		}
	}
}

// withoutScript leaves out what is not HTML.
func withoutScript(t *testing.T, page string) string {
	t.Helper()
	for _, name := range []string{"style", "script"} {
		before, rest, begins := strings.Cut(page, "<"+name+">")
		_, after, ends := strings.Cut(rest, "</"+name+">")
		if !begins || !ends {
			t.Fatalf("the page has no %s", name)
		}
		page = before + after
	}
	return page
}

var (
	tags   = regexp.MustCompile(`<[^>]*>`)
	values = regexp.MustCompile(`"[^"]*"`)
)

// TestHTMLEscapes: no text of a history changes what the page is made of.
func TestHTMLEscapes(t *testing.T) {
	skeleton := func(end string) []string {
		return tags.FindAllString(values.ReplaceAllString(withoutScript(t, renderHistory(t, (*wirediff.History).HTML, extended(t, end))), `""`), -1)
	}
	require.NoDiff(t, cmp.Diff(skeleton("harmless"), skeleton(breakout)), "-with harmless texts +with breakouts")
	page := renderHistory(t, (*wirediff.History).HTML, extended(t, breakout))
	if want := "&#34;&#39;&gt;&lt;img/src=x&gt;&lt;!--&amp;amp;%41  ::error::"; !strings.Contains(page, want) {
		t.Error("no text is shown as it came")
	}
	for line := range strings.Lines(page) {
		require.True(t, !strings.HasPrefix(strings.TrimSpace(line), "::"), "a line of the page is a command: %s", line)
	}
}

// TestHTMLRefers: the page loads nothing, what refers into it refers to one element of it, and what leads out leads to
// vLLM.
func TestHTMLRefers(t *testing.T) {
	loads := regexp.MustCompile(`(?i)\b(src|action|data|poster|srcset)\s*=\s*"|url\(|@import|<link|<iframe|<img`)
	reference := regexp.MustCompile(`\bhref="([^"]*)"`)
	anchors := 0
	for name, h := range map[string]*wirediff.History{"fixture": historyFixture(t), "hostile": extended(t, breakout), "build": ofBuild(t)} {
		text := withoutScript(t, renderHistory(t, (*wirediff.History).HTML, h))
		require.Equal(t, loads.FindString(text), "", "%s: the page has", name)
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			at, into := strings.CutPrefix(m[1], "#")
			if !into {
				if !strings.HasPrefix(m[1], "https://github.com/vllm-project/vllm/") {
					t.Errorf("%s: the page leads to %s", name, m[1])
				}
				continue
			}
			anchors++
			id, err := url.PathUnescape(html.UnescapeString(at))
			if err != nil {
				t.Errorf("%s: %s: %v", name, m[0], err)
			}
			if n := strings.Count(text, ` id="`+html.EscapeString(id)+`"`); n != 1 {
				t.Errorf("%s: %s leads to %d elements", name, m[0], n)
			}
		}
	}
	require.True(t, anchors >= 50, "only %d references were found", anchors)
}

// TestHTMLShowsEveryChange: the cells of the table count all changes, of everybody and of each party, and each change
// is below with its place upstream.
func TestHTMLShowsEveryChange(t *testing.T) {
	for name, h := range map[string]*wirediff.History{"fixture": historyFixture(t), "build": ofBuild(t)} {
		text := renderHistory(t, (*wirediff.History).HTML, h)
		want := map[string]int{}
		for _, s := range h.Steps {
			for _, c := range s.Changes {
				want["every"]++
				for _, p := range c.Breaks {
					want["one "+string(p)]++
				}
				require.True(t, c.Where.URL == "" || strings.Contains(text, html.EscapeString(c.Where.URL)), "%s: no link to %s", name, c.Where.URL)
				require.True(t, strings.Contains(text, "<code>"+html.EscapeString(c.Subject)+"</code>"), "%s: %s is not shown", name, c.Subject)
			}
		}
		got := map[string]int{}
		for _, m := range regexp.MustCompile(`<span class="(every|one [a-z]+)">\S+ (\d+)</span>`).FindAllStringSubmatch(text, -1) {
			n, _ := strconv.Atoi(m[2])
			got[m[1]] += n
		}
		require.NoDiff(t, cmp.Diff(want, got), "%s: counts in the table (-want +got)", name)
		if n := strings.Count(text, "<li data-breaks="); n != want["every"] {
			t.Errorf("%s: %d changes below the table, want %d", name, n, want["every"])
		}
	}
}

func TestHTML(t *testing.T) {
	page := renderHistory(t, (*wirediff.History).HTML, historyFixture(t))
	wanted := []string{
		`id="1.1-EngineCoreOutput"`, `href="#1.1-EngineCoreOutput"`, `<td class="new">3<span class="sr"> changed</span></td>`,
		`<td class="new">○<span class="sr">optional changed</span></td>`, `<td class="new">bool ●<span class="sr"> called changed</span></td>`,
		`<td class="no">–</td>`, `scope="rowgroup"`, "Never changed: Same.", "No changes.", `id="of-engines"`,
		`href="https://github.com/vllm-project/vllm/blob/aaaaaaaaa/m.py#L12"`, `id="1.2-constants"`, `id="1.2-utilities"`,
	}
	for _, p := range wirediff.Parties { // what the style hides is named as they are
		shown := "body:has(#of-" + string(p) + ":checked) "
		wanted = append(wanted, `id="of-`+string(p)+`"`, shown+".one."+string(p), shown+"[data-breaks]:not([data-breaks~="+string(p)+"])")
	}
	for _, want := range wanted {
		require.Contains(t, page, want)
	}
	build := renderHistory(t, (*wirediff.History).HTML, ofBuild(t))
	if n := len(build); n > 300_000 {
		t.Errorf("the page of the build has %d bytes: it cannot be attached to anything", n)
	}
	require.True(t, strings.Contains(build, `id="0.32-metrics"`) && !strings.Contains(build, `id="0.32-"`), "the metrics that 0.32 added have no row of their own")
}

func TestJSON(t *testing.T) {
	var got struct {
		Schema string
		wirediff.History
	}
	text := renderHistory(t, (*wirediff.History).JSON, extended(t, breakout+"##vso["))
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	require.True(t, got.Schema == "vllm-vcr/wire-history/1" && len(got.Steps) == 3 && len(got.Releases) == 4, "schema %s, %d steps, %d releases", got.Schema, len(got.Steps), len(got.Releases))
	if want := "1.0.0" + breakout + "##vso["; got.Releases[0].Version != want {
		t.Errorf("version %q, want %q", got.Releases[0].Version, want)
	}
	for _, bad := range []string{"::", "##", "\x00", "\x7f"} {
		require.True(t, !strings.Contains(text, bad), "the document has %q", bad)
	}
}

func TestMarkdown(t *testing.T) {
	text := renderHistory(t, (*wirediff.History).Markdown, historyFixture(t))
	for _, want := range []string{
		"| | 1.0.1 | 1.1 | 1.2 |\n|---|---|---|---|\n", "| EngineCoreOutput | | ✕ 2 | |", "## 1.2\n", "## 1.0.1\n", "Not read (1)",
	} {
		require.Contains(t, text, want)
	}
	hostile := renderHistory(t, (*wirediff.History).Markdown, extended(t, breakout))
	for _, bad := range []string{"<img", "\n::", "\x00"} {
		require.True(t, !strings.Contains(hostile, bad), "the text has %q:\n%s", bad, hostile)
	}
}
