package load

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// The files that say something by being there.
const (
	Begun      = "load-begun"
	Done       = "load-done"
	Ready      = "ready"
	Fetched    = "fetched"
	FailedFile = "failed"
)

// The files that there are to fetch: of the tap, and of the load generator.
const (
	Trace      = "trace.jsonl.gz"
	Steps      = "steps.jsonl.gz"
	Frames     = "frames.jsonl.gz"
	ReportFile = "load.json"
	Requests   = "requests.jsonl.gz"
)

// look is how often a folder is looked at: one waits for a file for minutes.
const look = 200 * time.Millisecond

// A Dir is the folder that is shared.
type Dir struct {
	Path string
}

func (d Dir) path(name string) string { return filepath.Join(d.Path, name) }

// Has reports whether a file is there.
func (d Dir) Has(name string) (bool, error) {
	_, err := os.Stat(d.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Begin makes the folder the caller's. It fails where another load has begun, or left anything.
func (d Dir) Begin() error {
	if info, err := os.Stat(d.Path); err != nil {
		return fmt.Errorf("no folder for the capture: %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("%s: want the folder of the capture, not a file", d.Path)
	}
	for _, name := range []string{Begun, Done, Ready, Fetched, FailedFile, ReportFile, Requests} {
		if there, err := d.Has(name); err != nil {
			return err
		} else if there {
			return d.taken(name)
		}
	}
	file, err := os.OpenFile(d.path(Begun), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return d.taken(Begun)
	}
	if err != nil {
		return fmt.Errorf("the folder of the capture cannot be written to: %w", err)
	}
	return file.Close()
}

func (d Dir) taken(name string) error {
	return fmt.Errorf("%s exists: another load wrote to this folder; use an empty folder", d.path(name))
}

// Tell puts a file there that says something, with a text in it. A second one changes nothing.
func (d Dir) Tell(name, text string) error {
	there, err := d.Has(name)
	if there || err != nil {
		return err
	}
	file, err := os.CreateTemp(d.Path, "."+name+"-*")
	if err != nil {
		return fmt.Errorf("tell %s: %w", name, err)
	}
	_, err = file.WriteString(text)
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(file.Name(), d.path(name))
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("tell %s: %w", name, err)
	}
	return nil
}

// Wait waits until all files are there. After patience it fails, naming the first that is not; an error is else the cause
// of the context's end.
func (d Dir) Wait(ctx context.Context, patience time.Duration, names ...string) error {
	late := errors.New("late")
	ctx, cancel := context.WithTimeoutCause(ctx, patience, late)
	defer cancel()
	for _, name := range names {
		for {
			there, err := d.Has(name)
			if err != nil {
				return err
			}
			if there {
				break
			}
			if err := retry.Pause(ctx, look); errors.Is(err, late) {
				return &LateError{Path: d.path(name), Patience: patience}
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

// A LateError is a file that did not come up in time.
type LateError struct {
	Path     string
	Patience time.Duration
}

func (e *LateError) Error() string {
	return fmt.Sprintf("%s did not come up within %v", e.Path, e.Patience)
}

// IsReady is nil once everything can be fetched. A load that has failed is an error with its reason.
func (d Dir) IsReady() error {
	if there, err := d.Has(Ready); there || err != nil {
		return err
	}
	if reason, err := os.ReadFile(d.path(FailedFile)); err == nil {
		return fmt.Errorf("the load has failed: %s", strings.TrimSpace(string(reason)))
	}
	return fmt.Errorf("%s is not there yet", d.path(Ready))
}

// Release lets the pod end: everything was fetched. There must be something that was.
func (d Dir) Release() error {
	if err := d.IsReady(); err != nil {
		return err
	}
	return d.Tell(Fetched, "")
}
