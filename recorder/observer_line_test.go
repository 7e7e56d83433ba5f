package recorder

import (
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func TestObserveChoosesTheLine(t *testing.T) {
	for _, test := range []struct {
		name, reported, tag string
		line, log           string
	}{
		{name: "the one reported", reported: "0.27.1", tag: "v0.33.0", line: "0.27"},
		{name: "a build of a known line", reported: "0.32.1.dev7+gabc", line: "0.32"},
		{name: "unknown, but the tag says", reported: "1.2.3", tag: "v0.27.1", line: "0.27"},
		{name: "unknown", reported: "1.2.3", line: protocol.Newest(), log: "level=ERROR"},
		{name: "unknown and a strange tag", reported: "main", tag: "mine", line: protocol.Newest(), log: "level=ERROR"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := obsUnregistered(t, Options{VLLMVersion: test.tag}, test.line)
			s.register(test.reported)
			s.add(obsRequest("a", 1))
			s.out(1, obsEnd("a", protocol.FinishStop, 1))
			got := s.finish()
			if len(got.Records) != 1 || string(got.Meta.Extra["line"]) != `"`+test.line+`"` {
				t.Errorf("%d records, line %s", len(got.Records), got.Meta.Extra["line"])
			}
			if *got.Meta.VLLMVersion != test.reported || !hashFollows(got.Meta) {
				t.Errorf("version %q, hash %s", *got.Meta.VLLMVersion, *got.Meta.ConfigHash)
			}
			require.Equal(t, strings.Contains(s.log.String(), "level=ERROR"), test.log != "", "log:\n%s", s.log.String())
		})
	}
}

// TestObserveWithoutRegistration: what a tap that joined late sees is read by the
// tag's line.
func TestObserveWithoutRegistration(t *testing.T) {
	s := obsUnregistered(t, Options{VLLMVersion: "v0.27.1"}, "0.27")
	s.add(obsRequest("a", 1))
	s.out(1, obsEnd("a", protocol.FinishStop, 1))
	got := s.finish()
	if len(got.Records) != 1 || *got.Meta.VLLMVersion != "" || *got.Meta.ReadyResponseHex != "" || string(got.Meta.Extra["line"]) != `"0.27"` {
		t.Errorf("%d records, meta %+v", len(got.Records), got.Meta)
	}
}

// TestCloseWithoutEvents: the files are valid all the same.
func TestCloseWithoutEvents(t *testing.T) {
	s := obsUnregistered(t, Options{}, "0.33")
	got := s.finish()
	require.True(t, len(got.Records) == 0 && got.Meta.ConfigHash != nil, "%+v", got)
	if len(s.o.Files()) != 3 || s.o.Files()[0] != s.path {
		t.Errorf("files %q", s.o.Files())
	}
}
