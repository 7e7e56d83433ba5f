package capture

import (
	"errors"
	"os"
	"syscall"
)

// lockFile takes a lock that ends with the process, however that ends. It is false where another process has it.
func lockFile(path string) (unlock func(), ok bool, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, false, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = nil
		}
		return nil, false, err
	}
	return func() { file.Close() }, true, nil
}
