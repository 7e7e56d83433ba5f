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
	"sync"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/capture/load"
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
//	/vllm-vcr capture pod send --dir DIR FILE
//
// which writes a [load.Header] as a line of JSON, and then the bytes of the file. A stream that ends early, or brings nothing for as
// long as [Options.Stall], is begun again, five times in all. dst appears when length and digest are right, and not before.
func (c *Client) Fetch(ctx context.Context, pod, container, dir, file, dst string) (Fetched, error) {
	done, err := c.fetch(ctx, pod, container, dir, file, dst)
	return done, c.explain(fmt.Sprintf("fetch %s of container %s of pod %s", file, container, pod), err)
}

func (c *Client) fetch(ctx context.Context, pod, container, dir, file, dst string) (got Fetched, err error) {
	if _, err := os.Lstat(dst); !errors.Is(err, fs.ErrNotExist) {
		return got, fmt.Errorf("%s: %w: it is not replaced", dst, cmp.Or(err, fs.ErrExist))
	}
	part, err := os.CreateTemp(filepath.Dir(dst), "."+filepath.Base(dst)+".*.part")
	if err != nil {
		return got, err
	}
	defer os.Remove(part.Name())
	defer part.Close()
	for try := 1; ; try++ {
		var again bool
		if got, again, err = c.receive(ctx, pod, container, dir, file, part); err == nil {
			break
		}
		if ctx.Err() != nil || !again {
			return got, err
		}
		if try == fetchTries {
			return got, fmt.Errorf("after %d tries: %w", try, err)
		}
		c.opt.Log.Warn("beginning a file again", "file", file, "pod", pod, "error", err)
		if err := retry.Pause(ctx, c.backoff(try)); err != nil {
			return got, err
		}
	}
	if err := errors.Join(part.Sync(), part.Close()); err != nil {
		return got, err
	}
	if err := os.Link(part.Name(), dst); err != nil {
		return got, fmt.Errorf("the whole file is here, but not %s: %w", dst, err)
	}
	return got, nil
}

// receive has the file sent once. again reports whether another try may end better.
func (c *Client) receive(ctx context.Context, pod, container, dir, file string, out *os.File) (got Fetched, again bool, err error) {
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return got, false, err
	}
	if err := out.Truncate(0); err != nil {
		return got, false, err
	}
	watched, alive, stop := retry.Watch(ctx, c.opt.Stall)
	defer stop()
	watched, cancel := context.WithCancelCause(watched)
	defer cancel(nil)
	r := &receiver{file: file, out: out, sum: sha256.New(), alive: alive, cancel: cancel}
	err = r.end(c.exec(watched, pod, container, []string{c.opt.Program, "capture", "pod", "send", "--dir", dir, file}, r))
	if err != nil {
		return got, r.worthAnother(err), err
	}
	return Fetched{Size: r.head.Size, SHA256: r.head.SHA256}, false, nil
}

var (
	errTruncated = errors.New("the stream ended early")
	errDigest    = errors.New("the copy has another sha256 than the file")
	errEnded     = errors.New("the stream is over")
)

// A receiver is written what a container sends. The goroutine of the library that writes may outlive the stream.
type receiver struct {
	file   string
	alive  func()
	cancel context.CancelCauseFunc

	mu   sync.Mutex
	out  *os.File
	sum  hash.Hash
	line []byte       // of the header, until it is whole
	head *load.Header // nil before
	have int64        // bytes of the file
	err  error        // of the receiver, or that it is over
}

// Write takes what comes. The library would only log the error.
func (r *receiver) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, r.err
	}
	r.alive()
	if r.err = r.take(p); r.err != nil {
		r.cancel(r.err)
		return 0, r.err
	}
	return len(p), nil
}

func (r *receiver) take(p []byte) error {
	if r.head == nil {
		line, rest, whole := bytes.Cut(p, []byte("\n"))
		if r.line = append(r.line, line...); len(r.line) > maxHeader {
			return &protocolError{fmt.Sprintf("the first %d bytes are no header", maxHeader)}
		}
		if !whole {
			return nil
		}
		if err := r.setHead(); err != nil {
			return err
		}
		p = rest
	}
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

// setHead reads the header, and holds it to what was requested.
func (r *receiver) setHead() error {
	var h load.Header
	if err := json.Unmarshal(r.line, &h); err != nil {
		return &protocolError{fmt.Sprintf("its first line is no header: %.200q", r.line)}
	}
	digest, err := hex.DecodeString(h.SHA256)
	switch {
	case h.File != r.file:
		return &protocolError{fmt.Sprintf("it sends %q", h.File)}
	case h.Size < 0:
		return &protocolError{fmt.Sprintf("it sends %d bytes", h.Size)}
	case err != nil || len(digest) != r.sum.Size() || h.SHA256 != hex.EncodeToString(digest):
		return &protocolError{fmt.Sprintf("%.80q is not a sha256", h.SHA256)}
	}
	r.head = &h
	return nil
}

// end takes nothing more of the stream, which ended with an error or none, and returns why the file is not here.
func (r *receiver) end(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.err
	r.err = errEnded
	switch whole := r.head != nil && r.have == r.head.Size; {
	case own != nil:
		return own
	case whole: // how the stream came to its end does not matter if everything is right
	case err != nil:
		return err
	case r.head == nil:
		return fmt.Errorf("%w, without a header", errTruncated)
	default:
		return fmt.Errorf("%w, at %d of %d bytes", errTruncated, r.have, r.head.Size)
	}
	if got := hex.EncodeToString(r.sum.Sum(nil)); got != r.head.SHA256 {
		return fmt.Errorf("%w: %s, not %s", errDigest, got, r.head.SHA256)
	}
	return nil
}

// A protocolError is a sender that says what it should not.
type protocolError struct{ text string }

func (e *protocolError) Error() string { return "not what capture pod send sends: " + e.text }

// A diskError is about our own file.
type diskError struct{ error }

func (e *diskError) Unwrap() error { return e.error }

// worthAnother reports whether to have the file sent again.
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
