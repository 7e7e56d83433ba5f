package golden

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// Published says what became of a file that was to be published.
type Published struct {
	Location string // as given; a relative path stays one
	SHA256   string // of the bytes, 64 lowercase hexadecimal digits
	Size     int64  // bytes
	// Existed tells that the location held these very bytes already, so that nothing was written.
	Existed bool
}

// Publish is [Store.Publish] of a store as the environment says. It returns the location.
func Publish(ctx context.Context, location, file string) (where string, err error) {
	p, err := new(Store).Publish(ctx, location, file)
	return p.Location, err
}

// Publish copies a regular file to a location: s3://bucket/key, file:///path or a path, a relative one below
// [Store.Dir]. It only ever creates. Where the location holds something, that must be the same bytes, which is no error;
// other bytes are one that is [fs.ErrExist], and stay as they are. What is published appears whole or not at all.
//
// To S3 the file goes with If-None-Match and its SHA-256, so the server refuses other bytes than were hashed. It is
// one request up to 5 GB, which is the most that S3 takes, and an upload in parts above.
//
// An error is a [*PublishError].
func (s *Store) Publish(ctx context.Context, location, file string) (Published, error) {
	p := &publication{store: s, shown: printable(scrub(location)), file: file}
	p.result.Location = location
	err := context.Cause(ctx)
	if err == nil {
		err = p.to(ctx, location)
	}
	if err != nil {
		return Published{}, p.failed(err)
	}
	s.log().Info("golden published", "golden", p.shown, "bytes", p.result.Size, "existed", p.result.Existed)
	return p.result, nil
}

// PublishError is a file that was not published.
type PublishError struct {
	Location string // without what must not be printed
	Status   int    // of HTTP; 0 if no server answered
	Tries    int    // uploads tried; 0 if none
	Cause    string // a word for the cause to search for, such as no-credentials; may be empty
	Hint     string // what to look at; may be empty
	// Err is the cause: fs.ErrExist, fs.ErrPermission and errors.ErrUnsupported can be told. Its own text may hold what
	// must not be printed.
	Err error
}

func (e *PublishError) Error() string {
	text := "publish to " + e.Location + ": " + reason(e.Err)
	if e.Tries > 1 {
		text += fmt.Sprintf(" (%d tries)", e.Tries)
	}
	return text + advice{e.Cause, e.Hint}.String()
}

// Unwrap returns the cause.
func (e *PublishError) Unwrap() error { return e.Err }

// publication is one call of [Store.Publish].
type publication struct {
	store  *Store
	shown  string // the location, fit for messages
	file   string
	tries  int
	result Published
}

func (p *publication) failed(err error) error {
	known := publishAdvice(err)
	e := &PublishError{Location: p.shown, Tries: p.tries, Cause: known.cause, Hint: known.hint, Err: err}
	var refused *refusal
	if errors.As(err, &refused) {
		e.Status = refused.status
	}
	return e
}

func (p *publication) to(ctx context.Context, location string) error {
	scheme, rest, hasScheme := strings.Cut(location, "://")
	switch {
	case location == "":
		return errors.New("the location is empty")
	case !hasScheme && filepath.IsAbs(location):
		return p.toFile(location)
	case !hasScheme:
		return p.toFile(filepath.Join(p.store.Dir, location))
	}
	switch strings.ToLower(scheme) {
	case "file":
		if !strings.HasPrefix(rest, "/") {
			return errors.New("a file location is file:// and an absolute path, such as file:///dir/file")
		}
		return p.toFile(filepath.FromSlash(rest))
	case "s3":
		bucket, key, _ := strings.Cut(rest, "/")
		if bucket == "" || key == "" {
			return errors.New("an S3 location is s3://bucket/key")
		}
		return p.toS3(ctx, bucket, key)
	}
	return fmt.Errorf("%w: scheme %q is not one of s3 and file", errors.ErrUnsupported, clip(scheme))
}

// otherBytes is the error of a place that is taken.
func (p *publication) otherBytes(size int64, digest string) error {
	if digest == "" {
		return fmt.Errorf("%w with other bytes: %d of them, not %d", fs.ErrExist, size, p.result.Size)
	}
	return fmt.Errorf("%w with other bytes: their sha256 is %s, not %s", fs.ErrExist, digest, p.result.SHA256)
}

// open opens the file that is to be published.
func (p *publication) open() (*os.File, error) {
	info, err := os.Stat(p.file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: p.file, Err: errors.New("not a regular file")}
	}
	return os.Open(p.file)
}

// measure hashes the file.
func (p *publication) measure() error {
	f, err := p.open()
	if err != nil {
		return err
	}
	defer f.Close()
	p.result.SHA256, p.result.Size, err = digestOf(f)
	return err
}

func digestOf(r io.Reader) (digest string, size int64, err error) {
	h := sha256.New()
	size, err = io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), size, err
}

// again waits before the next try, or returns err if there is to be none.
func (p *publication) again(ctx context.Context, try int, err error) error {
	var final *finalError
	if try == retry.Tries || ctx.Err() != nil || errors.As(err, &final) || !temporary(err) && !isConflict(err) {
		return err
	}
	wait := p.store.backoff(try)
	p.store.log().Warn("golden not published, trying again", "golden", p.shown, "try", try,
		"wait", wait.Round(time.Millisecond), "error", reason(err))
	return retry.Pause(ctx, wait)
}

// isConflict tells whether another upload of the same key was under way, which says nothing about this one.
func isConflict(err error) bool {
	var refused *refusal
	return errors.As(err, &refused) && refused.status == http.StatusConflict
}

// publishAdvice says what to look at after a failure.
func publishAdvice(err error) advice {
	var refused *refusal
	switch {
	case errors.Is(err, fs.ErrExist):
		return advice{causeExists, "nothing is ever overwritten: choose another name, or remove what is there"}
	case errors.As(err, &refused):
		return refused.writeAdvice()
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		return advice{}
	}
	return adviceOn(err)
}

// writeAdvice is what s3Advice is for those who read.
func (r *refusal) writeAdvice() advice {
	known := r.s3Advice()
	switch {
	case r.status == http.StatusNotImplemented:
		return advice{causeNoCondition, "the store does not know If-None-Match, without which it might overwrite"}
	case known.cause == causeNoBucket:
		known.hint = "there is no such bucket: check the location and AWS_ENDPOINT_URL"
	case known.cause == causeDenied:
		known.hint = "the credentials may not write this key, or not read it to compare"
	case known.cause == causeNoCredentials, known.cause == causeFork:
		known.hint = "no AWS credentials were found, so the request was not signed" + forkHint()
	}
	return known
}
