package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// lockPause is between two looks at whether another installation has ended.
const lockPause = 200 * time.Millisecond

// lock makes sure that no other process installs meanwhile, and waits for one that does. The lock ends with the
// process, however that ends.
func (in *installer) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(in.Dir, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(in.Dir, ".lock")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; told = true {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			in.Progress("wait for another installation into " + in.Dir)
		}
		if err := retry.Pause(ctx, lockPause); err != nil {
			file.Close()
			return nil, fmt.Errorf("another process installs into %s: %w", in.Dir, err)
		}
	}
}
