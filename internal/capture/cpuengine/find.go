package cpuengine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// Find returns the engine and the frontend of a release if they are there whole, and installs nothing. The error of a
// release that was never installed is [fs.ErrNotExist].
func Find(ctx context.Context, opt Options) (Engine, error) {
	in, err := newInstaller(opt)
	if err != nil {
		return Engine{}, err
	}
	if home := filepath.Join(in.Dir, "engines", in.Release); !exists(home) {
		return Engine{}, fmt.Errorf("engine %s: there is no %s: %w", in.Release, home, fs.ErrNotExist)
	}
	engine, err := in.present(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New(err.Error()) // something is there, but not whole
	}
	if err != nil {
		return engine, fmt.Errorf("engine %s: it is not whole: %w", in.Release, err)
	}
	return engine, nil
}
