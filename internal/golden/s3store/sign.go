package s3store

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
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

// sign adds signature version 4 to a request. digest is the SHA-256 of the body in hexadecimal.
func (k keys) sign(r *http.Request, service, region, digest string, now time.Time) error {
	ofS3 := service == "s3"
	if ofS3 {
		r.Header.Set("X-Amz-Content-Sha256", digest)
	}
	own := aws.Credentials{AccessKeyID: k.id, SecretAccessKey: k.secret, SessionToken: k.session}
	return v4.NewSigner().SignHTTP(r.Context(), own, r, digest, service, region, now, func(o *v4.SignerOptions) {
		o.DisableURIPathEscaping = ofS3 // it is escaped once: see [escapePath]
	})
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// escapePath writes the path of an object as a signature wants it: everything but letters, digits, -._~ and slashes is
// escaped.
func escapePath(path string) string {
	return strings.ReplaceAll(strings.ReplaceAll(url.QueryEscape(path), "+", "%20"), "%2F", "/")
}
