package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestManual: each command of docs/cli.md has a page with each of its flags.
func TestManual(t *testing.T) {
	text := read(t, filepath.Join("..", "..", "..", "docs", "cli.md"))
	pages := manualPages("vllm-vcr", text)
	if want := strings.Count(text, "\n## vllm-vcr ") + 1; len(pages) != want || want < 30 {
		t.Errorf("%d pages, want %d", len(pages), want)
	}
	for _, page := range pages {
		roff := page.roff("vllm-vcr", "1.2.3")
		require.True(t, page.short != "" && !strings.Contains(roff, "`"), "%s: %q, and:\n%s", page.name, page.short, roff)
		flags := regexp.MustCompile("(?m)^\\| `(.*?)` \\|").FindAllStringSubmatch(page.text, -1)
		for _, flag := range flags {
			if !strings.Contains(roff, "\n.B "+roffText(strings.ReplaceAll(flag[1], `\|`, "|"))+"\n") {
				t.Errorf("%s has no flag %s", page.name, flag[1])
			}
		}
		for line := range strings.Lines(roff) {
			require.True(t, !strings.HasPrefix(line, ".") || regexp.MustCompile(`^\.(TH|nh|ad|SH|PP|TP|B|IP|RS|RE|nf|fi)\b`).MatchString(line), "%s: the request %q", page.name, line)
		}
	}
}

func TestManualPage(t *testing.T) {
	const text = "# vllm-vcr\n\nIntro.\n\n| command | does |\n|---|---|\n| [`vllm-vcr play`](#vllm-vcr-play) | Run it |\n\n" +
		"## vllm-vcr play\n\n.hidden file with `code` and a\\b.\n\n- `0`: fine\n\nExamples:\n\n```\nvllm-vcr play --x 'y'\n.z\n```\n\n**Files**\n\n" +
		"| flag | environment | default | |\n|---|---|---|---|\n| `--mode a\\|b` | `VLLM_VCR_MODE` | a | how |\n"
	want := ".TH \"VLLM-VCR-PLAY\" 1 \"\" \"vllm-vcr 1.2.3\" \"vllm-vcr\"\n.nh\n.ad l\n.SH NAME\nvllm\\-vcr\\-play \\- Run it\n.SH DESCRIPTION\n" +
		"\\&.hidden file with code and a\\eb.\n.PP\n.IP \\(bu 2\n0: fine\n.PP\nExamples:\n.PP\n.PP\n.RS 4\n.nf\nvllm\\-vcr play \\-\\-x 'y'\n\\&.z\n.fi\n.RE\n.PP\n" +
		".SH FILES\n.PP\n.PP\n.TP\n.B \\-\\-mode a|b\nhow (default a); VLLM_VCR_MODE\n"
	pages := manualPages("vllm-vcr", text)
	require.NoDiff(t, cmp.Diff(want, pages[1].roff("vllm-vcr", "1.2.3")), "-want +got")
}
