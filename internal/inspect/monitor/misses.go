package monitor

import "github.com/vllm-vcr/conformance/recorder"

// A miss is a reason for which something that passed the tap is not in the recording.
type miss struct {
	name  string // in logs, in metrics and in JSON
	short string // behind a count, on one line
	why   string // before a count, in the summary
	count uint64
}

// misses are all reasons, in a fixed order.
func misses(s recorder.Stats) []miss {
	return []miss{
		{"undecodable_messages", "undecodable", "messages that the line's codec refused", s.Undecodable},
		{"too_large_messages", "too large", "messages too large to be observed", s.TooLarge},
		{"lost_requests", "lost", "requests with a message that could not be read", s.Lost},
		{"refused_records", "refused", "records that their own writer refused", s.Refused},
		{"unknown_outputs", "unknown", "outputs for requests that never arrived here", s.Unknown},
		{"late_outputs", "late", "outputs for requests that had ended", s.Late},
		{"duplicate_requests", "duplicate", "requests with the id of one in flight", s.Duplicates},
		{"wrong_engine_messages", "of another engine", "messages that name another engine", s.WrongEngine},
	}
}
