package remote

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// readOutput reads what a frontend looks at of an output.
func readOutput(in *protocol.RequestOutput, aux [][]byte) (out protocol.Output, err error) {
	out = protocol.Output{Tokens: in.Tokens, Finish: in.Finish, KVTransfer: in.KVTransfer}
	if in.StopReason != nil {
		cur := pack.NewCursor(in.StopReason)
		if cur.Kind() == pack.Int {
			out.HasStopToken = true
			out.StopToken, err = cur.Int()
		} else {
			out.StopString, err = cur.StrString()
		}
		if err != nil {
			return out, fmt.Errorf("stop_reason: %w", err)
		}
	}
	if out.Logprobs, err = readLogprobs(in.Logprobs, aux); err != nil {
		return out, fmt.Errorf("new_logprobs: %w", err)
	}
	if out.PromptLogprobs, err = readLogprobs(in.PromptLogprobs, aux); err != nil {
		return out, fmt.Errorf("new_prompt_logprobs_tensors: %w", err)
	}
	if in.Pooling != nil {
		cur := pack.NewCursor(in.Pooling)
		t, err := protocol.ReadTensor(&cur, aux)
		if err != nil {
			return out, fmt.Errorf("pooling_output: %w", err)
		}
		out.Pooling = &protocol.Tensor{Shape: t.Shape}
		for _, v := range t.Floats() {
			out.Pooling.Values = append(out.Pooling.Values, float32(v))
		}
	}
	if in.Prefill != nil {
		counts, err := protocol.Integers(in.Prefill)
		if err != nil {
			return out, fmt.Errorf("prefill_stats: %w", err)
		}
		at := func(name string) int { return int(counts[name]) }
		out.Prefill = &protocol.PrefillStats{
			Prompt: at("num_prompt_tokens"), Computed: at("num_computed_tokens"), Cached: at("num_cached_tokens"),
			LocalCached: at("num_local_cached_tokens"), ExternalCached: at("num_external_cached_tokens"), CacheCreation: at("num_cache_creation_tokens"),
		}
	}
	if in.Error != nil {
		reason, err := protocol.DecodeRequestError(in.Error)
		if err != nil {
			return out, err
		}
		out.Error = &reason
	}
	if in.Events != nil {
		out.Events, err = readEvents(in.Events)
	}
	return out, err
}

// readLogprobs reads LogprobsLists or LogprobsTensors: ids, values, and the rank of the first id of each row.
func readLogprobs(raw []byte, aux [][]byte) (*protocol.Logprobs, error) {
	if raw == nil {
		return nil, nil
	}
	cur := pack.NewCursor(raw)
	if n, err := cur.ArrayLen(); err != nil || n < 3 {
		return nil, fmt.Errorf("an array of %d values, want ids, logprobs and ranks: %v", n, err)
	}
	t := new(protocol.Logprobs)
	for i := range 3 {
		values, err := protocol.ReadTensor(&cur, aux)
		if err != nil {
			return nil, err
		}
		switch i {
		case 0:
			if len(values.Shape) != 2 {
				return nil, fmt.Errorf("ids have shape %v, want rows and columns", values.Shape)
			}
			t.Width = values.Shape[1]
			for _, id := range values.Integers() {
				t.TokenIDs = append(t.TokenIDs, uint32(id))
			}
		case 1:
			for _, v := range values.Floats() {
				t.Values = append(t.Values, float32(v))
			}
		case 2:
			t.Ranks = values.Integers()
		}
	}
	if n := t.Rows() * t.Width; len(t.TokenIDs) != n || len(t.Values) != n {
		return nil, fmt.Errorf("%d ids and %d values for %d rows of %d", len(t.TokenIDs), len(t.Values), t.Rows(), t.Width)
	}
	return t, nil
}

// eachKey calls read for each member of a map. read reads the value, or skips it.
func eachKey(cur *pack.Cursor, read func(key string, cur *pack.Cursor) error) error {
	n, err := cur.MapLen()
	for i := 0; i < n && err == nil; i++ {
		var key string
		if key, err = cur.StrString(); err == nil {
			err = read(key, cur)
		}
	}
	return err
}

func readEvents(raw []byte) (events []protocol.Event, err error) {
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	for i := 0; i < n && err == nil; i++ {
		var e protocol.Event
		err = eachKey(&cur, func(key string, cur *pack.Cursor) (err error) {
			switch key {
			case "type":
				var kind int64
				kind, err = cur.Int()
				e.Type = int(kind)
			case "timestamp":
				e.Timestamp, err = cur.Float()
			default:
				err = cur.Skip()
			}
			return err
		})
		events = append(events, e)
	}
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	return events, nil
}

// readStats reads what metrics are made of.
func readStats(raw []byte, s *protocol.SchedulerStats) error {
	cur := pack.NewCursor(raw)
	number := func(cur *pack.Cursor, to *int) error {
		n, err := cur.Int()
		*to = int(n)
		return err
	}
	counts := func(cur *pack.Cursor, names map[string]*int) error {
		if cur.Nil() {
			return nil
		}
		return eachKey(cur, func(key string, cur *pack.Cursor) error {
			if to, ok := names[key]; ok {
				return number(cur, to)
			}
			return cur.Skip()
		})
	}
	err := eachKey(&cur, func(key string, cur *pack.Cursor) (err error) {
		switch key {
		case "num_running_reqs":
			err = number(cur, &s.Running)
		case "num_waiting_reqs":
			err = number(cur, &s.Waiting)
		case "num_skipped_waiting_reqs":
			err = number(cur, &s.Skipped)
		case "kv_cache_usage":
			s.KVCacheUsage, err = cur.Float()
		case "prefix_cache_stats":
			err = counts(cur, map[string]*int{"queries": &s.PrefixCache.Queries, "hits": &s.PrefixCache.Hits})
		case "connector_prefix_cache_stats":
			if cur.Nil() {
				return nil
			}
			s.External = new(protocol.CacheStats)
			err = counts(cur, map[string]*int{"queries": &s.External.Queries, "hits": &s.External.Hits})
		case "spec_decoding_stats":
			if cur.Nil() {
				return nil
			}
			s.Spec = new(protocol.SpecDecodingStats)
			err = eachKey(cur, func(key string, cur *pack.Cursor) (err error) {
				switch key {
				case "num_drafts":
					err = number(cur, &s.Spec.Drafts)
				case "num_draft_tokens":
					err = number(cur, &s.Spec.DraftTokens)
				case "num_accepted_tokens":
					err = number(cur, &s.Spec.AcceptedTokens)
				case "num_accepted_tokens_per_pos":
					var all []uint32
					all, err = cur.Uint32s(nil)
					for _, n := range all {
						s.Spec.AcceptedPerPos = append(s.Spec.AcceptedPerPos, int(n))
					}
				default:
					err = cur.Skip()
				}
				return err
			})
		default:
			err = cur.Skip()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("scheduler_stats: %w", err)
	}
	return nil
}
