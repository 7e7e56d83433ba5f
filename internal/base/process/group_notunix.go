//go:build !unix

package process

import (
	"os/exec"
	"time"
)

const diesWithOwner = false

func ownGroup(*exec.Cmd) {}

func terminateGroup(cmd *exec.Cmd) { killGroup(cmd) }

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

func guardGroup(*exec.Cmd) (release func()) { return func() {} }

func groupWaited(int) time.Duration { return 0 } // unknown here

func groupRan(int) (time.Duration, bool) { return 0, false }
