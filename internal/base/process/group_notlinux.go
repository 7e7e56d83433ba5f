//go:build unix && !linux

package process

import (
	"os/exec"
	"time"
)

const diesWithOwner = false

func ownGroup(cmd *exec.Cmd) { leadGroup(cmd) }

func groupWaited(int) time.Duration { return 0 } // unknown here

func groupRan(int) (time.Duration, bool) { return 0, false }
