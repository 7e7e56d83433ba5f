package cluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

const (
	fetchTries = 5
	maxHeader  = 4 << 10 // bytes of the first line
)

// Fetched is a file that was brought home.
type Fetched struct {
	Size   int64
	SHA256 string // lower-case hex
}

// Fetch copies a file of a container to dst, which must not exist. The container runs
//
//	/vllm-vcr capture pod send --dir DIR FILE --offset N
//
// which writes a line of JSON with the file's name, its size, the offset and the sha256 of the whole file, and then the
// bytes from the offset on. A stream that ends early, or brings nothing for as long as [Options.Stall], is taken up where
// it ended, five times in all. dst appears when length and digest are right, and not before.
func (c *Client) Fetch(ctx context.Context, pod, container, dir, file, dst string) (Fetched, error) {
	done, err := c.fetch(ctx, pod, container, dir, file, dst)
	return done, c.explain(fmt.Sprintf("fetch %s of container %s of pod %s", file, container, pod), err)
}

func (c *Client) fetch(ctx context.Context, pod, container, dir, file, dst string) (Fetched, error) {
	if _, err := os.Lstat(dst); !errors.Is(err, fs.ErrNotExist) {
		return Fetched{}, fmt.Errorf("%s: %w: it is not replaced", dst, cmp.Or(err, fs.ErrExist))
	}
	part, err := os.CreateTemp(filepath.Dir(dst), "."+filepath.Base(dst)+".*.part")
	if err != nil {
		return Fetched{}, err
	}
	defer os.Remove(part.Name())
	defer part.Close()
	r := &receiver{file: file, out: part, sum: sha256.New()}
	if err := c.receive(ctx, pod, container, dir, r); err != nil {
		return Fetched{}, err
	}
	if err := errors.Join(part.Sync(), part.Close()); err != nil {
		return Fetched{}, err
	}
	if err := os.Link(part.Name(), dst); err != nil {
		return Fetched{}, fmt.Errorf("the whole file is here, but not %s: %w", dst, err)
	}
	return Fetched{Size: r.head.Size, SHA256: r.head.SHA256}, nil
}

// receive asks until everything is here, and right.
func (c *Client) receive(ctx context.Context, pod, container, dir string, r *receiver) error {
	for try := 1; ; try++ {
		err := c.receiveSome(ctx, pod, container, dir, r)
		if err == nil || ctx.Err() != nil || !r.worthAnother(err) {
			return err
		}
		if try == fetchTries {
			return fmt.Errorf("after %d tries and %d bytes: %w", try, r.have, err)
		}
		c.opt.Log.Warn("taking up a file again", "file", r.file, "pod", pod, "offset", r.have, "error", err)
		if err := retry.Pause(ctx, c.backoff(try)); err != nil {
			return err
		}
	}
}

func (c *Client) receiveSome(ctx context.Context, pod, container, dir string, r *receiver) error {
	watched, alive, stop := retry.Watch(ctx, c.opt.Stall)
	defer stop()
	watched, cancel := context.WithCancelCause(watched)
	defer cancel(nil)
	to := r.begin(alive, cancel)
	command := []string{
		c.opt.Program, "capture", "pod", "send", "--dir", dir, r.file, "--offset", strconv.FormatInt(r.have, 10),
	}
	return r.end(c.exec(watched, pod, container, command, to))
}

// A header is the first line of what is sent.
type header struct {
	File   string `json:"file"`
	Size   int64  `json:"size"`
	Offset int64  `json:"offset"`
	SHA256 string `json:"sha256"` // of the whole file
}

var (
	errTruncated = errors.New("the stream ended early")
	errDigest    = errors.New("the copy has another sha256 than the file")
)

// A receiver is written what a container sends, over one or several streams.
type receiver struct {
	file string
	out  *os.File
	sum  hash.Hash
	have int64 // bytes of the file
	head *header

	mu     sync.Mutex
	stream *stream
}

// A stream is one of them. It is written to until its receiver has let go of it.
type stream struct {
	to     *receiver
	line   []byte // of the header so far
	begun  bool   // the header is complete
	alive  func()
	cancel context.CancelCauseFunc
	err    error
}

// begin makes way for the next stream.
func (r *receiver) begin(alive func(), cancel context.CancelCauseFunc) io.Writer {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream = &stream{to: r, alive: alive, cancel: cancel}
	return r.stream
}

// Write is called by a goroutine of the library, which may outlive the stream. Its error would only be logged there.
func (s *stream) Write(p []byte) (int, error) {
	s.to.mu.Lock()
	defer s.to.mu.Unlock()
	if s.to.stream != s || s.err != nil {
		return 0, io.ErrClosedPipe
	}
	s.alive()
	if s.err = s.take(p); s.err != nil {
		s.cancel(s.err)
		return 0, s.err
	}
	return len(p), nil
}

func (s *stream) take(p []byte) error {
	if !s.begun {
		line, rest, whole := bytes.Cut(p, []byte("\n"))
		if s.line = append(s.line, line...); len(s.line) > maxHeader {
			return &protocolError{fmt.Sprintf("the first %d bytes are no header", maxHeader)}
		}
		if !whole {
			return nil
		}
		if err := s.to.setHead(s.line); err != nil {
			return err
		}
		s.begun, p = true, rest
	}
	r := s.to
	if int64(len(p)) > r.head.Size-r.have {
		return &protocolError{fmt.Sprintf("more than the %d bytes that it announced", r.head.Size)}
	}
	n, err := r.out.Write(p)
	r.have += int64(n)
	r.sum.Write(p[:n])
	if err != nil {
		return &diskError{err}
	}
	return nil
}

// setHead reads the header of a stream, and holds it to what was asked for and to that of the stream before.
func (r *receiver) setHead(line []byte) error {
	var h header
	if err := json.Unmarshal(line, &h); err != nil {
		return &protocolError{fmt.Sprintf("its first line is no header: %.200q", line)}
	}
	digest, err := hex.DecodeString(h.SHA256)
	switch {
	case h.File != r.file:
		return &protocolError{fmt.Sprintf("it sends %q", h.File)}
	case h.Size < r.have || h.Offset != r.have:
		return &protocolError{fmt.Sprintf("asked for byte %d on, it sends %d to %d", r.have, h.Offset, h.Size)}
	case err != nil || len(digest) != r.sum.Size() || h.SHA256 != hex.EncodeToString(digest):
		return &protocolError{fmt.Sprintf("%.80q is not a sha256", h.SHA256)}
	case r.head != nil && (r.head.Size != h.Size || r.head.SHA256 != h.SHA256):
		return &protocolError{"the file changed while it was fetched"}
	}
	r.head = &h
	return nil
}

// end lets go of the stream, which ended with an error or none, and says whether the file is here.
func (r *receiver) end(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stream
	r.stream = nil
	switch whole := r.head != nil && r.have >= r.head.Size; {
	case s.err != nil:
		return s.err
	case whole:
	case err != nil:
		return err
	case r.head == nil:
		return fmt.Errorf("%w, without a header", errTruncated)
	default:
		return fmt.Errorf("%w, at %d of %d bytes", errTruncated, r.have, r.head.Size)
	}
	// Everything is here: how the stream came to its end does not matter if it is right.
	if got := hex.EncodeToString(r.sum.Sum(nil)); got != r.head.SHA256 {
		want := r.head.SHA256
		return errors.Join(fmt.Errorf("%w: %s, not %s", errDigest, got, want), r.restart())
	}
	return nil
}

// restart throws away what came.
func (r *receiver) restart() error {
	r.have, r.head = 0, nil
	r.sum.Reset()
	_, err := r.out.Seek(0, io.SeekStart)
	return errors.Join(err, r.out.Truncate(0))
}

// A protocolError is a sender that says what it should not.
type protocolError struct{ text string }

func (e *protocolError) Error() string { return "not what capture pod send sends: " + e.text }

// A diskError is about our own file.
type diskError struct{ error }

func (e *diskError) Unwrap() error { return e.error }

// worthAnother reports whether to ask for the rest.
func (r *receiver) worthAnother(err error) bool {
	var wrong *protocolError
	var disk *diskError
	var remote *remoteError
	switch {
	case errors.As(err, &wrong), errors.As(err, &disk):
		return false
	case errors.Is(err, retry.ErrStalled), errors.Is(err, errTruncated), errors.Is(err, errDigest):
		return true
	case errors.As(err, &remote):
		return r.head != nil // it was killed; one that refuses does so before it sends anything
	}
	return worthAnother(err)
}
