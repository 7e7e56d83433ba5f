package golden

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// download gets a remote source into the cache, in several tries if that may help.
func (s *Store) download(ctx context.Context, p pin, src source, version string, form form) (got, error) {
	start := time.Now()
	out, err := s.newSink(p, form)
	if err != nil {
		return got{}, p.cannot(err, 0)
	}
	defer out.discard()
	ctx, stop := retry.WithLongest(ctx, p.limit())
	defer stop()
	t := transfer{store: s, pin: p, src: src, out: out, from: Span{Version: version}, size: -1}
	if err := t.run(ctx); err != nil {
		return got{}, p.cannot(err, t.tries)
	}
	g, err := out.finish()
	if err == nil {
		s.log().Info("golden downloaded", "golden", p.location, "bytes", g.size, "tries", t.tries,
			"duration", time.Since(start).Round(time.Millisecond))
	}
	var mismatch *MismatchError
	if errors.As(err, &mismatch) { // add what the server said of the wrong bytes
		mismatch.Modified, mismatch.ETag, mismatch.VersionID = t.last.Modified, t.last.ETag, t.last.Version
	}
	return g, err
}

// A transfer is the download of one object from one place.
type transfer struct {
	store *Store
	pin   pin
	src   source
	out   *sink
	from  Span  // that the next try requests
	size  int64 // of the whole object in bytes; -1: not known
	last  Body  // that was read from; closed
	tries int
}

// run makes the tries.
func (t *transfer) run(ctx context.Context) error {
	for {
		t.tries++
		err := t.attempt(ctx)
		if err == nil {
			return nil
		}
		if t.tries == retry.Tries || ctx.Err() != nil || !Temporary(err) {
			return err
		}
		if err := t.prepare(err); err != nil {
			return err
		}
		wait := t.store.wait(t.tries, err)
		what := cmp.Or(t.pin.what, "golden")
		t.store.log().Warn(what+" not downloaded, trying again", what, t.pin.location, "try", t.tries, "wait", wait,
			"from", t.from.Offset, "error", Reason(err))
		if err := retry.Pause(ctx, wait); err != nil {
			return err
		}
	}
}

// prepare says where the next try begins: behind what there is, if the rest can be requested of that very
// object. A weak ETag does not name bytes.
func (t *transfer) prepare(err error) error {
	if !errors.As(err, new(*changedError)) && t.out.size > 0 && t.from.ETag != "" && !strings.HasPrefix(t.from.ETag, "W/") {
		t.from.Offset = t.out.size
		return nil
	}
	return t.restart()
}

// restart forgets what there is.
func (t *transfer) restart() error {
	t.from.Offset, t.from.ETag, t.size = 0, "", -1
	return t.out.restart()
}

// attempt opens and reads the source once. If it was ended from outside, the error is the cause.
func (t *transfer) attempt(ctx context.Context) error {
	ctx, alive, stop := retry.WatchRate(ctx, t.store.Stall)
	defer stop()
	err := t.readOnce(ctx, alive)
	// Even without an error: a server that sees us leave may still end its answer in good order.
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (t *transfer) readOnce(ctx context.Context, alive func(bytes int)) error {
	body, err := t.src.open(ctx, t.from)
	if err != nil {
		return t.refusedRest(err)
	}
	defer body.Close()
	alive(0)
	if err := t.accept(body); err != nil {
		return err
	}
	return t.copy(body, alive)
}

// refusedRest distinguishes the refusal of the rest of an object from that of an object.
func (t *transfer) refusedRest(err error) error {
	var refused *Refusal
	if t.from.Offset > 0 && errors.As(err, &refused) {
		switch refused.Status {
		case http.StatusPreconditionFailed, http.StatusRequestedRangeNotSatisfiable:
			return &changedError{err}
		}
	}
	return err
}

// changedError is an object that is another one now than at the try before, or a server that does not say.
type changedError struct{ err error }

func (e *changedError) Error() string {
	return "the object changed while it was read: " + e.err.Error()
}
func (e *changedError) Unwrap() error { return e.err }

// accept looks at what is about to come. Bytes of different objects must never be put together.
func (t *transfer) accept(body *Body) error {
	switch {
	case body.Offset == 0 && t.out.size > 0: // the server sends all of it again
		if err := t.restart(); err != nil {
			return err
		}
	case body.Offset != t.out.size:
		return &changedError{fmt.Errorf("asked for the bytes from %d on, and got those from %d on", t.out.size, body.Offset)}
	case body.Size >= 0 && t.size >= 0 && body.Size != t.size:
		return &changedError{fmt.Errorf("it had %d bytes, and has %d", t.size, body.Size)}
	case body.ETag != "" && t.from.ETag != "" && body.ETag != t.from.ETag:
		return &changedError{fmt.Errorf("its ETag was %s, and is %s", clip(t.from.ETag), clip(body.ETag))}
	}
	t.size, t.from.ETag, t.last = body.Size, body.ETag, *body
	if t.pin.size == 0 && body.Size > t.pin.max {
		return t.pin.tooLarge()
	}
	return nil
}

// copyBuffer is the size of one read: large enough that system calls do not count.
const copyBuffer = 256 << 10

// copy reads up to the end, or one byte more than anybody can want, which shows that there is more.
func (t *transfer) copy(body io.Reader, alive func(bytes int)) error {
	buffer := make([]byte, copyBuffer)
	for most := t.pin.limit() + 1; t.out.size < most; {
		n, err := body.Read(buffer[:min(copyBuffer, most-t.out.size)])
		if n > 0 {
			alive(n)
			if _, err := t.out.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF && t.out.size < t.size {
			err = io.ErrUnexpectedEOF // a server may send less of a range than was requested
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return &brokenBody{read: t.out.size, err: err}
		}
	}
	return nil
}

// brokenBody is a response that ended before its end.
type brokenBody struct {
	read int64 // bytes of the object
	err  error
}

func (e *brokenBody) Error() string { return fmt.Sprintf("after %d bytes: %v", e.read, e.err) }
func (e *brokenBody) Unwrap() error { return e.err }

// Temporary reports whether another try may end better: yes if the server is overloaded or the
// connection broke, no if the server has decided, or the connection cannot be.
func Temporary(err error) bool {
	var (
		refused     *Refusal
		adviser     Adviser
		dns         *net.DNSError
		certificate *tls.CertificateVerificationError
		body        *brokenBody
		transport   *url.Error
		changed     *changedError
		redirect    *redirectError
		proxy       *proxyError
	)
	switch {
	case errors.As(err, &changed):
		return true // from the start
	case errors.As(err, &refused):
		return refused.temporary()
	case errors.As(err, &proxy):
		return proxy.status >= http.StatusInternalServerError
	case errors.As(err, &adviser), errors.As(err, &certificate), errors.As(err, &redirect), errors.Is(err, http.ErrSchemeMismatch):
		return false
	case errors.As(err, &dns) && dns.IsNotFound:
		return false
	}
	return errors.Is(err, retry.ErrStalled) || errors.Is(err, retry.ErrSlow) || errors.As(err, &body) || errors.As(err, &transport)
}

func (r *Refusal) temporary() bool {
	switch r.Status {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// backoff is the wait after a try.
func (s *Store) backoff(try int) time.Duration {
	if s.Backoff != nil {
		return s.Backoff(try)
	}
	return retry.Backoff(try)
}

// wait is the time to the next try, as long as the server asked for if that is not too long.
func (s *Store) wait(try int, err error) time.Duration {
	wait := s.backoff(try)
	var refused *Refusal
	if errors.As(err, &refused) && refused.RetryAfter <= retry.LongestWait {
		return max(wait, refused.RetryAfter)
	}
	return wait
}

// A sink takes the bytes of a download: it hashes them and writes them into the cache, and also into memory if they are
// wanted there.
type sink struct {
	store  *Store
	pin    pin
	form   form
	hash   hash.Hash
	size   int64
	draft  *draft        // nil: the cache cannot be written
	memory *bytes.Buffer // nil: not wanted
}

// newSink begins an entry of the cache. To do without the cache is good enough only for what goes into memory.
func (s *Store) newSink(p pin, form form) (*sink, error) {
	k := &sink{store: s, pin: p, form: form, hash: sha256.New()}
	if form == inMemory {
		k.memory = new(bytes.Buffer)
	}
	dir, err := s.cacheDir()
	if err == nil {
		k.draft, err = newDraft(dir, p.sha256)
	}
	if err != nil {
		return k, k.without(err)
	}
	return k, nil
}

// without goes on without the cache, or says why that cannot be.
func (k *sink) without(err error) error {
	k.discard()
	dir, _ := k.store.cacheDir()
	failed := &CacheError{Dir: dir, Err: err}
	if k.form != inMemory {
		return failed
	}
	k.store.log().Warn("golden not cached", "golden", k.pin.location, "error", failed)
	return nil
}

func (k *sink) Write(b []byte) (int, error) {
	k.hash.Write(b)
	k.size += int64(len(b))
	if k.memory != nil {
		k.memory.Write(b)
	}
	if k.draft != nil {
		if _, err := k.draft.Write(b); err != nil {
			return len(b), k.without(err)
		}
	}
	return len(b), nil
}

// restart forgets all that was written.
func (k *sink) restart() error {
	k.hash.Reset()
	k.size = 0
	if k.memory != nil {
		k.memory.Reset()
	}
	if k.draft == nil {
		return nil
	}
	_, err := k.draft.Seek(0, io.SeekStart)
	if err == nil {
		err = k.draft.Truncate(0)
	}
	if err != nil {
		return k.without(err)
	}
	return nil
}

// finish verifies what was written, keeps it, and returns it in the form that is wanted.
func (k *sink) finish() (got, error) {
	if err := k.pin.check(k.size, hex.EncodeToString(k.hash.Sum(nil))); err != nil {
		return got{}, err
	}
	g := got{from: k.pin.location, size: k.size}
	if k.memory != nil {
		g.data = k.memory.Bytes()
	}
	if k.draft == nil {
		return g, nil
	}
	if err := k.draft.keep(k.pin.sha256); err != nil {
		if err := k.without(err); err != nil {
			return got{}, k.pin.cannot(err, 0)
		}
	}
	return g, nil
}

// discard removes what was not kept.
func (k *sink) discard() {
	if k.draft != nil {
		k.draft.discard()
	}
	k.draft = nil
}

// A draft is a file of the cache that is being written. It becomes an entry by one rename, so that an entry is whole or
// absent.
type draft struct {
	*os.File
	root *os.Root
	name string // in the root; empty once it is an entry
}

func newDraft(dir, digest string) (*draft, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	d := &draft{root: root, name: filepath.Join(tmpDir, digest[:8]+"-"+rand.Text())}
	if err = root.MkdirAll(tmpDir, 0o755); err == nil {
		err = root.MkdirAll(filepath.Dir(entryName(digest)), 0o755)
	}
	if err == nil {
		d.File, err = root.OpenFile(d.name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	removeAbandoned(root)
	return d, nil
}

// keep makes the draft the entry of the digest: readable for all and not writable, as an entry never changes. It
// does not wait for the disk: what a crash leaves is hashed before it is used, and waiting took a quarter of a download.
func (d *draft) keep(digest string) error {
	if err := errors.Join(d.Chmod(0o444), d.File.Close()); err != nil {
		return err
	}
	name := entryName(digest)
	err := d.root.Rename(d.name, name)
	if err != nil {
		// A folder of that name is in the way, or on Windows an entry that is corrupt.
		if err = d.root.RemoveAll(name); err == nil {
			err = d.root.Rename(d.name, name)
		}
	}
	if err == nil {
		d.name = ""
	}
	return err
}

// discard removes the draft, unless it became an entry.
func (d *draft) discard() {
	if d.name != "" {
		d.File.Close()
		d.root.Remove(d.name)
	}
	d.root.Close()
}

// abandoned is the age at which a draft is no longer written.
const abandoned = 24 * time.Hour

// removeAbandoned removes what killed processes left.
func removeAbandoned(root *os.Root) {
	drafts, _ := fs.ReadDir(root.FS(), tmpDir)
	for _, d := range drafts {
		if info, err := d.Info(); err == nil && time.Since(info.ModTime()) > abandoned {
			_ = root.Remove(filepath.Join(tmpDir, d.Name())) // another process may have
		}
	}
}
