package main

import (
	"bytes"
	"strings"
	"testing"
)

// A line that comes in pieces gets one prefix, and one without an end does not grow without bound.
func TestPrefixed(t *testing.T) {
	var out bytes.Buffer
	p := &prefixed{prefix: "> ", w: &out}
	for _, piece := range []string{"a", "b\r\nc\n", "\n", strings.Repeat("x", maxLine), "y\n"} {
		if n, err := p.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if want := "> ab\n> c\n> \n> " + strings.Repeat("x", maxLine) + "\n> y\n"; out.String() != want {
		t.Errorf("got %.80q", out.String())
	}
}
