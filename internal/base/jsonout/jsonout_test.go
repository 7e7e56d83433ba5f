package jsonout_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestWrite(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, jsonout.Write(&b, map[string]string{"a": "<b> & ::error::\u202e"}))
	want := "{\n  \"a\": \"<b> & :\\u003aerror:\\u003a\\u202e\"\n}\n"
	require.True(t, b.String() == want, "got %s\nwant %s", b.String(), want)
	if err := jsonout.Write(&b, math.NaN()); err == nil || b.String() != want {
		t.Errorf("error %v, and written %s", err, b.String())
	}
	if line, err := jsonout.Line([]string{"<>"}); err != nil || string(line) != "[\"<>\"]\n" {
		t.Errorf("got %s, %v", line, err)
	}
}

func TestReadObject(t *testing.T) {
	for text, want := range map[string]string{
		`{"n": 1}`: "", `{"n": "1"}`: "n has the wrong type: string", `{"m": 1}`: `unknown field "m"`, `[]`: "it is a JSON array",
		` null `: "it is null", `{} {}`: "something follows the object at byte 4", ``: "EOF", `{`: "unexpected EOF",
	} {
		var into struct {
			N int `json:"n"`
		}
		got := ""
		if err := jsonout.ReadObject(text, &into); err != nil {
			got = err.Error()
		}
		require.True(t, got == want && (want != "" || into.N == 1), "%s: %q and %+v, want %q", text, got, into, want)
	}
}
