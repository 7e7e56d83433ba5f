package golden

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"
)

func TestScrub(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{name: "nothing to hide", text: "golden s3://bucket/a-b/c.jsonl.gz: no", want: "golden s3://bucket/a-b/c.jsonl.gz: no"},
		{name: "query", text: `Get "https://h/p?X-Amz-Signature=abc": EOF`, want: `Get "https://h/p?…": EOF`},
		{name: "fragment", text: "https://h/p#token", want: "https://h/p?…"},
		{name: "user", text: "https://me:pass@h/p", want: "https://h/p"},
		{name: "user with an @", text: "https://me:p@ss@h/p", want: "https://h/p"},
		{name: "no user in a path", text: "https://h/a@b", want: "https://h/a@b"},
		{name: "two", text: "https://u@h/p?q https://v@i?r", want: "https://h/p?… https://i?…"},
		{name: "question outside a URL", text: "really? yes", want: "really? yes"},
		{name: "account", text: "arn:aws:iam::123456789012:role/x", want: "arn:aws:iam::…:role/x"},
		{name: "account in China", text: "arn:aws-cn:sts:cn-north-1:123456789012:x", want: "arn:aws-cn:sts:cn-north-1:…:x"},
		{name: "no account", text: "object 123456789012", want: "object 123456789012"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := scrub(test.text); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// What a server says is one printable, short line.
func TestForeignTextIsTamed(t *testing.T) {
	r := &refusal{status: 403, code: "Code\n::error::x", message: strings.Repeat("é\x1b[31m", 1000)}
	text := (&FetchError{Location: "s3://b/k", Err: r}).Error()
	if len([]rune(text)) > longest+50 || strings.ContainsFunc(text, unicode.IsControl) {
		t.Errorf("got %d characters: %q", len([]rune(text)), text)
	}
	if !strings.HasPrefix(text, "golden s3://b/k: HTTP status 403 Forbidden: Code ::error::x: é [31m") {
		t.Errorf("got %q", text)
	}
}

func TestUnknownStatusHasNoName(t *testing.T) {
	if got, want := (&refusal{status: 599}).Error(), "HTTP status 599"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// FuzzLocation looks for a location that breaks the reader of locations, or lets it leave what is built in.
func FuzzLocation(f *testing.F) {
	for _, seed := range []string{
		"", "a", "/a", "../a", "a/../../b", "s3://b/k", "S3://b//k", "s3://", "s3:///", "https://h/p?q", "https://%", "https://[::1",
		"file:///a", "file://a", "hf://o/n/f", "://", "é://x", "a\x00b", `c:\x`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, location string) {
		s := &Store{FS: fstest.MapFS{}}
		src, err := s.source(location)
		if (err == nil) != (src.open != nil) && err == nil {
			t.Fatalf("neither a source nor an error for %q", location)
		}
		p := pin{location: printable(scrub(location)), sha256: digest(nil), max: 1}
		if text := p.failed(errors.New("x"), 1).Error(); strings.ContainsFunc(text, unicode.IsControl) {
			t.Errorf("control characters in %q", text)
		}
	})
}

// FuzzScrub looks for surroundings that carry a secret past scrub.
func FuzzScrub(f *testing.F) {
	f.Add("Get \"", "\": EOF", []byte{1})
	f.Add("a://", "?x@y", []byte{0xff})
	f.Add("https://u:p@h?", "", []byte("x"))
	f.Fuzz(func(t *testing.T, before, after string, random []byte) {
		secret := "secret-" + hex.EncodeToString(random)
		if strings.Contains(before+after, "secret-") {
			return
		}
		text := before + "https://user:" + secret + "@host/path?X-Amz-Signature=" + secret + "&more=" + secret + after
		if got := scrub(text); strings.Contains(got, "secret-") {
			t.Errorf("%q became %q", text, got)
		}
	})
}
