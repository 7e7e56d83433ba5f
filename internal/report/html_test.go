package report

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestHTMLNeedsNothingElse: the page loads nothing, and links only to the
// documentation.
func TestHTMLNeedsNothingElse(t *testing.T) {
	reference := regexp.MustCompile(`(?i)\b(src|href|action|data|poster|srcset)\s*=\s*"([^"]*)"|url\(|@import|<link|<iframe`)
	for name, d := range hostileRuns() {
		for _, m := range reference.FindAllStringSubmatch(string(render(t, HTML, d)), -1) {
			switch ours := strings.HasPrefix(m[2], Project+"/blob/main/docs/findings.md#"); {
			case strings.EqualFold(m[1], "href") && (ours || strings.HasPrefix(m[2], "#")):
			case strings.EqualFold(m[1], "src") && m[2] == "" || strings.Contains(m[0], "&"):
			default:
				t.Errorf("%s: the page refers to %s", name, m[0])
			}
		}
	}
}

// withoutScript leaves out what is not HTML.
func withoutScript(t *testing.T, page []byte) []byte {
	t.Helper()
	for _, name := range []string{"style", "script"} {
		from, to := bytes.Index(page, []byte("<"+name+">")), bytes.Index(page, []byte("</"+name+">"))
		if from < 0 || to < from {
			t.Fatalf("the page has no %s", name)
		}
		page = append(page[:from:from], page[to+len(name)+3:]...)
	}
	return page
}

func TestWindow(t *testing.T) {
	tests := []struct {
		name             string
		expected, actual string
		at               int
		want             string // "position:expected/actual", the first that differs with a "!"
	}{
		{"from the beginning", "[1 2 3]", "[1 9 3]", 1, "0:1/1 1:2/9! 2:3/3"},
		{"cut", "[…1 2…]", "[…1 9…]", 40, "… 39:1/1 40:2/9!"},
		{"one ends", "[…1 2 3…]", "[…1]", 40, "… 39:1/1 40:2/end! 41:3/"},
		{"one goes on", "[1]", "[1 2…]", 1, "0:1/1 1:end/2!"},
		{"empty", "[]", "[7]", 0, "0:end/7!"},
		{"no list", "stop", "length", 3, ""},
		{"no position", "[1]", "[2]", -1, ""},
		{"equal", "[1]", "[1]", 0, ""},
		{"another position", "[1 2]", "[1 3]", 5, ""},
		{"one is cut", "[…1 2]", "[1 3]", 5, ""},
		{"hostile", "[", "]", 0, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := windowOf(conformance.Failure{Position: test.at, Expected: test.expected, Actual: test.actual})
			var got []string
			if w != nil && w.Cut {
				got = append(got, "…")
			}
			for i := 0; w != nil && i < len(w.Values); i++ {
				v := w.Values[i]
				mark := ""
				if v.Differs {
					mark = "!"
				}
				got = append(got, grouped(v.Position)+":"+v.Expected+"/"+v.Actual+mark)
			}
			require.NoDiff(t, cmp.Diff(test.want, strings.Join(got, " ")), "-want +got")
		})
	}
}
