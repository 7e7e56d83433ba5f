package golden

import (
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"
	"time"
	"unicode"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
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
		{name: "account by its name", text: "in account 123456789012.", want: "in account …."},
		{name: "account ID", text: `"AccountId": "123456789012"`, want: `"AccountId": "…"`},
		{name: "longer number", text: "account 1234567890123", want: "account 1234567890123"},
		{name: "access key", text: "key ASIAIOSFODNN7EXAMPLE is", want: "key ASIA… is"},
		{name: "no access key", text: "ASIA is large", want: "ASIA is large"},
		{name: "token", text: "got eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln.", want: "got …."},
		{name: "bearer", text: "Authorization: Bearer abc.def", want: "Authorization: Bearer …"},
		{
			name: "signature", text: "AWS4-HMAC-SHA256 Credential=x/20260101/r/s3/aws4_request, SignedHeaders=host, Signature=0f",
			want: "AWS4-HMAC-SHA256 Credential=…, SignedHeaders=host, Signature=…",
		},
		{name: "query without its URL", text: "a=1&X-Amz-Security-Token=abc&b=2", want: "a=1&X-Amz-Security-Token=…&b=2"},
		{name: "nothing but words", text: "SignatureDoesNotMatch: The signature does not match", want: "SignatureDoesNotMatch: The signature does not match"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, Scrub(test.text), test.want, "Scrub")
		})
	}
}

// What a server says is one printable, short line.
func TestForeignTextIsTamed(t *testing.T) {
	said := fmt.Errorf("%w: Code\n::error::x: %s", &Refusal{Status: 403}, strings.Repeat("é\x1b[31m", 1000))
	text := (&FetchError{Location: "s3://b/k", Err: said}).Error()
	if len([]rune(text)) > longest+50 || strings.ContainsFunc(text, unicode.IsControl) {
		t.Errorf("got %d characters: %q", len([]rune(text)), text)
	}
	require.True(t, strings.HasPrefix(text, "golden s3://b/k: HTTP status 403 Forbidden: Code ::error::x: éé"), "got %q", text)
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
		p := pin{location: shown(location), sha256: digest(nil), max: 1}
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
		if got := Scrub(text); strings.Contains(got, "secret-") {
			t.Errorf("%q became %q", text, got)
		}
	})
}

func TestMismatchTellsWhatIsThere(t *testing.T) {
	e := &MismatchError{Location: "s3://b/k", WantSHA256: strings.Repeat("a", 64), GotSHA256: strings.Repeat("b", 64), GotSize: 3, WantSize: 4}
	if got := e.Error(); !strings.HasSuffix(got, "or register the golden again") {
		t.Errorf("got %q", got)
	}
	e.Modified, e.VersionID, e.ETag = time.Unix(1767225600, 0), "v\n1", `"0f"`
	const want = `(what is there was stored 2026-01-01T00:00:00Z, is version v 1, has ETag "0f")`
	if got := e.Error(); !strings.HasSuffix(got, want) {
		t.Errorf("got %q, want it to end in %q", got, want)
	}
}

func TestNetworkAdvice(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"proxy", &net.OpError{Op: "proxyconnect", Err: errors.New("connection refused")}, causeProxy},
		{"proxy wants credentials", errors.New("Proxy Authentication Required"), causeProxy},
		{"authority", x509.UnknownAuthorityError{}, causeAuthority},
		{"another host", x509.HostnameError{Certificate: &x509.Certificate{}, Host: "localhost"}, causeCertificate},
		{"expired", x509.CertificateInvalidError{Reason: x509.Expired}, causeCertificate},
		{"name", &net.DNSError{Name: "bucket.invalid", IsNotFound: true}, causeNoHost},
		{"stalled", retry.ErrStalled, causeNetwork},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := networkAdvice(&url.Error{Op: "Get", URL: "https://h/", Err: test.err}); got.Cause != test.want || got.Hint == "" {
				t.Errorf("got %+v, want the cause %s", got, test.want)
			}
		})
	}
}
