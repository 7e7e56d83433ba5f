package jsonout_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
)

func TestWrite(t *testing.T) {
	var b bytes.Buffer
	if err := jsonout.Write(&b, map[string]string{"a": "<b> & ::error::\u202e"}); err != nil {
		t.Fatal(err)
	}
	want := "{\n  \"a\": \"<b> & :\\u003aerror:\\u003a\\u202e\"\n}\n"
	if b.String() != want {
		t.Errorf("got %s\nwant %s", b.String(), want)
	}
	if err := jsonout.Write(&b, math.NaN()); err == nil || b.String() != want {
		t.Errorf("error %v, and written %s", err, b.String())
	}
	if line, err := jsonout.Line([]string{"<>"}); err != nil || string(line) != "[\"<>\"]\n" {
		t.Errorf("got %s, %v", line, err)
	}
}
