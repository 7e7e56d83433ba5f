package invariant

import (
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// session is what a frames file holds.
type session struct {
	name     string
	codec    *protocol.Codec
	messages []trace.Message
}

// sessions are all frames files of released engines in the repository.
func sessions(tb testing.TB) (all []session) {
	tb.Helper()
	var files []string
	for _, pattern := range []string{"goldens/conformance/v*/*/*/*.jsonl.gz", "captures/*.jsonl.gz"} {
		some, err := filepath.Glob(filepath.Join("../../../testdata", pattern))
		if err != nil {
			tb.Fatal(err)
		}
		files = append(files, some...)
	}
	for _, file := range files {
		release := releaseIn.FindStringSubmatch(file)
		if isTrace := strings.Contains(file, ".trace."); isTrace || release == nil {
			continue
		}
		codec, err := protocol.CodecFor(release[1])
		if err != nil {
			tb.Fatal(file, err)
		}
		reader, err := trace.OpenFrames(file, trace.Options{})
		if err != nil {
			tb.Fatal(err)
		}
		defer reader.Close()
		s := session{name: file, codec: codec}
		for {
			var m trace.Message
			if err := reader.Next(&m); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				s.messages = nil // a trace, which has no frames
				break
			}
			for i := range m.Frames {
				m.Frames[i] = append([]byte(nil), m.Frames[i]...)
			}
			s.messages = append(s.messages, m)
		}
		if s.messages != nil {
			all = append(all, s)
		}
	}
	if len(all) < 9+3 {
		tb.Fatalf("%d sessions, want one of each line, and the captures", len(all))
	}
	return all
}

// releaseIn is the line in the name of a file.
var releaseIn = regexp.MustCompile(`[/v](0\.\d+)\.\d+[/-]`)

// judge follows a session.
func judge(s session) (found []check.Failure) {
	e := NewSession(s.codec, Options{})
	for i := range s.messages {
		found = append(found, e.Message(i+1, &s.messages[i])...)
	}
	return append(found, e.Rest()...)
}

// Nothing is wrong with what released engines said.
func TestReleasedEngines(t *testing.T) {
	for _, s := range sessions(t) {
		for _, f := range judge(s) {
			t.Errorf("%s: %s %s", s.name, f.Code, f.Message)
		}
	}
}

// BenchmarkSession follows the session of the newest line.
func BenchmarkSession(b *testing.B) {
	all := sessions(b)
	s := all[len(all)-4]
	messages := 0
	for b.Loop() {
		judge(s)
		messages += len(s.messages)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(messages), "ns/message")
	b.ReportAllocs()
}
