package golden

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"time"
)

// A pin is what the bytes at a location must be.
type pin struct {
	location string // fit for messages
	sha256   string
	size     int64     // 0: any
	max      int64     // of any golden
	captured time.Time // zero: not known
}

func (p pin) valid() error {
	switch {
	case p.size < 0:
		return fmt.Errorf("registered size is %d bytes", p.size)
	case p.size > p.max:
		return &tooLargeError{fmt.Sprintf("registered size is %d bytes, but a golden may have %d at most", p.size, p.max)}
	}
	return validDigest(p.sha256)
}

// validDigest refuses what is no digest: it becomes a part of paths.
func validDigest(digest string) error {
	if len(digest) != sha256.Size*2 || strings.Trim(digest, "0123456789abcdef") != "" {
		return fmt.Errorf("registered sha256 %q is not 64 lowercase hexadecimal digits", clip(digest))
	}
	return nil
}

// limit is the number of bytes beyond which reading on is of no use.
func (p pin) limit() int64 {
	if p.size > 0 {
		return p.size
	}
	return p.max
}

// check judges bytes by their number and digest. More than the limit were not all read.
func (p pin) check(size int64, sum string) error {
	mismatch := &MismatchError{Location: p.location, WantSHA256: p.sha256, WantSize: p.size, GotSize: size, CapturedAt: p.captured}
	switch {
	case size > p.limit() && p.size == 0:
		return p.tooLarge()
	case size > p.limit():
		return mismatch
	case sum != p.sha256 || p.size > 0 && size != p.size:
		mismatch.GotSHA256 = sum
		return mismatch
	}
	return nil
}

func (p pin) tooLarge() error {
	return p.refused(&tooLargeError{fmt.Sprintf("more than the %d bytes that a golden may have", p.max)})
}

// A tooLargeError is a golden of more bytes than any may have.
type tooLargeError struct{ text string }

func (e *tooLargeError) Error() string { return e.text }

// refused is the error of a golden that nobody is asked for, or not for all of.
func (p pin) refused(err error) error {
	e := &FetchError{Location: p.location, Err: err}
	if errors.As(err, new(*tooLargeError)) {
		e.Cause, e.Hint = causeTooLarge, "correct the manifest, or allow more with --max-golden-size"
	}
	return e
}

// An input is where bytes are read from: a file as a rule.
type input interface {
	io.Reader
	io.Closer
}

// read verifies what the input has, and closes it unless the file that it returns needs it.
func (p pin) read(in input, form form) (got, error) {
	at, seekable := in.(io.ReaderAt)
	if form == inMemory || form == asFile && !seekable {
		defer in.Close()
		return p.readWhole(in, form)
	}
	g, err := p.measure(in)
	if err != nil || form == checked {
		in.Close()
		return g, err
	}
	g.file = &File{SectionReader: io.NewSectionReader(at, 0, g.size), From: p.location, closer: in}
	return g, nil
}

// readWhole is read into memory. A form of asFile gets a file that lies there: built in files need not be seekable.
func (p pin) readWhole(r io.Reader, form form) (got, error) {
	data, err := readUpTo(r, p.limit())
	if err != nil {
		return got{}, p.failed(err, 0)
	}
	if err := p.check(int64(len(data)), digest(data)); err != nil {
		return got{}, err
	}
	g := got{from: p.location, size: int64(len(data)), data: data}
	if form == asFile {
		g.data, g.file = nil, &File{SectionReader: io.NewSectionReader(bytes.NewReader(data), 0, g.size), From: p.location}
	}
	return g, nil
}

// measure is read in constant memory.
func (p pin) measure(r io.Reader) (got, error) {
	sum, size, err := digestOf(io.LimitReader(r, p.limit()+1))
	if err != nil {
		return got{}, p.failed(err, 0)
	}
	return got{from: p.location, size: size}, p.check(size, sum)
}

// cannot is the error of a download that ended after the given number of tries.
func (p pin) cannot(err error, tries int) error {
	var (
		known *FetchError
		cache *CacheError
	)
	if errors.As(err, &known) {
		return known
	}
	if errors.As(err, &cache) {
		e := &FetchError{Location: p.location, Err: err, Cause: causeCache}
		if cache.Dir != "" {
			e.Hint = "make room, correct its permissions, or name another directory in " + envCache
		}
		return e
	}
	e := p.failed(err, tries)
	var refused *Refusal
	if isHub(p.location) && errors.As(err, &refused) && refused.Status < http.StatusInternalServerError {
		known = e.(*FetchError)
		known.Hint = "check the location, and for a repository that is not public " + envHubToken
	}
	return e
}

// errOffline is why nothing remote was asked for.
var errOffline = errors.New("it is not in the cache, and the network is switched off")

func (p pin) offline() error {
	return &FetchError{
		Location: p.location, Err: fmt.Errorf("%w: sha256 %s", errOffline, p.sha256), Cause: causeOffline,
		Hint: "run `vllm-vcr golden pull` while online, and keep the cache",
	}
}

// readUpTo reads one byte more than limit at most, which shows that there is more. It allocates as
// bytes come, by nobody's claim but the file system's.
func readUpTo(r io.Reader, limit int64) ([]byte, error) {
	var data bytes.Buffer
	if f, ok := r.(fs.File); ok {
		if info, err := f.Stat(); err == nil {
			data.Grow(int(min(info.Size(), limit)) + bytes.MinRead) // it looks for the end in room of that size
		}
	}
	_, err := data.ReadFrom(io.LimitReader(r, limit+1))
	return data.Bytes(), err
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
