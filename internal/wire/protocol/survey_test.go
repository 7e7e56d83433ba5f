package protocol

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// TestDeclaredIsWhatCanBeSent: every struct of a profile is part of some message, but for the classes that others are
// derived from, and what a line declares without sending it.
func TestDeclaredIsWhatCanBeSent(t *testing.T) {
	never := map[string]string{
		"EventBatch": "", "BaseCacheStats": "", "KVCacheEvent": "",
		"KVEventsConfig": "0.25, 0.26", // a part of the registration since 0.27
	}
	for _, line := range Lines() {
		c, err := CodecFor(line)
		require.NoError(t, err)
		sent := map[string]bool{}
		for _, f := range c.Declared() {
			sent[f.Struct] = true
		}
		for name, s := range c.Profile().Structs {
			lines, base := never[name]
			base = base && (lines == "" || strings.Contains(lines, line))
			if len(s.Fields) > 0 && sent[name] == base {
				t.Errorf("%s: %s: declared to be sent: %v", line, name, sent[name])
			}
		}
	}
}

// TestSurvey: a message shows the fields that it has, which of them are not at their default, and what else is named in it.
func TestSurvey(t *testing.T) {
	c, err := CodecFor("0.33")
	require.NoError(t, err)
	event := func(kind int64) []byte {
		b := pack.AppendMapHeader(nil, 2)
		b = pack.AppendInt(pack.AppendString(b, "type"), kind)
		return pack.AppendFloat64(pack.AppendString(b, "timestamp"), 0)
	}
	output := []byte{}
	for i, f := range c.Profile().Structs["EngineCoreOutput"].Fields {
		switch {
		case i == 0:
			output = pack.AppendArrayHeader(output, len(c.Profile().Structs["EngineCoreOutput"].Fields))
			output = pack.AppendString(output, "a")
		case f.Name == "new_token_ids":
			output = pack.AppendArrayHeader(output, 0)
		case f.Name == "finish_reason":
			output = pack.AppendInt(output, 1)
		case f.Name == "events":
			output = append(append(pack.AppendArrayHeader(output, 2), event(1)...), event(3)...)
		case f.Name == "num_nans_in_logits":
			output = pack.AppendInt(output, 0)
		default:
			output = pack.AppendNil(output)
		}
	}
	message := pack.AppendArrayHeader(nil, 2)
	message = pack.AppendInt(message, 0)
	message = append(pack.AppendArrayHeader(message, 1), output...)
	var s Survey
	c.Survey(&s, KindOutputs, message)
	var set []string
	names := map[*Field]string{}
	for _, d := range c.Declared() {
		names[d.Field] = d.Struct + "." + d.Name
	}
	for _, v := range s.Fields {
		if !v.IsDefault() {
			set = append(set, names[v.Field])
		}
		if string(message[v.Offset:v.Offset+len(v.Raw)]) != string(v.Raw) {
			t.Errorf("%s is not at byte %d", names[v.Field], v.Offset)
		}
	}
	want := []string{
		"EngineCoreOutputs.outputs", "EngineCoreOutput.request_id", "EngineCoreOutput.finish_reason", "EngineCoreOutput.events",
		"EngineCoreEvent.type", "EngineCoreEvent.type",
	}
	require.NoDiff(t, cmp.Diff(want, set), "fields, -want +got")
	members := []EnumValue{{"FinishReason", "LENGTH"}, {"EngineCoreEventType", "QUEUED"}, {"EngineCoreEventType", "PREEMPTED"}}
	require.NoDiff(t, cmp.Diff(members, s.Members), "members, -want +got")
	c.Survey(&s, KindUtility, AppendUtilityCall(nil, UtilityCall{CallID: 7, Method: "is_sleeping"}))
	if !slices.Equal(s.Calls, []string{"is_sleeping"}) || len(s.Members) > 0 {
		t.Errorf("calls %q, members %v", s.Calls, s.Members)
	}
}

// TestSurveyOfUnion: what a value would be by an option that does not fit is not seen.
func TestSurveyOfUnion(t *testing.T) {
	c, err := CodecFor("0.33")
	require.NoError(t, err)
	removed := pack.AppendMapHeader(nil, 2)
	removed = pack.AppendString(pack.AppendString(removed, "type"), "BlockRemoved")
	removed = pack.AppendArrayHeader(pack.AppendString(removed, "block_hashes"), 0)
	batch := pack.AppendFloat64(pack.AppendArrayHeader(nil, 3), 1)
	batch = append(pack.AppendArrayHeader(batch, 1), removed...)
	batch = pack.AppendNil(batch)
	names := map[*Field]string{}
	for _, d := range c.Declared() {
		names[d.Field] = d.Struct + "." + d.Name
	}
	var s Survey
	c.Survey(&s, KindKVEvents, batch)
	var got []string
	for _, v := range s.Fields {
		got = append(got, names[v.Field])
	}
	want := []string{"KVEventBatch.ts", "KVEventBatch.events", "BlockRemoved.block_hashes", "KVEventBatch.data_parallel_rank"}
	require.NoDiff(t, cmp.Diff(want, got), "-want +got")
}
