package invariant

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
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
		require.NoError(tb, err)
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
		require.NoError(tb, err)
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

// The table of a step is as wide as its widest request wants, and between the sockets of several clients there is no order: the end of
// that request may be seen first. In the next step the table has to be narrow.
func TestTableOfSeveralClients(t *testing.T) {
	s := sessions(t)[0]
	var view protocol.View
	e, width, now := New(s.codec, Options{}), 0, 1000.0
	at := slices.IndexFunc(s.messages, func(m trace.Message) bool {
		if m.Channel == "output" {
			table, err := s.codec.Read(&view, protocol.KindOutputs, m.Frames[0], m.Frames[1:]...).Field("outputs").At(0).Field("new_logprobs").At(0).Tensor()
			width = len(table.Integers()) - 1
			return err == nil && len(table.Shape) == 2 && table.Shape[0] == 1 && width > 0
		}
		return false
	})
	said := func(client int, id string, finish []byte) (found []check.Failure) {
		frames := slices.Clone(s.messages[at].Frames)
		now++
		for path, raw := range map[string][]byte{"timestamp": pack.AppendFloat64(nil, now), "request_id": pack.AppendString(nil, id), "finish_reason": finish} {
			v := s.codec.Read(&view, protocol.KindOutputs, frames[0], frames[1:]...)
			if path != "timestamp" {
				v = v.Field("outputs").At(0)
			}
			frames[0] = v.Field(path).Set(raw)
		}
		return slices.DeleteFunc(e.Said(int(now), client, frames), func(f check.Failure) bool { return f.Code != CodeLogprobs })
	}
	for id, n := range map[string]int{"wide": width, "narrow": 0} {
		e.Ask(&protocol.Request{ID: id, Sampling: protocol.Sampling{Logprobs: n, PromptLogprobs: protocol.NoLogprobs, Temperature: 1}, HasSampling: true})
	}
	if found := slices.Concat(said(0, "wide", pack.AppendInt(nil, 1)), said(1, "narrow", pack.AppendNil(nil))); len(found) > 0 {
		t.Errorf("in the step of the wide request: %v", found)
	}
	if found := said(1, "narrow", pack.AppendNil(nil)); len(found) != 1 {
		t.Errorf("in the next step: %v", found)
	}
}

// Blocks of a request that was computed for another engine stay when it has ended, until they are fetched.
func TestBlocksKeptForOthers(t *testing.T) {
	for _, s := range sessions(t) {
		if !strings.Contains(s.name, "v0.33.0/cpu/tiny/wire-") {
			continue
		}
		other, kept, blocks := session{s.name, s.codec, slices.Clone(s.messages)}, 0, int64(0)
		var view protocol.View
		for i := range other.messages {
			m := &other.messages[i]
			if m.Channel == "input" && m.Direction == trace.EngineToFrontend {
				blocks = protocol.ViewOf(m.Frames[0]).Field("num_gpu_blocks").Count()
			}
			if m.Channel != "output" {
				continue
			}
			out := s.codec.Read(&view, protocol.KindOutputs, m.Frames[0])
			first := out.Field("outputs").At(0)
			usage := out.Field("scheduler_stats").Field("kv_cache_usage")
			switch used, ok := usage.Float(); {
			case kept == 0 && first.Field("finish_reason").Given() && !first.Field("kv_transfer_params").IsAbsent():
				params := pack.AppendBool(pack.AppendString(pack.AppendMapHeader(nil, 1), "do_remote_prefill"), true)
				m.Frames = append([][]byte{first.Field("kv_transfer_params").Set(params)}, m.Frames[1:]...)
				kept++
			case kept > 0 && ok:
				m.Frames = append([][]byte{usage.Set(pack.AppendFloat64(nil, used+9/float64(blocks-1)))}, m.Frames[1:]...)
				kept++
			}
		}
		for _, f := range judge(other) {
			require.True(t, f.Code != CodeGauges && f.Code != CodeRest, "%s: %s %s", s.name, f.Code, f.Message)
		}
		require.True(t, kept >= 10, "%s: %d messages changed", s.name, kept)
	}
}

// The ids of log-probabilities have 4 bytes on a CPU, and 8 where the model runner V2 makes them: both are right.
func TestWideTokenIDs(t *testing.T) {
	for _, s := range sessions(t) {
		if !strings.Contains(s.name, "v0.33.0/cpu/tiny/wire-") {
			continue
		}
		other, widened := session{s.name, s.codec, slices.Clone(s.messages)}, 0
		for i := range other.messages {
			m := &other.messages[i]
			if m.Channel != "output" || !bytes.Contains(m.Frames[0], []byte("\xa3<i4")) {
				continue
			}
			all := leaves(s.codec, protocol.KindOutputs, m.Frames[0])
			var out []byte
			from := 0
			for j, l := range all {
				raw := m.Frames[0][l.begin:l.end]
				if j > 0 && strings.Contains(l.path, ".logprob_token_ids.") {
					if bytes.Equal(raw, pack.AppendString(nil, "<i4")) {
						out, from = append(append(out, m.Frames[0][from:l.begin]...), pack.AppendString(nil, "<i8")...), l.end
						widened++
					}
					cur := pack.NewCursor(raw)
					if code, data, err := cur.Ext(); err == nil {
						wide := make([]byte, 0, 2*len(data))
						for four := range slices.Chunk(data, 4) {
							wide = append(append(wide, four...), 0, 0, 0, 0)
						}
						out, from = append(append(out, m.Frames[0][from:l.begin]...), pack.AppendExt(nil, code, wide)...), l.end
					}
				}
			}
			frames := slices.Clone(m.Frames)
			frames[0] = append(out, m.Frames[0][from:]...)
			m.Frames = frames
			if wrong := check.OutputsLayout(s.codec, frames); len(wrong) > 0 {
				t.Errorf("message %d: %v", i, wrong)
			}
		}
		if found := judge(other); len(found) > 0 || widened == 0 || streams(other) != streams(s) {
			t.Errorf("%d tables: %v", widened, found)
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
