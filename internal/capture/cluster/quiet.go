package cluster

import (
	"context"
	"log/slog"
	"sync"

	"k8s.io/klog/v2"
)

var quietOnce sync.Once

// quiet keeps the library from writing to stderr by itself. Its log is one for the whole process, so the first client's
// gets it. What it calls an error is for us to judge: it is shown only to whom asks for everything.
func quiet(log *slog.Logger) {
	quietOnce.Do(func() { klog.SetSlogLogger(slog.New(debugOnly{log.Handler()})) })
}

// debugOnly makes a debug message of all messages.
type debugOnly struct{ slog.Handler }

func (d debugOnly) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle looks again, as errors come without a look at Enabled.
func (d debugOnly) Handle(ctx context.Context, r slog.Record) error {
	if !d.Handler.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

func (d debugOnly) WithAttrs(attrs []slog.Attr) slog.Handler {
	return debugOnly{d.Handler.WithAttrs(attrs)}
}

func (d debugOnly) WithGroup(name string) slog.Handler { return debugOnly{d.Handler.WithGroup(name)} }

// warnings logs what an API server warns of, such as a version that will go.
type warnings struct{ log *slog.Logger }

func (w warnings) HandleWarningHeader(_ int, _, text string) {
	w.log.Info("the API server warns", "text", text)
}
