package protocol

import (
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

// TestValues: a message has the values of its fields, which of them are not at their default, and members of enumerations.
func TestValues(t *testing.T) {
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
	var view View
	root := c.Read(&view, KindOutputs, message)
	var set, members []string
	names := fieldNames(c)
	root.Walk(func(v Value) bool {
		if f := v.Declared(); f != nil && !v.IsDefault() {
			set = append(set, names[f])
		}
		if enum, member := v.Enum(); enum != "" {
			members = append(members, enum+"."+member)
		}
		if string(message[v.Offset():v.Offset()+len(v.Bytes())]) != string(v.Bytes()) {
			t.Errorf("%s is not at byte %d", v.Path(), v.Offset())
		}
		return true
	})
	want := []string{
		"EngineCoreOutputs.outputs", "EngineCoreOutput.request_id", "EngineCoreOutput.finish_reason", "EngineCoreOutput.events",
		"EngineCoreEvent.type", "EngineCoreEvent.type",
	}
	require.NoDiff(t, cmp.Diff(want, set), "fields, -want +got")
	require.NoDiff(t, cmp.Diff([]string{"FinishReason.LENGTH", "EngineCoreEventType.QUEUED", "EngineCoreEventType.PREEMPTED"}, members), "-want +got")

	kind := root.Field("outputs").At(0).Field("events").At(1).Field("type")
	if n, ok := kind.Int(); !ok || n != 3 || kind.Path() != "EngineCoreOutputs.outputs[0].events[1].type" {
		t.Errorf("%s is %d", kind.Path(), n)
	}
	changed := c.Read(new(View), KindOutputs, kind.Set(pack.AppendInt(nil, 1000)))
	if n, _ := changed.Field("outputs").At(0).Field("events").At(1).Field("type").Int(); n != 1000 {
		t.Errorf("the changed value is %d", n)
	}
	for _, absent := range []Value{root.Field("timestamp"), root.Field("outputs").At(7).Field("events"), kind.Field("x").At(1), {}} {
		if _, ok := absent.Float(); ok || !absent.IsAbsent() || absent.Given() || absent.Len() != 0 || absent.Bytes() != nil {
			t.Errorf("%s is not absent", absent.Path())
		}
	}
	require.Equal(t, root.Field("outputs").At(7).Field("events").Path(), "EngineCoreOutputs.outputs[7].events", "the path of an absent value")
}

func fieldNames(c *Codec) map[*Field]string {
	names := map[*Field]string{}
	for _, d := range c.Declared() {
		names[d.Field] = d.Struct + "." + d.Name
	}
	return names
}

// TestValueOfCall: the arguments of a call have the names and the types of its method.
func TestValueOfCall(t *testing.T) {
	c, err := CodecFor("0.33")
	require.NoError(t, err)
	call := AppendUtilityCall(nil, UtilityCall{CallID: 7, Method: "sleep", Args: [][]byte{pack.AppendInt(nil, 1), pack.AppendString(nil, "keep")}})
	root := c.Read(new(View), KindUtility, call)
	var paths []string
	root.Walk(func(v Value) bool {
		paths = append(paths, v.Path())
		return true
	})
	want := []string{
		"UtilityCall", "UtilityCall.client_index", "UtilityCall.call_id", "UtilityCall.method", "UtilityCall.sleep", "UtilityCall.sleep.level",
		"UtilityCall.sleep.mode",
	}
	require.NoDiff(t, cmp.Diff(want, paths), "-want +got")
}

// TestViewOf: bytes of which nothing is declared have keys and elements, and those that are not well formed have nothing.
func TestViewOf(t *testing.T) {
	v := ViewOf(pack.AppendFloat64(pack.AppendString(pack.AppendMapHeader(nil, 1), "a"), 0.5)).Field("a")
	if f, ok := v.Float(); !ok || f != 0.5 || v.Path() != "a" {
		t.Errorf("%s is %v", v.Path(), f)
	}
	for _, raw := range [][]byte{nil, {0x91}, {0xc1}} {
		if v := ViewOf(raw); !v.IsAbsent() || v.Field("a").Given() {
			t.Errorf("%x is not absent", raw)
		}
	}
}

// TestValueOfUnion: what a value would be by an option that does not fit is not seen.
func TestValueOfUnion(t *testing.T) {
	c, err := CodecFor("0.33")
	require.NoError(t, err)
	removed := pack.AppendMapHeader(nil, 2)
	removed = pack.AppendString(pack.AppendString(removed, "type"), "BlockRemoved")
	removed = pack.AppendArrayHeader(pack.AppendString(removed, "block_hashes"), 0)
	batch := pack.AppendFloat64(pack.AppendArrayHeader(nil, 3), 1)
	batch = append(pack.AppendArrayHeader(batch, 1), removed...)
	batch = pack.AppendNil(batch)
	names := fieldNames(c)
	root := c.Read(new(View), KindKVEvents, batch)
	var got []string
	root.Walk(func(v Value) bool {
		if f := v.Declared(); f != nil {
			got = append(got, names[f])
		}
		return true
	})
	want := []string{"KVEventBatch.ts", "KVEventBatch.events", "BlockRemoved.block_hashes", "KVEventBatch.data_parallel_rank"}
	require.NoDiff(t, cmp.Diff(want, got), "-want +got")
}

// FuzzValue: whatever the bytes are, the values of a message lie within one another, have a path each, and a message in which a
// value is replaced by itself is the same.
func FuzzValue(f *testing.F) {
	c := codecOf(f, recorded)
	f.Add([]byte{0x91})
	f.Add(AppendUtilityCall(nil, UtilityCall{Method: "sleep", Args: [][]byte{{1}}}))
	b := c.NewBatch(0)
	m, err := b.Finish(&SchedulerStats{Running: 1, External: new(CacheStats)}, 1)
	require.NoError(f, err)
	f.Add(m[0])
	f.Fuzz(func(t *testing.T, payload []byte) {
		var view View
		for _, kind := range messageKinds {
			root := c.Read(&view, kind, payload)
			values := 0
			root.Walk(func(v Value) bool {
				if values++; values > 1000 {
					return false
				}
				if v.Path() == "" || v.Offset()+len(v.Bytes()) > len(payload) {
					t.Fatalf("%q at %d of %d", v.Path(), v.Offset(), len(payload))
				}
				if string(v.Set(v.Bytes())) != string(payload) {
					t.Fatalf("%s: other bytes", v.Path())
				}
				for part := range v.Parts() {
					if part.Offset() < v.Offset() || part.Offset()+len(part.Bytes()) > v.Offset()+len(v.Bytes()) {
						t.Fatalf("%s is not within %s", part.Path(), v.Path())
					}
				}
				_, _ = v.Enum()
				_ = v.Key()
				return true
			})
		}
	})
}
