package kvevents

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// ParseConfig reads a value of vLLM's --kv-events-config: a JSON object with the members
// of its KVEventsConfig. The result is nil if such an engine would publish nothing:
// events are off unless enable_kv_cache_events is true, and the publisher "null" drops
// them. The error names the member that is wrong. A size has to be 1 at least: that
// there is none, or no limit, cannot be said.
func ParseConfig(text string) (*Options, error) {
	members, err := parseObject(text)
	if err != nil {
		return nil, fmt.Errorf("KV events: %w: want a JSON object such as {\"enable_kv_cache_events\": true}", err)
	}
	var (
		o         Options
		enable    bool
		publisher *string
		replay    *string
	)
	fields := map[string]func(json.RawMessage) error{
		"enable_kv_cache_events": into(&enable, "true or false"),
		"publisher":              into(&publisher, `"zmq" or "null"`),
		"endpoint":               into(&o.Endpoint, "an address such as \"tcp://*:5557\""),
		"replay_endpoint":        into(&replay, "an address or null"),
		"buffer_steps":           intoSize(&o.BufferSteps),
		"hwm":                    intoSize(&o.HWM),
		"max_queue_size":         intoSize(&o.MaxQueueSize),
		"topic":                  into(&o.Topic, "a text"),
	}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		set, known := fields[key]
		if !known {
			return nil, fmt.Errorf("KV events: no member %q: there are %s", key, strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
		if err := set(members[key]); err != nil {
			return nil, fmt.Errorf("KV events: %s: %w", key, err)
		}
	}
	if publisher != nil && *publisher != "zmq" && *publisher != "null" {
		return nil, fmt.Errorf(`KV events: publisher %q: want "zmq" or "null"`, *publisher)
	}
	if replay != nil {
		o.ReplayEndpoint = *replay
	}
	for _, endpoint := range []string{o.Endpoint, o.ReplayEndpoint} {
		if endpoint == "" {
			continue
		}
		if err := zmq.CheckEndpoint(endpoint); err != nil {
			return nil, fmt.Errorf("KV events: %w", err)
		}
	}
	if !enable || publisher != nil && *publisher == "null" {
		return nil, nil
	}
	return &o, nil
}

// parseObject returns the members of the only value of a text.
func parseObject(text string) (members map[string]json.RawMessage, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&members); err != nil {
		return nil, err
	}
	if members == nil {
		return nil, errors.New("it is null")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("something follows the object at byte %d", d.InputOffset())
	}
	return members, nil
}

// into returns a function that decodes a value into v. Only pointers take null.
func into[T any](v *T, want string) func(json.RawMessage) error {
	_, optional := any(v).(**string)
	return func(text json.RawMessage) error {
		if bytes.Equal(text, []byte("null")) && !optional || json.Unmarshal(text, v) != nil {
			return fmt.Errorf("%s: want %s", text, want)
		}
		return nil
	}
}

func intoSize(v *int) func(json.RawMessage) error {
	return func(text json.RawMessage) error {
		if err := into(v, "a number")(text); err != nil || *v < 1 {
			return fmt.Errorf("%s: want a whole number, 1 at least", text)
		}
		return nil
	}
}

// EnvIntHashes is the environment variable that vLLM's engines read.
const EnvIntHashes = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"

// ParseIntHashes reads a value of [EnvIntHashes] for [Options.Digests]: 0 publishes
// hashes in all their bytes; 1, or none, as numbers.
func ParseIntHashes(value string) (digests bool, err error) {
	if value == "" {
		return false, nil
	}
	n, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil {
		return false, fmt.Errorf("%s=%q: want 0 for whole hashes, or 1 for numbers", EnvIntHashes, value)
	}
	return n == 0, nil
}
