package live

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
)

const CodeShutdown check.Code = "E021" // the engine did not end when told to

//go:embed shutdown.md
var shutdownCodes string

var shutdown = check.Check{Name: Shutdown, Codes: shutdownCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*live).checkShutdown)}

// checkShutdown ends the engine while a request is open, by SIGTERM if it is a
// process, and waits for its end.
func (l *live) checkShutdown() error {
	owner := l.s.Owner()
	switch {
	case owner.Remote:
		l.f.AddNote("somebody else runs the engine")
		return nil
	case l.env.KeepAlive != nil:
		l.f.AddNote("the engine is kept alive")
		return nil
	}
	if _, err := l.askLong(); err != nil {
		return err
	}
	owner.Lost = errShutDown
	owner.Cancel(context.Canceled)
	<-owner.Done
	l.f.Asserted++
	l.checkExit()
	return nil
}

var errShutDown = check.WithCode(check.CodeEngineEnded, fmt.Errorf("the shutdown case has ended it"))

func (l *live) checkExit() {
	ended, ok := l.s.Subject.(interface {
		End() (*process.ExitError, bool)
	})
	if !ok {
		return
	}
	exit, killed := ended.End()
	switch {
	case exit == nil:
		l.f.Fail(check.Failed(CodeShutdown, "the engine has not ended, not even by SIGKILL"))
	case killed:
		l.f.Fail(check.Failed(CodeShutdown, "the engine did not end within the grace after SIGTERM and was killed: %s\n%s", check.FirstLine(exit), safetext.Block(exit.Tail)).
			Compared("an end within the grace", exit.Status))
	default:
		l.f.AddNote("ended by SIGTERM: " + exit.Status)
	}
}
