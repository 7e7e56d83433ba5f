package main

import (
	"io"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// prefixed is the environment of a part of serve: its log has a prefix before each line, unless it is JSON.
// muted drops it.
func (env *environment) prefixed(prefix string, muted func() bool) *environment {
	inner := *env
	w := mutedWriter{env.stderr, muted}
	if inner.stderr = w; env.logFormat == "text" {
		inner.stderr = &prefixed{prefix: prefix, w: w}
	}
	inner.openLog()
	return &inner
}

// mutedWriter drops what is written while it is muted.
type mutedWriter struct {
	io.Writer
	muted func() bool
}

func (w mutedWriter) Write(text []byte) (int, error) {
	if w.muted() {
		return len(text), nil
	}
	return w.Writer.Write(text)
}

// frontendLog takes what a frontend writes.
func (env *environment) frontendLog() io.Writer {
	switch {
	case env.quiet:
		return io.Discard
	case env.logFormat == "json":
		return &prefixed{w: jsonLines{env.stderr}}
	}
	return &prefixed{prefix: "frontend: ", w: safetext.LineWriter{W: env.stderr}}
}

// jsonLines writes lines of a frontend as JSON.
type jsonLines struct{ w io.Writer }

func (j jsonLines) Write(text []byte) (int, error) {
	line, err := jsonout.Line(struct {
		From string `json:"from"`
		Text string `json:"msg"`
	}{"frontend", strings.TrimRight(string(text), "\n")})
	if err == nil {
		_, err = j.w.Write(line)
	}
	return len(text), err
}

// prefixed is a writer that puts a prefix before each line, for logs of several programs in one.
type prefixed struct {
	prefix string
	w      io.Writer
	rest   []byte
}

// maxLine bounds the part of a line that is kept until its end comes, in bytes.
const maxLine = 64 << 10

// Write never fails: an error would end the reading of a process that goes on writing.
func (p *prefixed) Write(text []byte) (int, error) {
	p.rest = append(p.rest, text...)
	for {
		line, rest, ended := strings.Cut(string(p.rest), "\n")
		if !ended && len(line) < maxLine {
			return len(text), nil
		}
		_, _ = io.WriteString(p.w, p.prefix+strings.TrimRight(line, "\r")+"\n")
		p.rest = append(p.rest[:0], rest...)
	}
}
