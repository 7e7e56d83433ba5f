package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

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
// bytes from the offset on. A stream that ends early, or stands still for as long as [Options.Stall], is taken up where
// it ended, five times in all. dst appears when length and digest are right, and not before.
func (c *Client) Fetch(ctx context.Context, pod, container, dir, file, dst string) (Fetched, error) {
	done, err := c.fetch(ctx, pod, container, dir, file, dst)
	return done, c.explain(fmt.Sprintf("fetch %s of container %s of pod %s", file, container, pod), err)
}

func (c *Client) fetch(ctx context.Context, pod, container, dir, file, dst string) (Fetched, error) {
	if _, err := os.Lstat(dst); !errors.Is(err, fs.ErrNotExist) {
		return Fetched{}, fmt.Errorf("%s: %w: it is not replaced", dst, errorOr(err, fs.ErrExist))
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

func errorOr(err, usual error) error {
	if err != nil {
		return err
	}
	return usual
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
