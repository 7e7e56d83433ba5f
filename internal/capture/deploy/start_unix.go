//go:build unix

package deploy

import "syscall"

// start replaces this process by the helper.
func start(path string, args, env []string) (int, error) {
	return 0, syscall.Exec(path, append([]string{path}, args...), env)
}
