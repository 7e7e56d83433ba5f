package wirediff

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// lastStrict is the last line whose Rust frontend, vllm-rs, refuses an array of
// this struct that is longer than it knows, and fails every open request: seen of
// the released binaries. Python, and the rules of msgspec, take such an array.
var lastStrict = map[string]string{"EngineCoreOutputs": "", "EngineCoreOutput": "0.30"}

// wantedKeys are keys with a default that vllm-rs does not do without: seen of the
// released binaries, 0.24 to 0.33.
var wantedKeys = map[string][]string{
	"SchedulerStats": {
		"num_running_reqs", "num_waiting_reqs", "step_counter", "current_wave", "kv_cache_usage", "prefix_cache_stats",
		"kv_cache_eviction_events",
	},
	"PrefixCacheStats": {
		"reset", "requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits",
	},
	"SpecDecodingStats": {
		"num_spec_tokens", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos",
	},
	"PerfStats": {"num_flops_per_gpu", "num_read_bytes_per_gpu", "num_write_bytes_per_gpu"},
	"KVEventsConfig": {
		"enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "buffer_steps", "hwm", "max_queue_size", "topic",
	},
}

// caution says where a real program is stricter than what is declared, of changes
// that break nobody by the declaration.
func (c *comparison) caution(ch *Change) string {
	if ch.Level != Compatible {
		return ""
	}
	_, field, _ := strings.Cut(ch.Subject, ".")
	strict, known := lastStrict[ch.Struct]
	switch {
	case known && ch.Kind == FieldAdded && upTo(c.a.Line, strict):
		return fmt.Sprintf("vllm-rs of %s refuses a longer %s, and all its requests fail: not before an engine of %s",
			c.from(), ch.Struct, c.to())
	case known && ch.Kind == FieldRemoved && upTo(c.b.Line, strict):
		return fmt.Sprintf("vllm-rs of %s refuses the longer %s of engines of %s, and all its requests fail",
			c.to(), ch.Struct, c.from())
	case ch.Kind == FieldRemoved && slices.Contains(wantedKeys[ch.Struct], field):
		return fmt.Sprintf("vllm-rs wants the key although it has a default: that of %s fails, if it is as all before it",
			c.from())
	}
	return ""
}

// upTo tells whether a line is at most the last, "" being the last of all.
func upTo(line, last string) bool {
	return last == "" || compareLines(line, last) <= 0
}

func compareLines(a, b string) int {
	majorA, minorA, _ := strings.Cut(a, ".")
	majorB, minorB, _ := strings.Cut(b, ".")
	return cmp.Or(cmp.Compare(number(majorA), number(majorB)), cmp.Compare(number(minorA), number(minorB)))
}

func number(digits string) int {
	n, _ := strconv.Atoi(digits) // what is none is older than all lines
	return n
}
