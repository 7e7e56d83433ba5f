package protocol

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// reencodeOutputs decodes a real envelope into the values an engine would hand
// to a Batch, writes it again and demands the same bytes, frame by frame.
func reencodeOutputs(t *testing.T, c *Codec, where string, frames [][]byte, streams map[string]*Stream) {
	t.Helper()
	var o Outputs
	if err := c.DecodeOutputs(frames[0], &o); err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	if o.Fields != len(c.envelope.ops) {
		t.Errorf("%s: %d fields, a real engine of the line writes %d", where, o.Fields, len(c.envelope.ops))
	}
	var got ClientMessage
	if o.Utility != nil {
		got = reencodeUtility(t, c, where, &o)
	} else {
		got = reencodeBatch(t, c, where, frames, &o, streams)
	}
	if len(got) != len(frames) {
		t.Fatalf("%s: %d frames, want %d", where, len(got), len(frames))
	}
	for i := range frames {
		if string(got[i]) != string(frames[i]) {
			t.Errorf("%s: frame %d differs in bytes", where, i)
			if i == 0 {
				sameValue(t, c, "EngineCoreOutputs", where, frames[0], got[0])
			}
		}
	}
}

func reencodeUtility(t *testing.T, c *Codec, where string, o *Outputs) ClientMessage {
	t.Helper()
	cur := pack.NewCursor(o.Utility.Result)
	result, err := cur.Bool()
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	call := UtilityCall{CallID: o.Utility.CallID, Method: "reset_prefix_cache"}
	got, err := c.UtilityResult(o.EngineIndex, call, result, o.Timestamp)
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	return got
}

func reencodeBatch(t *testing.T, c *Codec, where string, frames [][]byte, o *Outputs, streams map[string]*Stream) ClientMessage {
	t.Helper()
	b := c.NewBatch(o.EngineIndex)
	b.WeightVersion = o.WeightVersion
	for i := range o.Outputs {
		out := engineOutput(t, &o.Outputs[i], frames)
		stream := streams[string(o.Outputs[i].ID)]
		if stream == nil {
			t.Fatalf("%s: output for unknown request %s", where, o.Outputs[i].ID)
		}
		if err := b.Add(stream, out); err != nil {
			t.Fatalf("%s: %v", where, err)
		}
	}
	for _, id := range o.FinishedRequests {
		b.ReportFinished(string(id))
	}
	stats := engineStats(t, o.SchedulerStats)
	got, err := b.Finish(stats, o.Timestamp)
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	return got
}

func engineOutput(t *testing.T, o *RequestOutput, frames [][]byte) *Output {
	t.Helper()
	out := &Output{Tokens: o.Tokens, Finish: o.Finish, KVTransfer: o.KVTransfer}
	out.Logprobs = readLogprobs(t, o.Logprobs, frames)
	out.PromptLogprobs = readLogprobs(t, o.PromptLogprobs, frames)
	if o.StopReason != nil {
		cur := pack.NewCursor(o.StopReason)
		id, err := cur.Int()
		require.NoError(t, err)
		out.StopToken, out.HasStopToken = id, true
	}
	if o.Events != nil {
		out.Events = readEvents(t, o.Events)
	}
	if o.Prefill != nil {
		p := readInts(t, o.Prefill)
		out.Prefill = &PrefillStats{
			Prompt: p["num_prompt_tokens"], Computed: p["num_computed_tokens"], Cached: p["num_cached_tokens"],
			LocalCached: p["num_local_cached_tokens"], ExternalCached: p["num_external_cached_tokens"],
			CacheCreation: p["num_cache_creation_tokens"],
		}
	}
	if o.Error != nil {
		e, err := DecodeRequestError(o.Error)
		require.NoError(t, err)
		out.Error = &e
	}
	return out
}

func readEvents(t *testing.T, raw []byte) []Event {
	t.Helper()
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	require.NoError(t, err)
	var events []Event
	for range n {
		value, err := cur.Raw()
		require.NoError(t, err)
		var e Event
		err = eachKey(value, func(key string, cur *pack.Cursor) (err error) {
			if key == "type" {
				e.Type, err = smallInt(cur)
			} else {
				e.Timestamp, err = cur.Float()
			}
			return err
		})
		require.NoError(t, err)
		events = append(events, e)
	}
	return events
}

// readInts reads the integer members of a map, of nested ones by "outer.inner".
func readInts(t *testing.T, raw []byte) map[string]int {
	t.Helper()
	ints := map[string]int{}
	err := eachKey(raw, func(key string, cur *pack.Cursor) error {
		switch cur.Kind() {
		case pack.Int:
			v, err := cur.Int()
			ints[key] = int(v)
			return err
		case pack.Map:
			inner, err := cur.Raw()
			for k, v := range readInts(t, inner) {
				ints[key+"."+k] = v
			}
			return err
		}
		return cur.Skip()
	})
	require.NoError(t, err)
	return ints
}

func engineStats(t *testing.T, raw []byte) *SchedulerStats {
	t.Helper()
	if raw == nil {
		return nil
	}
	n := readInts(t, raw)
	s := &SchedulerStats{
		Running: n["num_running_reqs"], Waiting: n["num_waiting_reqs"], Skipped: n["num_skipped_waiting_reqs"],
		StepCounter: n["step_counter"], CurrentWave: n["current_wave"],
		PrefixCache: CacheStats{
			Requests: n["prefix_cache_stats.requests"], Queries: n["prefix_cache_stats.queries"], Hits: n["prefix_cache_stats.hits"],
		},
	}
	err := eachKey(raw, func(key string, cur *pack.Cursor) (err error) {
		switch {
		case key == "kv_cache_usage":
			s.KVCacheUsage, err = cur.Float()
		case key == "prefix_cache_stats":
			s.PrefixCache.Reset, err = readReset(cur)
		case key == "spec_decoding_stats" && cur.Kind() == pack.Map:
			s.Spec = &SpecDecodingStats{
				SpecTokens: n[key+".num_spec_tokens"], Drafts: n[key+".num_drafts"],
				DraftTokens: n[key+".num_draft_tokens"], AcceptedTokens: n[key+".num_accepted_tokens"],
			}
			err = readPerPosition(cur, s.Spec)
		default:
			err = cur.Skip()
		}
		return err
	})
	require.NoError(t, err)
	return s
}

func readReset(cur *pack.Cursor) (reset bool, err error) {
	raw, err := cur.Raw()
	if err != nil {
		return false, err
	}
	err = eachKey(raw, func(key string, cur *pack.Cursor) (err error) {
		if key == "reset" {
			reset, err = cur.Bool()
			return err
		}
		return cur.Skip()
	})
	return reset, err
}

func readPerPosition(cur *pack.Cursor, s *SpecDecodingStats) error {
	raw, err := cur.Raw()
	if err != nil {
		return err
	}
	return eachKey(raw, func(key string, cur *pack.Cursor) error {
		var into *[]int
		switch key {
		case "num_accepted_tokens_per_pos":
			into = &s.AcceptedPerPos
		case "num_draft_tokens_per_pos":
			into = &s.DraftTokensPerPos
		default:
			return cur.Skip()
		}
		ids, err := cur.Uint32s(nil)
		for _, v := range ids {
			*into = append(*into, int(v))
		}
		return err
	})
}

func readLogprobs(t *testing.T, raw []byte, frames [][]byte) *Logprobs {
	t.Helper()
	if raw == nil {
		return nil
	}
	cur := pack.NewCursor(raw)
	_, err := cur.ArrayLen()
	require.NoError(t, err)
	var tensors [3]Array
	for i := range tensors {
		tensors[i], err = ReadTensor(&cur, frames[1:])
		require.NoError(t, err)
	}
	l := &Logprobs{Width: tensors[0].Shape[1], Ranks: tensors[2].Integers()}
	for _, id := range tensors[0].Integers() {
		l.TokenIDs = append(l.TokenIDs, uint32(id))
	}
	for _, v := range tensors[1].Floats() {
		l.Values = append(l.Values, float32(v))
	}
	return l
}
