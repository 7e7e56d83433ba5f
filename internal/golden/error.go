package golden

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// MismatchError is a golden whose bytes were read and are not the registered ones.
type MismatchError struct {
	Location   string // without what must not be printed
	WantSHA256 string // as registered, 64 hexadecimal digits
	GotSHA256  string // of what is there; empty if that was not read to its end, being too long
	WantSize   int64  // bytes as registered; 0 if no size was
	GotSize    int64  // bytes that were read
	// What the server says of the object that is there, as far as it says: they tell who put it there, and when.
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
	const advice = "these are not the bytes that were registered: restore them, or register the golden anew"
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
		parts = append(parts, "is version "+clip(printable(e.VersionID)))
	}
	if e.ETag != "" {
		parts = append(parts, "has ETag "+clip(printable(e.ETag)))
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
	Location string // without what must not be printed
	Status   int    // of HTTP; 0 if no server answered
	Tries    int    // requests made; 0 if none
	Cause    string // a word for the cause to search for, such as no-credentials; may be empty
	Hint     string // what to look at; may be empty
	// Err is the cause: fs.ErrNotExist, context.DeadlineExceeded and errors.ErrUnsupported can be told.
	// Its own text may hold what must not be printed.
	Err error
}

func (e *FetchError) Error() string {
	cause := e.Err
	var atPath *fs.PathError
	if errors.As(cause, &atPath) && strings.HasSuffix(e.Location, filepath.ToSlash(atPath.Path)) {
		cause = atPath.Err // the path is told already
	}
	text := "golden " + e.Location + ": " + reason(cause)
	if e.Tries > 1 {
		text += fmt.Sprintf(" (%d tries)", e.Tries)
	}
	return text + advice{e.Cause, e.Hint}.String()
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
	e := &FetchError{Location: p.location, Tries: tries, Cause: known.cause, Hint: known.hint, Err: err}
	var refused *refusal
	if errors.As(err, &refused) {
		e.Status = refused.status
	}
	return e
}

// A refusal is what a server answered instead of sending the object.
type refusal struct {
	status    int
	s3        bool
	anonymous bool   // the request was not signed
	code      string // S3's word for it, such as NoSuchKey
	message   string // S3's sentence
	// Where the bucket is, if the server said so, and where it was looked for.
	region, askedRegion string
	skew                time.Duration // what our clock is ahead of the server's; 0: not known
	retryAfter          time.Duration // how long the server wants to be left alone; 0: it does not say
}

func (r *refusal) Error() string {
	text := "HTTP status " + strconv.Itoa(r.status)
	if known := http.StatusText(r.status); known != "" {
		text += " " + known
	}
	for _, part := range []string{r.code, r.message} {
		if part != "" {
			text += ": " + part
		}
	}
	return text
}

// credentialsError is a failure to get credentials.
type credentialsError struct {
	err     error
	cause   string // empty: those that are configured cannot be had
	subject string // who the identity that was shown is about; empty: not known
}

func (e *credentialsError) Error() string { return "AWS credentials: " + e.err.Error() }
func (e *credentialsError) Unwrap() error { return e.err }

// reason renders the text of an error without what must not be printed. The error of a request is
// cut down to its cause, as what is before it is the whole URL.
func reason(err error) string {
	var (
		credentials *credentialsError
		transport   *url.Error
	)
	if !errors.As(err, &credentials) && errors.As(err, &transport) {
		err = transport.Err
	}
	return shortened(printable(scrub(err.Error())), longest)
}

// Characters of foreign text that are shown.
const (
	longest = 500 // of an error
	clipped = 80  // of a value
)

var (
	queryPattern    = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>?#]*)[?#](?:…|[^\s"'<>]*)`)
	userinfoPattern = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s"'<>/?#]*@`)
	// An account is a part of ARNs, and elsewhere twelve digits beside that word.
	accountPattern = regexp.MustCompile(`(?i)(arn:[a-z0-9-]*:[a-z0-9-]*:[a-z0-9-]*:|\baccount\W{0,3}(?:id|number)?\W{0,4})[0-9]{12}\b`)
	// Keys and roles have names of their own: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
	keyPattern   = regexp.MustCompile(`\b(AKIA|ASIA|AROA|AIDA|AIPA|ANPA|ABIA|ACCA|AGPA|ASCA)[A-Z0-9]{12,}`)
	tokenPattern = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)?`)
	fieldPattern = regexp.MustCompile(`(?i)\b((?:x-amz-)?(?:signature|credential|security-token)\s*[=:]\s*|bearer\s+)[^\s"'<>&,;]+`)
)

// scrub removes from text the parts of URLs that may carry secrets, and what is known to be one wherever it stands:
// account numbers, keys, tokens, signatures.
func scrub(text string) string {
	text = userinfoPattern.ReplaceAllString(text, "$1")
	text = queryPattern.ReplaceAllString(text, "$1?…")
	text = tokenPattern.ReplaceAllString(text, "…")
	text = fieldPattern.ReplaceAllString(text, "${1}…")
	text = keyPattern.ReplaceAllString(text, "${1}…")
	return accountPattern.ReplaceAllString(text, "${1}…")
}

// clip makes a foreign value fit for a message that quotes it.
func clip(value string) string {
	return shortened(value, clipped)
}

// printable makes foreign text fit for one line: a line of a server's could be a command to the CI
// that reads ours.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

func shortened(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// Scrub returns text without the secrets, the queries of URLs and the account numbers that may be in it.
func Scrub(text string) string { return scrub(text) }
