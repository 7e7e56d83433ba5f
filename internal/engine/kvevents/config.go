package kvevents

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// config is vLLM's KVEventsConfig.
type config struct {
	Enable       bool    `json:"enable_kv_cache_events"`
	Publisher    *string `json:"publisher"`
	Endpoint     string  `json:"endpoint"`
	Replay       string  `json:"replay_endpoint"`
	BufferSteps  *int    `json:"buffer_steps"`
	HWM          *int    `json:"hwm"`
	MaxQueueSize *int    `json:"max_queue_size"`
	Topic        string  `json:"topic"`
}

// ParseConfig reads a value of vLLM's --kv-events-config: a JSON object with the members
// of its KVEventsConfig. The result is nil if such an engine would publish nothing:
// events are off unless enable_kv_cache_events is true, and the publisher "null" drops
// them. The error names the member that is wrong. A size has to be 1 at least: 0, which vLLM takes for no
// limit, is refused.
func ParseConfig(text string) (*Options, error) {
	var c config
	if err := jsonout.ReadObject(text, &c); err != nil {
		return nil, fmt.Errorf("KV events: %w: want a JSON object such as {\"enable_kv_cache_events\": true}", err)
	}
	o := Options{Endpoint: c.Endpoint, ReplayEndpoint: c.Replay, Topic: c.Topic}
	for _, size := range []struct {
		name     string
		from, to *int
	}{{"buffer_steps", c.BufferSteps, &o.BufferSteps}, {"hwm", c.HWM, &o.HWM}, {"max_queue_size", c.MaxQueueSize, &o.MaxQueueSize}} {
		if size.from == nil {
			continue
		}
		if *size.to = *size.from; *size.to < 1 {
			return nil, fmt.Errorf("KV events: %s: %d: want 1 at least", size.name, *size.to)
		}
	}
	if p := c.Publisher; p != nil && *p != "zmq" && *p != "null" {
		return nil, fmt.Errorf(`KV events: publisher %q: want "zmq" or "null"`, *p)
	}
	for _, endpoint := range []string{o.Endpoint, o.ReplayEndpoint} {
		if endpoint == "" {
			continue
		}
		if err := zmq.CheckEndpoint(endpoint); err != nil {
			return nil, fmt.Errorf("KV events: %w", err)
		}
	}
	if !c.Enable || c.Publisher != nil && *c.Publisher == "null" {
		return nil, nil
	}
	return &o, nil
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
