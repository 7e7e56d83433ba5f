package golden

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
)

// Published says what became of a file that was to be published.
type Published struct {
	Location string // as given; a relative path stays one
	SHA256   string // of the bytes, 64 lowercase hexadecimal digits
	Size     int64  // bytes
	// Existed means that the location held these very bytes already, so that nothing was written.
	Existed bool
}

// Publish copies a regular file to a location: s3://bucket/key, file:///path or a path, a relative one below
// [Store.Dir]. It only ever creates. Where the location holds something, that must be the same bytes, which is not an error;
// other bytes are one that is [fs.ErrExist], and stay as they are. What is published appears whole or not at all.
//
// An error is a [*PublishError].
func (s *Store) Publish(ctx context.Context, location, file string) (Published, error) {
	p := &publication{store: s, shown: shown(location), file: file}
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
	// Err is the cause: fs.ErrExist, fs.ErrPermission and errors.ErrUnsupported can be distinguished. Its own text may hold what
	// must not be printed.
	Err error
}

func (e *PublishError) Error() string {
	text := "publish to " + e.Location + ": " + Reason(e.Err)
	if e.Tries > 1 {
		text += fmt.Sprintf(" (%d tries)", e.Tries)
	}
	return text + Advice{e.Cause, e.Hint}.String()
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

func (p *publication) upload() Upload {
	return Upload{File: p.file, SHA256: p.result.SHA256, Size: p.result.Size, Shown: p.shown}
}

func (p *publication) failed(err error) error {
	known := publishAdvice(err)
	e := &PublishError{Location: p.shown, Tries: p.tries, Cause: known.Cause, Hint: known.Hint, Err: err}
	var refused *Refusal
	if errors.As(err, &refused) {
		e.Status = refused.Status
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
		bucket, key, err := BucketAndKey(rest)
		if err != nil {
			return err
		}
		if err := p.measure(); err != nil {
			return err
		}
		objects, err := p.store.objects()
		if err != nil {
			return err
		}
		created, err := objects.Create(ctx, bucket, key, p.upload())
		p.result.Existed, p.tries = created.Existed, created.Tries
		return err
	}
	return fmt.Errorf("%w: scheme %q is not one of s3 and file", errors.ErrUnsupported, clip(scheme))
}

// An Upload is a file that is to become an object.
type Upload struct {
	File   string // its path
	SHA256 string // of its bytes, 64 lowercase hexadecimal digits
	Size   int64  // bytes
	Shown  string // its location, fit for messages
}

// Created says what became of an upload.
type Created struct {
	Existed bool // the object with these very bytes was there already
	Tries   int  // uploads tried
}

// OtherBytes is the error of a location that holds other bytes: so many, or if the number is the same, of a digest.
func (u Upload) OtherBytes(size int64, digest string) error {
	if digest == "" {
		return fmt.Errorf("%w with other bytes: %d of them, not %d", fs.ErrExist, size, u.Size)
	}
	return fmt.Errorf("%w with other bytes: their sha256 is %s, not %s", fs.ErrExist, digest, u.SHA256)
}

// Open opens the file. It refuses anything but a regular one.
func (u Upload) Open() (*os.File, error) { return openRegular(u.File) }

// measure hashes the file.
func (p *publication) measure() error {
	f, err := openRegular(p.file)
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

// publishAdvice says what to look at after a failure.
func publishAdvice(err error) Advice {
	switch {
	case errors.Is(err, fs.ErrExist):
		return Advice{causeExists, "nothing is ever overwritten: choose another name, or remove what is there"}
	case errors.As(err, new(*Refusal)):
		return adviceOn(err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		return Advice{}
	}
	return adviceOn(err)
}

// toFile publishes to a path of this machine.
func (p *publication) toFile(name string) error {
	// Nothing is written, and no permission to is needed, where the bytes are already.
	if _, err := os.Lstat(name); err == nil {
		return p.compareFile(name)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := openRegular(p.file)
	if err != nil {
		return err
	}
	defer f.Close()
	err = atomicfile.Create(name, 0o644, func(w io.Writer) error {
		p.result.SHA256, p.result.Size, err = digestOf(io.TeeReader(f, w))
		return err
	})
	if errors.Is(err, fs.ErrExist) { // somebody was faster
		return p.compareFile(name)
	}
	return err
}

// compareFile compares what has the name already with the file.
func (p *publication) compareFile(name string) error {
	// Who creates the file may have found the name taken before it read anything.
	if err := p.measure(); err != nil {
		return err
	}
	there := publication{file: name}
	if err := there.measure(); err != nil {
		return err
	}
	if there.result.SHA256 != p.result.SHA256 {
		return p.upload().OtherBytes(there.result.Size, there.result.SHA256)
	}
	p.result.Existed = true
	return nil
}
