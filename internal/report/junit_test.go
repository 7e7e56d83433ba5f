package report

import (
	"bytes"
	"encoding/xml"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

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
			require.Equal(t, text, "a"+string(r)+"b", "%U is left out", r)
		}
	}
	require.Equal(t, xmlText("a\x00\x1f\xffb"), "a\uFFFDb", "xmlText")
}
