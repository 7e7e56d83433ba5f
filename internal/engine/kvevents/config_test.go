package kvevents

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestParseConfig(t *testing.T) {
	tests := []struct {
		name, text string
		want       *Options
		err        string
	}{
		{name: "on", text: `{"enable_kv_cache_events": true}`, want: &Options{}},
		{
			name: "all", text: ` {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://indexer:5557",
				"replay_endpoint": "tcp://*:5558", "buffer_steps": 1, "hwm": 2, "max_queue_size": 3, "topic": "kv@pod@model"} `,
			want: &Options{
				Endpoint: "tcp://indexer:5557", ReplayEndpoint: "tcp://*:5558", BufferSteps: 1, HWM: 2, MaxQueueSize: 3, Topic: "kv@pod@model",
			},
		},
		{name: "null where it may be", text: `{"enable_kv_cache_events": true, "publisher": null, "replay_endpoint": null}`, want: &Options{}},
		{name: "the last of two", text: `{"enable_kv_cache_events": true, "topic": "a", "topic": "b"}`, want: &Options{Topic: "b"}},
		{name: "nothing", text: `{}`},
		{name: "off", text: `{"enable_kv_cache_events": false, "publisher": "zmq"}`},
		{name: "to nobody", text: `{"enable_kv_cache_events": true, "publisher": "null"}`},
		{name: "empty", text: ``, err: "want a JSON object"},
		{name: "no JSON", text: `{"topic": kv}`, err: "want a JSON object"},
		{name: "no object", text: `[]`, err: "want a JSON object"},
		{name: "null", text: `null`, err: "it is null: want a JSON object"},
		{name: "two", text: `{} {}`, err: "something follows the object at byte 4"},
		{name: "unknown", text: `{"enable_kv_cache_events": true, "topics": "kv"}`, err: `unknown field "topics": want a JSON object`},
		{name: "unknown though off", text: `{"bufferSteps": 1}`, err: `unknown field "bufferSteps"`},
		{name: "a publisher of others", text: `{"publisher": "nats"}`, err: `publisher "nats": want "zmq" or "null"`},
		{name: "a text for a number", text: `{"hwm": "1"}`, err: `hwm has the wrong type: string`},
		{name: "half a number", text: `{"hwm": 1.5}`, err: `hwm has the wrong type: number 1.5`},
		{name: "none kept", text: `{"buffer_steps": 0}`, err: "buffer_steps: 0: want 1 at least"},
		{name: "negative", text: `{"max_queue_size": -1}`, err: "max_queue_size: -1: "},
		{name: "no endpoint", text: `{"endpoint": "5557"}`, err: `endpoint "5557": want tcp://host:port or ipc://path`},
		{name: "an endpoint without a port", text: `{"replay_endpoint": "tcp://*"}`, err: `endpoint "tcp://*": want tcp://host:port`},
		{name: "no such port", text: `{"endpoint": "tcp://*:99999"}`, err: `endpoint "tcp://*:99999": port "99999": want a number up to 65535`},
		{
			name: "any port, and a path", text: `{"enable_kv_cache_events": true, "endpoint": "tcp://*:*", "replay_endpoint": "ipc:///tmp/a"}`,
			want: &Options{Endpoint: "tcp://*:*", ReplayEndpoint: "ipc:///tmp/a"},
		},
		{name: "a number for a flag", text: `{"enable_kv_cache_events": 1}`, err: "enable_kv_cache_events has the wrong type: number"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseConfig(tt.text)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(tt.want, got), "(-want +got)")
		})
	}
}

func TestParseIntHashes(t *testing.T) {
	tests := []struct {
		name, value string
		want, wrong bool
	}{
		{name: "unset"},
		{name: "one", value: "1"},
		{name: "zero", value: "0", want: true},
		{name: "zero with space, as Python takes it", value: " 0 ", want: true},
		{name: "another", value: "-3"},
		{name: "a word", value: "false", wrong: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseIntHashes(tt.value)
			require.True(t, got == tt.want && err != nil == tt.wrong, "%v, %v", got, err)
			require.True(t, !tt.wrong || strings.Contains(err.Error(), EnvIntHashes+`="`+tt.value+`"`), "%v does not name the variable", err)
		})
	}
}
