package protocol

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// decoders are all readers of foreign bytes, with the real frames of the newest
// release that each must read.
var decoders = []struct {
	name   string
	frames []string
	decode func(*Codec, []byte) error
}{
	{
		"request",
		[]string{"rust-10-add-params", "rust-10-add-lora", "rust-11-add-image", "pyfe-10-add-json-schema", "enc-request-prompt-embeds"},
		func(c *Codec, b []byte) error { return c.DecodeRequest(b, new(Request)) },
	},
	{
		"abort",
		[]string{"rust-40-abort", "enc-abort"},
		func(_ *Codec, b []byte) error { _, err := DecodeAbort(b); return err },
	},
	{
		"utility call",
		[]string{"rust-30-util-add_lora", "rust-30-util-collective_rpc", "pyfe-30-util-wake_up"},
		func(_ *Codec, b []byte) error { _, err := DecodeUtilityCall(b); return err },
	},
	{
		"start wave",
		[]string{"rust-52-dp-coord-msg1"},
		func(_ *Codec, b []byte) error { _, _, err := DecodeStartWave(b); return err },
	},
	{
		"init",
		[]string{"rust-02-init", "rust-50-dp-init-rank1"},
		func(_ *Codec, b []byte) error { _, err := DecodeInit(b); return err },
	},
	{
		"status",
		[]string{"rust-01-hello", "rust-04-ready"},
		func(_ *Codec, b []byte) error { _, err := DecodeStatus(b); return err },
	},
	{
		"registration",
		[]string{"rust-03-register", "enc-ready-response"},
		func(_ *Codec, b []byte) error { _, err := DecodeReady(b); return err },
	},
	{
		"outputs",
		[]string{
			"enc-outputs-first-token", "enc-outputs-logprobs-aux", "enc-outputs-utility-true", "enc-outputs-utility-fail",
			"enc-outputs-request-error", "enc-outputs-start-wave", "enc-outputs-weight-version",
		},
		func(c *Codec, b []byte) error { return c.DecodeOutputs(b, new(Outputs)) },
	},
}

// realFrames returns the payloads of the newest release, by vector name.
func realFrames(t testing.TB) map[string][]byte {
	t.Helper()
	frames := map[string][]byte{}
	for _, v := range loadVectors(t) {
		if LineOf(v.Release) != recorded {
			continue
		}
		payload := v.Frames[0]
		if len(payload) == 1 {
			payload = v.Frames[1] // after the request type
		}
		frames[v.Name] = payload
	}
	return frames
}

// eachDecoder calls f with every decoder and each of its frames.
func eachDecoder(t *testing.T, f func(t *testing.T, frame []byte, decode func([]byte) error)) {
	t.Helper()
	frames, c := realFrames(t), codecOf(t, recorded)
	for _, d := range decoders {
		for _, name := range d.frames {
			t.Run(d.name+"/"+name, func(t *testing.T) {
				if frames[name] == nil {
					t.Fatal("no such vector")
				}
				f(t, frames[name], func(b []byte) error { return d.decode(c, b) })
			})
		}
	}
}

// TestOtherLengths: a message that ends early is refused, and one with something after it.
func TestOtherLengths(t *testing.T) {
	eachDecoder(t, func(t *testing.T, frame []byte, decode func([]byte) error) {
		require.NoError(t, decode(frame))
		for n := range frame {
			if err := decode(frame[:n:n]); err == nil {
				t.Errorf("the first %d of %d bytes are taken for the message", n, len(frame))
			}
		}
		for _, tail := range [][]byte{{0xc0}, {0xc1}, frame} {
			require.ErrorContains(t, decode(slices.Concat(frame, tail)), fmt.Sprintf("%d bytes after", len(tail)))
		}
	})
}

// killers are frames that end decoders which trust them: claimed lengths of
// gigabytes, nesting that overflows a stack, the byte that is never valid.
func killers() map[string][]byte {
	return map[string][]byte{
		"empty":        {},
		"never":        {0xc1},
		"array of 4G":  {0xdd, 0xff, 0xff, 0xff, 0xff},
		"map of 4G":    {0xdf, 0xff, 0xff, 0xff, 0xff},
		"str of 4G":    {0xdb, 0xff, 0xff, 0xff, 0xff},
		"bin of 4G":    {0xc6, 0xff, 0xff, 0xff, 0xff},
		"ext of 4G":    {0xc9, 0xff, 0xff, 0xff, 0xff, 3},
		"deep arrays":  bytes.Repeat([]byte{0x91}, 1<<20),
		"deep maps":    bytes.Repeat([]byte{0x81}, 1<<20),
		"long, no end": append([]byte{0xdd, 0x00, 0x10, 0x00, 0x00}, bytes.Repeat([]byte{0xc0}, 1<<20-1)...),
	}
}

// TestKillers puts the killers in place of a message, and where a value is expected.
func TestKillers(t *testing.T) {
	for name, killer := range killers() {
		eachDecoder(t, func(t *testing.T, frame []byte, decode func([]byte) error) {
			if err := decode(killer); err == nil {
				t.Errorf("%s: taken for a message", name)
			}
			if ViewOf(frame).Kind() != pack.Array {
				return
			}
			values := elements(t, frame)
			for i := range values {
				if err := decode(array(replaced(values, i, killer)...)); err == nil {
					t.Errorf("%s in place of value %d: taken for a message", name, i)
				}
			}
		})
	}
}

func array(values ...[]byte) []byte {
	return append(pack.AppendArrayHeader(nil, len(values)), slices.Concat(values...)...)
}

func replaced(values [][]byte, i int, with []byte) [][]byte {
	values = slices.Clone(values)
	values[i] = with
	return values
}

// samples has a value of each kind.
var samples = map[pack.Kind][]byte{
	pack.Nil:    {0xc0},
	pack.Bool:   {0xc3},
	pack.Int:    {0x05},
	pack.Float:  pack.AppendFloat64(nil, 0.5),
	pack.String: {0xa1, 'x'},
	pack.Bin:    {0xc4, 0x01, 'x'},
	pack.Array:  {0x91, 0xc3},
	pack.Map:    {0x81, 0xc3, 0xc3},
	pack.Ext:    {0xd4, 0x03, 0x00},
}

// TestWrongKinds puts a value of every kind into every field of a request: what
// the field does not take is an error that names it, and what stands before
// the field can still be read, so that the sender can be answered.
func TestWrongKinds(t *testing.T) {
	anything := []pack.Kind{pack.Nil, pack.Bool, pack.Int, pack.Float, pack.String, pack.Bin, pack.Array, pack.Map, pack.Ext}
	takes := map[string][]pack.Kind{
		"request_id":         {pack.String},
		"prompt_token_ids":   {pack.Nil},
		"sampling_params":    {pack.Nil},
		"arrival_time":       {pack.Nil, pack.Float, pack.Int},
		"lora_request":       {pack.Nil},
		"cache_salt":         {pack.Nil, pack.String},
		"data_parallel_rank": {pack.Nil, pack.Int},
		"client_index":       {pack.Nil, pack.Int},
		"current_wave":       {pack.Nil, pack.Int},
		"priority":           {pack.Nil, pack.Int},
		"resumable":          {pack.Nil, pack.Bool},
		"external_req_id":    {pack.Nil, pack.String},
		"abort_immediately":  {pack.Nil, pack.Bool},
		"session_id":         {pack.Nil, pack.String},
	}
	sent := plainRequest("req-9")
	sent.ClientIndex = 6
	for _, line := range Lines() {
		c := codecOf(t, line)
		values := elements(t, c.AppendRequest(nil, sent))
		clientAt := c.Profile().Structs["EngineCoreRequest"].Index("client_index")
		for i, field := range c.Profile().Structs["EngineCoreRequest"].Fields {
			allowed, ok := takes[field.Name]
			if !ok {
				allowed = anything
			}
			for _, kind := range anything {
				t.Run(fmt.Sprintf("%s/%s/%s", line, field.Name, kind), func(t *testing.T) {
					var r Request
					err := c.DecodeRequest(array(replaced(values, i, samples[kind])...), &r)
					if slices.Contains(allowed, kind) {
						require.NoErrorf(t, err, "refused")
						return
					}
					require.True(t, err != nil && strings.HasPrefix(err.Error(), "EngineCoreRequest."+field.Name+": "), "got %v, want one that names the field", err)
					require.True(t, (i <= 0 || r.ID == "req-9") && (i <= clientAt || r.ClientIndex == 6), "id %q of client %d, want what stands before the field", r.ID, r.ClientIndex)
				})
			}
		}
	}
}

func TestBadValues(t *testing.T) {
	c := codecOf(t, recorded)
	values := elements(t, c.AppendRequest(nil, plainRequest("a")))
	sampling := func(key string, value []byte) []byte {
		return append(pack.AppendString(pack.AppendMapHeader(nil, 1), key), value...)
	}
	huge, negative := pack.AppendUint(nil, 1<<64-1), pack.AppendInt(nil, -3)
	for _, test := range []struct {
		name  string
		at    int
		value []byte
		want  string
	}{
		{"negative token", 1, array(negative), "prompt_token_ids: msgpack: byte"},
		{"token of 33 bits", 1, array(pack.AppendUint(nil, 1<<32)), "prompt_token_ids: msgpack: byte"},
		{"token that is a float", 1, array(samples[pack.Float]), "prompt_token_ids: msgpack: byte"},
		{"integer as a sampling key", 3, []byte{0x81, 0x05, 0x05}, "sampling_params: key: msgpack: byte"},
		{"max_tokens negative", 3, sampling("max_tokens", negative), "sampling_params: max_tokens: -3 is out of range"},
		{"max_tokens huge", 3, sampling("max_tokens", huge), "sampling_params: max_tokens: msgpack"},
		{"min_tokens of 32 bits", 3, sampling("min_tokens", pack.AppendUint(nil, 1<<31)), "sampling_params: min_tokens: 2147483648 is out of range"},
		{"logprobs -2", 3, sampling("logprobs", pack.AppendInt(nil, -2)), "sampling_params: logprobs: -2 is out of range"},
		{"prompt_logprobs huge", 3, sampling("prompt_logprobs", pack.AppendInt(nil, 1<<20+1)), "sampling_params: prompt_logprobs: 1048577 is out of range"},
		{"temperature text", 3, sampling("temperature", samples[pack.String]), "sampling_params: temperature: msgpack"},
		{"ignore_eos 1", 3, sampling("ignore_eos", samples[pack.Int]), "sampling_params: ignore_eos: msgpack"},
		{"stop ids nested", 3, sampling("stop_token_ids", samples[pack.Array]), "sampling_params: stop_token_ids: msgpack"},
		{"seed too wide", 3, sampling("seed", huge), "sampling_params: seed: msgpack"},
		{"_eos_token_id text", 3, sampling("_eos_token_id", samples[pack.String]), "sampling_params: _eos_token_id: msgpack"},
		{"unfinished sampling value", 3, []byte{0x81, 0xa1, 'x', 0xc1}, "sampling_params: x: msgpack"},
		{"lora of one field", 6, array(samples[pack.String]), "lora_request: LoRARequest has 1 fields"},
		{"lora without a name", 6, array(samples[pack.Nil], samples[pack.Int]), "lora_request: lora_name: "},
		{"lora without an id", 6, array(samples[pack.String], samples[pack.Nil]), "lora_request: lora_int_id: "},
		{"lora path", 6, array(samples[pack.String], samples[pack.Int], samples[pack.Int]), "lora_request: lora_path: "},
		{"rank negative", 8, negative, "data_parallel_rank: -3 is out of range"},
		{"client negative", 11, negative, "client_index: -3 is out of range"},
		{"client of 32 bits", 11, pack.AppendUint(nil, 1<<31), "client_index: 2147483648 is out of range"},
		{"client huge", 11, huge, "client_index: msgpack: byte"},
		{"priority huge", 13, huge, "priority: msgpack: byte"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r Request
			err := c.DecodeRequest(array(replaced(values, test.at, test.value)...), &r)
			require.True(t, err != nil && strings.HasPrefix(err.Error(), "EngineCoreRequest."+test.want), "got %v, want EngineCoreRequest.%s", err, test.want)
			require.True(t, r.ID == "a" && r.ClientIndex == 0, "id %q, client %d", r.ID, r.ClientIndex)
		})
	}
}

// TestRequestLengths: a request may be shorter than the line's, down to the
// fields without a default, and longer, when a newer frontend sends it.
func TestRequestLengths(t *testing.T) {
	c := codecOf(t, "0.27")
	values := elements(t, c.AppendRequest(nil, plainRequest("a")))
	known := len(values)
	for len(values) < 30 {
		values = append(values, pack.AppendInt(nil, int64(len(values))))
	}
	for n := range len(values) + 1 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			var r Request
			err := c.DecodeRequest(array(values[:n]...), &r)
			if n < minRequestFields {
				require.True(t, err != nil && err.Error() == fmt.Sprintf("EngineCoreRequest: %d fields, the line 0.27 requires 9", n), "got %v", err)
				require.True(t, n <= 0 || r.ID == "a", "id %q", r.ID)
				return
			}
			require.True(t, err == nil && r.Fields == n && r.HasSampling && r.ClientIndex == 0, "%+v %v", r, err)
			if diff := cmp.Diff(values[min(n, known):n], r.Tail, cmp.Transformer("len0", func(v [][]byte) []string {
				var list []string
				for _, raw := range v {
					list = append(list, string(raw))
				}
				return list
			})); diff != "" {
				t.Errorf("tail: -want +got:\n%s", diff)
			}
		})
	}
	var r Request
	if err := c.DecodeRequest(array(replaced(values, 25, []byte{0xc1})...), &r); err == nil || !strings.HasPrefix(err.Error(), "EngineCoreRequest.[25]: ") {
		t.Errorf("bad value in the tail: %v", err)
	}
	require.Equal(t, len(r.Tail), 25-known, "values kept: those before the bad one")
}

// TestDecodeReuses: nothing of an earlier request shows in a later one.
func TestDecodeReuses(t *testing.T) {
	c := codecOf(t, recorded)
	frames := realFrames(t)
	var reused Request
	for _, name := range []string{
		"rust-10-add-params", "rust-10-add-lora", "enc-request-prompt-embeds", "rust-10-add-logprobs",
		"rust-11-add-image", "pyfe-10-add-kvparams", "pyfe-10-add-basic", "rust-10-add-basic",
	} {
		var fresh Request
		require.NoError(t, c.DecodeRequest(frames[name], &fresh))
		require.NoError(t, c.DecodeRequest(frames[name], &reused))
		if diff := cmp.Diff(fresh, reused, cmp.Transformer("stops", func(s Sampling) any {
			ids := fmt.Sprint(s.StopTokenIDs)
			s.StopTokenIDs = nil
			return []any{ids, fmt.Sprintf("%+v", s)}
		})); diff != "" {
			t.Errorf("%s: -fresh +reused:\n%s", name, diff)
		}
	}
	if err := c.DecodeRequest([]byte{0xc1}, &reused); err == nil || reused.ID != "" || reused.HasSampling || reused.ClientIndex != 0 {
		t.Errorf("after bad bytes: %v, %+v", err, reused)
	}
}
