package vllmrs

import (
	"bytes"
	"context"
	"io"
	"log/slog"
)

// maxLogLine bounds the part of a line that is kept until its end comes, in bytes.
const maxLogLine = 64 << 10

// lineLog returns a writer that logs each line at debug level, or nil if nobody listens at that level.
func lineLog(log *slog.Logger) io.Writer {
	if !log.Enabled(context.Background(), slog.LevelDebug) {
		return nil
	}
	return &lineWriter{log: log}
}

type lineWriter struct {
	log  *slog.Logger
	rest []byte // of a line without its end
}

func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for {
		line, rest, ended := bytes.Cut(p, []byte("\n"))
		w.rest = append(w.rest, line...)
		if ended || len(w.rest) > maxLogLine {
			w.log.Debug("vllm-rs", "line", string(bytes.TrimRight(w.rest, "\r")))
			w.rest = w.rest[:0]
		}
		if !ended {
			return n, nil
		}
		p = rest
	}
}
