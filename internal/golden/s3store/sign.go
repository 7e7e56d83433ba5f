package s3store

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// keys are what requests are signed with. Their zero value signs nothing.
type keys struct {
	id, secret, session string
	expires             time.Time // zero: never
}

func (k keys) same(other keys) bool { return k.id == other.id && k.session == other.session }

// without takes the keys out of what a server says.
func (k keys) without(text string) string {
	for _, secret := range []string{k.id, k.secret, k.session} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "…")
		}
	}
	return text
}

// unsigned are headers that proxies change on the way.
var unsigned = []string{"Accept-Encoding", "Authorization", "Expect", "User-Agent"}

// sign adds signature version 4 to a request whose query is sorted and escaped as [escapeQuery] does:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html. digest is the SHA-256 of the
// body in hexadecimal.
func (k keys) sign(r *http.Request, service, region, digest string, now time.Time) {
	stamp := now.UTC().Format("20060102T150405Z")
	r.Host = hostOf(r.URL)
	r.Header.Set("X-Amz-Date", stamp)
	if k.session != "" {
		r.Header.Set("X-Amz-Security-Token", k.session)
	}
	if service == "s3" {
		r.Header.Set("X-Amz-Content-Sha256", digest)
	}
	headers := map[string]string{"host": r.Host}
	for name, values := range r.Header {
		if !slices.Contains(unsigned, name) {
			headers[strings.ToLower(name)] = strings.Join(strings.Fields(strings.Join(values, ",")), " ")
		}
	}
	names := slices.Sorted(maps.Keys(headers))
	signed := strings.Join(names, ";")
	path := r.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	text := r.Method + "\n" + path + "\n" + r.URL.RawQuery + "\n"
	for _, name := range names {
		text += name + ":" + headers[name] + "\n"
	}
	text += "\n" + signed + "\n" + digest
	scope := stamp[:8] + "/" + region + "/" + service + "/aws4_request"
	text = "AWS4-HMAC-SHA256\n" + stamp + "\n" + scope + "\n" + digestOf(text)
	key := []byte("AWS4" + k.secret)
	for _, part := range append(strings.Split(scope, "/"), text) {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+k.id+"/"+scope+", SignedHeaders="+signed+", Signature="+hex.EncodeToString(key))
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// hostOf is the host as it is sent and signed: without the port that belongs to the scheme.
func hostOf(u *url.URL) string {
	if port := u.Port(); u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		return strings.TrimSuffix(u.Host, ":"+port)
	}
	return u.Host
}

// escapeQuery writes a query as a signature wants it: sorted, and a blank as %20.
func escapeQuery(query url.Values) string { return strings.ReplaceAll(query.Encode(), "+", "%20") }

// escapePath writes the path of an object as a signature wants it: everything but letters, digits, -._~ and slashes is
// escaped.
func escapePath(path string) string {
	return strings.ReplaceAll(strings.ReplaceAll(url.QueryEscape(path), "+", "%20"), "%2F", "/")
}
