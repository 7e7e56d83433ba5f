// Package process runs a program as a child that cannot outlive, hang or flood its owner.
//
// [Start] takes an [exec.Cmd] that was not started and returns a [Process]. Its end is an event, [Process.Done], so that
// a caller that waits for an answer of the program can wait for its end too; [Process.Exit] then says how it ended,
// with the last of what it wrote. [Process.Stop] ends it: by SIGTERM, by SIGKILL when it does not go.
//
//	p, err := process.Start(exec.Command("vllm-rs", "serve", dir), process.Options{Name: "frontend"})
//	…
//	defer p.Stop(ctx)
//	select {
//	case <-ready:
//	case <-p.Done():
//		return p.Exit() // frontend (vllm-rs serve …) ended: exit status 1; the last of its output: …
//	}
//
// What is started is often a program of strangers, so no secret of the owner's environment reaches it unless somebody names
// it: see [Environment].
//
// # What each system gives
//
// On Unix the process leads a process group of its own, every signal goes to the group, and when the process has ended by
// itself the rest of its group is killed. A descendant that makes itself a new group is out of reach.
//
// On Linux the process is killed when its owner dies, however that dies. Elsewhere it lives on if the owner is killed. On
// any Unix all of its group is killed with the owner if it is [Options.Guarded].
//
// On Windows there are no such groups and no SIGTERM: stopping kills the process at once, and its own children are left.
package process
