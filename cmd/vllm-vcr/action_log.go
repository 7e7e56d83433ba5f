package main

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"regexp"
	"sync"

	"github.com/vllm-vcr/conformance/internal/report"
)

// placedFindings are how many findings of a level are marked where they are. Another
// annotation says how the run ended.
const placedFindings = report.AnnotationLimit - 1

// placed is how a finding of compat.toml or the manifest is printed.
var placed = regexp.MustCompile(`^(.+):(\d+): ([A-Z]\d{3}) (error|warning): (.*)$`)

// actionLog passes on what a command writes, all into one stream so that the order
// stays, a line at a time. It remembers what the action repeats.
type actionLog struct {
	mu       sync.Mutex
	w        io.Writer
	part     [logStreams][]byte // the line that is not yet whole
	last     string             // line of stdout
	findings [][]string
}

// What an actionLog takes. Its lines are harmless already, and the annotations among them must stay what they are.
const (
	logStdout = iota
	logStderr
	logStreams
)

// stream is a writer for one of the streams.
func (l *actionLog) stream(number int) io.Writer { return logStream{l, number} }

type logStream struct {
	log    *actionLog
	number int
}

func (s logStream) Write(p []byte) (int, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	part := append(s.log.part[s.number], p...)
	defer func() { s.log.part[s.number] = part }()
	for {
		end := bytes.IndexByte(part, '\n')
		if end < 0 {
			return len(p), nil
		}
		line := string(part[:end])
		part = part[end+1:]
		if err := s.log.pass(s.number, line); err != nil {
			return 0, err
		}
	}
}

func (l *actionLog) pass(stream int, line string) error {
	switch finding := placed.FindStringSubmatch(line); {
	case stream == logStderr && finding != nil:
		l.findings = append(l.findings, finding[1:])
	case stream == logStdout && line != "":
		l.last = line
	}
	_, err := fmt.Fprintln(l.w, line)
	return err
}

// flush ends lines that were not ended.
func (l *actionLog) flush() {
	for number, part := range l.part {
		if len(part) > 0 {
			fmt.Fprintln(l.stream(number))
		}
	}
}

// annotate marks findings in files of the repository where they are.
func (l *actionLog) annotate(env *environment, dir string) {
	marked := map[string]int{}
	for _, f := range l.findings {
		file, line, code, level, text := f[0], f[1], f[2], f[3], f[4]
		if marked[level]++; marked[level] > placedFindings || !filepath.IsLocal(file) {
			continue
		}
		printWorkflowCommand(env, level, path.Join(dir, filepath.ToSlash(file)), line, code+" "+text)
	}
}
