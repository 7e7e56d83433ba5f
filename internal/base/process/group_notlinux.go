//go:build unix && !linux

package process

import "os/exec"

const diesWithOwner = false

func ownGroup(cmd *exec.Cmd) { leadGroup(cmd) }
