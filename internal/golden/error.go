package golden

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// MismatchError is a golden whose bytes were read and are not the registered ones.
type MismatchError struct {
	Location   string // without what must not be printed
	WantSHA256 string // as registered, 64 hexadecimal digits
	GotSHA256  string // of what is there; empty if that was not read to its end, being too long
	WantSize   int64  // bytes as registered; 0 if no size was
	GotSize    int64  // bytes that were read
	// What the server says of the object that is there, as far as it does: it shows by which program it was put there, and when.
	Modified  time.Time
	ETag      string
	VersionID string // of S3
	// When the golden was captured; zero: not known. What was stored later has replaced it.
	CapturedAt time.Time
}

func (e *MismatchError) Error() string {
	return "golden " + e.Location + ": " + e.difference() + e.found()
}

func (e *MismatchError) difference() string {
	const advice = "these are not the bytes that were registered: restore them, or register the golden again"
	switch {
	case e.GotSHA256 == "":
		return fmt.Sprintf("more than %d bytes, want %d with sha256 %s: %s", e.WantSize, e.WantSize, e.WantSHA256, advice)
	case e.GotSHA256 == e.WantSHA256:
		return fmt.Sprintf("%d bytes, want %d, but sha256 is %s as registered: correct the size", e.GotSize, e.WantSize, e.GotSHA256)
	case e.WantSize == 0:
		return fmt.Sprintf("sha256 of its %d bytes is %s, want %s: %s", e.GotSize, e.GotSHA256, e.WantSHA256, advice)
	}
	return fmt.Sprintf("sha256 of its %d bytes is %s, want %s of %d bytes: %s", e.GotSize, e.GotSHA256, e.WantSHA256, e.WantSize, advice)
}

// found says since when there are other bytes, if that is known.
func (e *MismatchError) found() string {
	var parts []string
	if !e.Modified.IsZero() {
		parts = append(parts, "was stored "+stamp(e.Modified)+e.replaced())
	}
	if e.VersionID != "" {
		parts = append(parts, "is version "+clip(safetext.Line(e.VersionID)))
	}
	if e.ETag != "" {
		parts = append(parts, "has ETag "+clip(safetext.Line(e.ETag)))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (what is there " + strings.Join(parts, ", ") + ")"
}

// replaced compares the time of what is there with that of the capture.
func (e *MismatchError) replaced() string {
	switch {
	case e.CapturedAt.IsZero():
		return ""
	case e.Modified.Before(e.CapturedAt):
		return " and is older than the golden, which was captured " + stamp(e.CapturedAt) + ": check bucket_path"
	}
	return " and the golden was captured " + stamp(e.CapturedAt) + ": it was overwritten since"
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// FetchError is a golden whose bytes could not be had, which says nothing about the golden.
type FetchError struct {
	What     string // of which bytes they are; empty: golden
	Location string // without what must not be printed
	Status   int    // of HTTP; 0 if no server answered
	Tries    int    // requests made; 0 if none
	Cause    string // a word for the cause to search for, such as no-credentials; may be empty
	Hint     string // what to look at; may be empty
	// Err is the cause: fs.ErrNotExist, context.DeadlineExceeded and errors.ErrUnsupported can be distinguished.
	// Its own text may hold what must not be printed.
	Err error
}

func (e *FetchError) Error() string {
	cause := e.Err
	var atPath *fs.PathError
	if errors.As(cause, &atPath) && strings.HasSuffix(e.Location, filepath.ToSlash(atPath.Path)) {
		cause = atPath.Err // the location ends with the path
	}
	text := cmp.Or(e.What, "golden") + " " + e.Location + ": " + Reason(cause)
	if e.Tries > 1 {
		text += fmt.Sprintf(" (%d tries)", e.Tries)
	}
	return text + Advice{e.Cause, e.Hint}.String()
}

// Unwrap returns the cause.
func (e *FetchError) Unwrap() error { return e.Err }

// TimeoutError is why a fetch was ended that took too long. It is a context.DeadlineExceeded.
type TimeoutError struct{ After time.Duration }

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("the fetch of the golden took longer than %v", e.After)
}

// Unwrap returns context.DeadlineExceeded.
func (e *TimeoutError) Unwrap() error { return context.DeadlineExceeded }

// failed is the error of a fetch that ended after the given number of tries.
func (p pin) failed(err error, tries int) error {
	known := adviceOn(err)
	e := &FetchError{Location: p.location, Tries: tries, Cause: known.Cause, Hint: known.Hint, Err: err}
	var refused *Refusal
	if errors.As(err, &refused) {
		e.Status = refused.Status
	}
	return e
}

// Causes of failures, as words that an error shows in brackets, and that can be searched for.
const (
	CauseNoKey    = "no-key" // or version, or file
	CauseBusy     = "server-busy"
	CauseRedirect = "redirect" // that is not followed

	causeServer      = "server-error"
	causeChanged     = "object-changed"    // while it was read
	causeAuthority   = "unknown-authority" // of a certificate
	causeCertificate = "wrong-certificate"
	causeProxy       = "proxy"
	causeNoHost      = "no-host"
	causeNetwork     = "network"
	causeWeb         = "web-credentials" // an https location that wants some
	causeExists      = "exists"          // and is something else

	// Those that lie on this machine.
	causeCache    = "cache"
	causeOffline  = "offline"
	causeTooLarge = "too-large"
)

// A Refusal is what a server answered instead of sending or storing the object.
type Refusal struct {
	Status     int
	RetryAfter time.Duration // how long the server wants to be left alone; 0: it does not say
}

func (r *Refusal) Error() string {
	text := "HTTP status " + strconv.Itoa(r.Status)
	if known := http.StatusText(r.Status); known != "" {
		text += " " + known
	}
	return text
}

// Cause is what the status means for an object, whatever the server is; it may be empty.
func (r *Refusal) Cause() string {
	switch {
	case r.Status >= http.StatusMultipleChoices && r.Status < http.StatusBadRequest:
		return CauseRedirect
	case r.Status == http.StatusPreconditionFailed, r.Status == http.StatusRequestedRangeNotSatisfiable:
		return causeChanged
	case r.Status == http.StatusProxyAuthRequired:
		return causeProxy
	case r.Status == http.StatusServiceUnavailable, r.Status == http.StatusTooManyRequests:
		return CauseBusy
	case r.Status >= http.StatusInternalServerError:
		return causeServer
	}
	return ""
}

func (r *Refusal) advice() Advice {
	switch r.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return Advice{causeWeb, "the server wants credentials, but https locations are read without: make the golden public, or put it into a bucket"}
	case http.StatusNotFound, http.StatusGone:
		return Advice{CauseNoKey, "check the location in the manifest"}
	}
	if hint := HintOn(r.Cause()); hint != "" {
		return Advice{r.Cause(), hint}
	}
	return Advice{}
}

// HintOn is the hint on a cause of [Refusal.Cause]; it may be empty.
func HintOn(cause string) string {
	switch cause {
	case CauseBusy:
		return "the server has too many requests: try later, or keep the cache between runs"
	case causeServer:
		return "the server has a fault of its own: try later, or name a mirror"
	case causeChanged:
		return "the object was replaced while it was read"
	case causeProxy:
		return "the proxy wants credentials: put them into HTTPS_PROXY, or except the host in NO_PROXY"
	}
	return ""
}

// An Adviser is an error that knows what to look at.
type Adviser interface {
	error
	Advice() Advice
}

// Advice is what can be said about a failure beside its text. Both parts may be empty.
type Advice struct{ Cause, Hint string }

func (a Advice) String() string {
	var text string
	if a.Hint != "" {
		text = ": " + a.Hint
	}
	if a.Cause != "" {
		text += " [" + a.Cause + "]"
	}
	return text
}

// adviceOn says what to look at after a failure.
func adviceOn(err error) Advice {
	var (
		adviser Adviser
		refused *Refusal
	)
	switch {
	case errors.As(err, &adviser):
		return adviser.Advice()
	case errors.As(err, &refused):
		return refused.advice()
	case errors.As(err, new(*redirectError)):
		return Advice{CauseRedirect, "name the place itself in the manifest"}
	case errors.Is(err, fs.ErrNotExist):
		return Advice{CauseNoKey, "check bucket_path in the manifest, the directory of goldens and CONFORMANCE_BUCKET"}
	}
	return networkAdvice(err)
}

// networkAdvice is about a server that could not be talked to.
func networkAdvice(err error) Advice {
	var (
		dns       *net.DNSError
		op        *net.OpError
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		host      x509.HostnameError
		rejected  *tls.CertificateVerificationError
	)
	switch {
	case errors.As(err, new(*proxyError)), errors.As(err, &op) && op.Op == "proxyconnect",
		strings.Contains(err.Error(), "Proxy Authentication Required"): // of a client that was given
		return Advice{causeProxy, "the proxy that HTTPS_PROXY or HTTP_PROXY names does not serve: correct it, or except the host in NO_PROXY"}
	case errors.As(err, &authority):
		return Advice{causeAuthority, "the certificate of the server, or of a proxy before it, is of an authority that is not known here: " +
			"put the file of the authority into SSL_CERT_FILE, or for S3 into AWS_CA_BUNDLE"}
	case errors.As(err, &host):
		return Advice{causeCertificate, "the certificate is of another host: check the endpoint, and whether the bucket belongs into the path"}
	case errors.As(err, &invalid), errors.As(err, &rejected):
		return Advice{causeCertificate, "the certificate of the server does not hold: check the clock of this machine, and the server"}
	case errors.As(err, &dns):
		return Advice{causeNoHost, "check the name of the host and the network; of a bucket of S3 also AWS_REGION, AWS_ENDPOINT_URL, " +
			"and whether the server wants the bucket in the path"}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, retry.ErrStalled), errors.Is(err, retry.ErrSlow), errors.Is(err, retry.ErrTooLong):
		return Advice{causeNetwork, "check the network and the proxy"}
	}
	return Advice{}
}

// Reason renders the text of an error without what must not be printed. The error of a request is
// cut down to its cause, as what is before it is the whole URL.
func Reason(err error) string {
	var (
		adviser   Adviser
		transport *url.Error
	)
	if !errors.As(err, &adviser) && errors.As(err, &transport) {
		err = transport.Err
	}
	return safetext.Clip(shown(err.Error()), longest)
}

// Characters of foreign text that are shown.
const (
	longest = 500 // of an error
	clipped = 80  // of a value
)

// secrets are the parts of text that are replaced, in this order: the parts of URLs that may carry a secret, and what is known
// to be one wherever it is.
var secrets = sync.OnceValue(func() []struct {
	pattern     *regexp.Regexp
	replacement string
} {
	return []struct {
		pattern     *regexp.Regexp
		replacement string
	}{
		{regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s"'<>/?#]*@`), "$1"},
		{regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>?#]*)[?#](?:…|[^\s"'<>]*)`), "$1?…"},
		{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?`), "…"}, // tokens
		{regexp.MustCompile(`(?i)\b((?:x-amz-)?(?:signature|credential|security-token)\s*[=:]\s*|bearer\s+)[^\s"'<>&,;]+`), "${1}…"},
		// Keys and roles have names of their own: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
		{regexp.MustCompile(`\b(AKIA|ASIA|AROA|AIDA|AIPA|ANPA|ABIA|ACCA|AGPA|ASCA)[A-Z0-9]{12,}`), "${1}…"},
		// An account is a part of ARNs, and elsewhere twelve digits beside that word.
		{regexp.MustCompile(`(?i)(arn:[a-z0-9-]*:[a-z0-9-]*:[a-z0-9-]*:|\baccount\W{0,3}(?:id|number)?\W{0,4})[0-9]{12}\b`), "${1}…"},
	}
})

// Scrub returns text without the secrets, the queries of URLs and the account numbers that may be in it.
func Scrub(text string) string {
	for _, s := range secrets() {
		text = s.pattern.ReplaceAllString(text, s.replacement)
	}
	return text
}

// clip shortens text of others that a message quotes.
func clip(text string) string { return safetext.Clip(text, clipped) }

// shown makes text of others fit for a message: one line without secrets.
func shown(text string) string { return safetext.Line(Scrub(text)) }
