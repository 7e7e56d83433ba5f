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

// realAdd returns the request of a real ADD message.
func realAdd(t testing.TB, release, name string) [][]byte {
	t.Helper()
	for _, v := range loadVectors(t) {
		if v.Release == release && v.Name == name {
			return v.Frames[1:]
		}
	}
	t.Fatalf("no vector %s of %s", name, release)
	return nil
}

// A request of another line is reported by the fields that do not fit, with the
// lines that it does fit.
func TestRequestsOfOtherLines(t *testing.T) {
	tests := []struct {
		name, release, line string
		want                []string
	}{
		{name: "a newer one", release: "0.33.0", line: "0.27", want: []string{
			"EngineCoreRequest.sampling_params.watermarking: expected no such key: line 0.27 does not know it, found true (byte 52): a key of 0.30–" + Newest() + "; this is the layout of 0.31–" + Newest(),
			"EngineCoreRequest[20]: expected no more than the 20 fields of line 0.27, found nil (byte 331): field 20 is session_id in 0.28–" + Newest(),
			"EngineCoreRequest[21]: expected no more than the 20 fields of line 0.27, found nil (byte 332): field 21 is kv_hints in 0.31–" + Newest(),
		}},
		{name: "an older one", release: "0.27.1", line: "0.33", want: []string{
			"EngineCoreRequest: expected 22 fields, found 20 fields: without session_id, kv_hints (byte 0): EngineCoreRequest has 20 fields in 0.25–0.27; this is the layout of 0.25–0.27",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			frames := realAdd(t, test.release, "rust-10-add-basic")
			found := codecOf(t, test.line).CheckRequest(frames[0], frames[1:]...)
			require.NoDiff(t, cmp.Diff(test.want, texts(found)), "mismatches (-want +got)")
		})
	}
}

// msg writes a message: nil, bool, int, float64, string, []any, and pack bytes as
// they are. A map is a list that begins with a colon.
func msg(v any) []byte {
	switch v := v.(type) {
	case bool:
		return pack.AppendBool(nil, v)
	case int:
		return pack.AppendInt(nil, int64(v))
	case float64:
		return pack.AppendFloat64(nil, v)
	case string:
		return pack.AppendString(nil, v)
	case []byte:
		return v
	case []any:
		b := pack.AppendArrayHeader(nil, len(v))
		if len(v) > 0 && v[0] == ":" {
			b, v = pack.AppendMapHeader(nil, (len(v)-1)/2), v[1:]
		}
		for _, e := range v {
			b = append(b, msg(e)...)
		}
		return b
	}
	return pack.AppendNil(nil)
}

// requestWith is a request of line 0.33 with some fields changed.
func requestWith(change map[int]any) []byte {
	fields := []any{"r", []any{1, 2}, nil, []any{":"}, nil, 1.5, nil, nil, nil, nil, nil, 0, 0, 0, nil, false, "r", nil, nil, false, nil, nil}
	for i, v := range change {
		fields[i] = v
	}
	return msg(fields)
}

func sampling(pairs ...any) map[int]any { return map[int]any{3: append([]any{":"}, pairs...)} }

func embeds(data any, shape ...any) map[int]any {
	return map[int]any{9: []any{"float32", shape, data}}
}

func TestCheckRequest(t *testing.T) {
	view := func(n int) []byte { return pack.AppendExt(nil, ExtRawView, make([]byte, n)) }
	tests := []struct {
		name    string
		payload []byte
		aux     [][]byte
		want    string // of the first mismatch; empty for none
	}{
		{name: "sound", payload: requestWith(nil)},
		{name: "empty", want: "EngineCoreRequest: expected one well-formed message, found "},
		{name: "cut off", payload: requestWith(nil)[:9], want: "EngineCoreRequest: expected one well-formed message, found "},
		{name: "something behind", payload: append(requestWith(nil), 0xc0), want: "EngineCoreRequest: expected one well-formed message, found "},
		{name: "a map", payload: msg([]any{":", "request_id", "r"}), want: `EngineCoreRequest: expected EngineCoreRequest, found {"request_id": "r"} (byte 0)`},
		{name: "an int for a str", payload: requestWith(map[int]any{0: 7}), want: "EngineCoreRequest.request_id: expected str (field 0 of line 0.33), found 7 (byte 3)"},
		{name: "no UTF-8", payload: requestWith(map[int]any{0: "\xff"}), want: `EngineCoreRequest.request_id: expected str in UTF-8 (field 0 of line 0.33), found "\xff" (byte 3)`},
		{name: "in a list", payload: requestWith(map[int]any{1: []any{1, 2, "3"}}), want: `EngineCoreRequest.prompt_token_ids[2]: expected int, found "3" (byte 8)`},
		{name: "a bool for an int", payload: requestWith(map[int]any{13: true}), want: "EngineCoreRequest.priority: expected int (field 13 of line 0.33), found true"},
		{name: "a float for an int", payload: requestWith(map[int]any{13: 1.0}), want: "EngineCoreRequest.priority: expected int (field 13 of line 0.33), found 1.0"},
		{name: "an int for a float", payload: requestWith(map[int]any{5: 1})},
		{name: "nil for an int", payload: requestWith(map[int]any{11: nil}), want: "EngineCoreRequest.client_index: expected int (field 11 of line 0.33), found nil"},
		{name: "an int for a bool", payload: requestWith(map[int]any{19: 0}), want: "EngineCoreRequest.abort_immediately: expected bool (field 19 of line 0.33), found 0"},
		{name: "stop ids", payload: requestWith(sampling("stop_token_ids", []any{1, 2, 3, nil})), want: "EngineCoreRequest.sampling_params.stop_token_ids[3]: expected int, found nil"},
		{name: "an unknown key", payload: requestWith(sampling("max_token", 5)), want: "EngineCoreRequest.sampling_params.max_token: expected no such key: line 0.33 does not know it, found 5"},
		{name: "a key twice", payload: requestWith(sampling("seed", 5, "seed", 6)), want: "EngineCoreRequest.sampling_params.seed: expected the key once, found 6"},
		{name: "a key of another kind", payload: requestWith(sampling(5, 5)), want: "EngineCoreRequest.sampling_params: expected the name of a field of SamplingParams, found 5"},
		{name: "an enum", payload: requestWith(sampling("output_kind", 3)), want: "EngineCoreRequest.sampling_params.output_kind: expected RequestOutputKind, one of [0 1 2], found 3"},
		{name: "int keys", payload: requestWith(sampling("logit_bias", []any{":", 5, 1.5, 7, 2}))},
		{name: "other keys", payload: requestWith(sampling("logit_bias", []any{":", "5", 1.5})), want: `EngineCoreRequest.sampling_params.logit_bias.key: expected int, found "5"`},
		{name: "values", payload: requestWith(sampling("logit_bias", []any{":", 5, "x"})), want: `EngineCoreRequest.sampling_params.logit_bias.5: expected float, found "x"`},
		{name: "one of three types", payload: requestWith(sampling("stop", []any{"a", 5})), want: "EngineCoreRequest.sampling_params.stop[1]: expected str, found 5"},
		{name: "none of three types", payload: requestWith(sampling("stop", 5)), want: "EngineCoreRequest.sampling_params.stop: expected str | list[str] | None, found 5"},
		{name: "a list of lists", payload: requestWith(sampling("_bad_words_token_ids", []any{[]any{1}, []any{"a"}})), want: `EngineCoreRequest.sampling_params._bad_words_token_ids[1][0]: expected int, found "a"`},
		{name: "anything", payload: requestWith(sampling("extra_args", []any{":", "a", []any{nil, 5}}))},
		{name: "a missing key", payload: requestWith(map[int]any{21: []any{":", "message_id", "m", "actions", []any{}}}), want: "EngineCoreRequest.kv_hints.protocol_version: expected str, found missing"},
		{name: "a tensor", payload: requestWith(embeds(view(24), 2, 3))},
		{name: "a tensor in a frame", payload: requestWith(embeds(1, 2, 3)), aux: [][]byte{make([]byte, 24)}},
		{name: "a frame that is not there", payload: requestWith(embeds(2, 2, 3)), aux: [][]byte{make([]byte, 24)}, want: "EngineCoreRequest.prompt_embeds.data: expected ext 3, or the number of one of 1 auxiliary frames, found 2"},
		{name: "the message as a frame", payload: requestWith(embeds(0, 2, 3)), aux: [][]byte{make([]byte, 24)}, want: "EngineCoreRequest.prompt_embeds.data: expected ext 3, or the number of one of 1 auxiliary frames, found 0"},
		{name: "too few bytes", payload: requestWith(embeds(view(20), 2, 3)), want: "EngineCoreRequest.prompt_embeds.data: expected 24 bytes by dtype and shape, found 20 bytes"},
		{name: "a huge shape", payload: requestWith(embeds(view(20), 1<<39, 1<<39)), want: "EngineCoreRequest.prompt_embeds.data: expected a shape, a list of sizes, found another"},
		{name: "no shape", payload: requestWith(embeds(view(20), -1)), want: "EngineCoreRequest.prompt_embeds.data: expected a shape, a list of sizes, found another"},
		{name: "bin for ext", payload: requestWith(embeds(pack.AppendBin(nil, make([]byte, 24)), 2, 3)), want: "EngineCoreRequest.prompt_embeds.data: expected ext 3"},
		{name: "a numpy type", payload: requestWith(map[int]any{9: []any{"<f4", []any{1}, view(4)}}), want: `EngineCoreRequest.prompt_embeds.dtype: expected the dtype of a torch tensor, such as "float32", found "<f4"`},
	}
	c := codecOf(t, recorded)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := ""
			if found := c.CheckRequest(test.payload, test.aux...); len(found) > 0 {
				got = found[0].String()
			}
			require.True(t, (test.want != "" || got == "") && strings.HasPrefix(got, test.want), "got  %s\nwant %s", got, test.want)
		})
	}
}

func TestCheckMessage(t *testing.T) {
	add, abort, utility := []byte{TypeAdd}, []byte{TypeAbort}, []byte{TypeUtility}
	call := func(method string, args ...any) []byte { return msg([]any{0, 5, method, args}) }
	lora := []any{"a", 1, "p", nil, false, false}
	tests := []struct {
		name   string
		line   string
		frames [][]byte
		want   string
	}{
		{name: "add", frames: [][]byte{add, requestWith(nil)}},
		{name: "abort", frames: [][]byte{abort, msg([]any{"a", "b"})}},
		{name: "abort of a number", frames: [][]byte{abort, msg([]any{"a", 5})}, want: "Abort[1]: expected str, found 5 (byte 3)"},
		{name: "no payload", frames: [][]byte{add}, want: "message: expected a frame of one byte, the request type, and a payload, found 1 frames, of [1] bytes"},
		{name: "a long type", frames: [][]byte{{0, 0}, nil, nil, nil, nil, nil}, want: "message: expected a frame of one byte, the request type, and a payload, found 6 frames, of [2 0 0 0 …] bytes"},
		{name: "a wave", frames: [][]byte{{TypeStartDPWave}, msg([]any{1, 0})}, want: "message.type: expected 00 (ADD), 01 (ABORT) or 03 (UTILITY), found 02"},
		{name: "call", frames: [][]byte{utility, call("sleep", 1, "wait")}},
		{name: "call with defaults", frames: [][]byte{utility, call("sleep")}},
		{name: "call with an adapter", frames: [][]byte{utility, call("add_lora", lora)}},
		{name: "of three values", frames: [][]byte{utility, msg([]any{0, 5, "sleep"})}, want: "UtilityCall: expected [client_index, call_id, method, args], found"},
		{name: "another mode", frames: [][]byte{utility, call("sleep", 1, "off")}, want: `UtilityCall.sleep.mode: expected PauseMode, one of abort, wait, keep, found "off"`},
		{name: "another type", frames: [][]byte{utility, call("sleep", "1")}, want: `UtilityCall.sleep.level: expected int, found "1"`},
		{name: "too many", frames: [][]byte{utility, call("is_sleeping", 1)}, want: "UtilityCall.is_sleeping: expected the arguments of is_sleeping(self) -> bool, found 1 argument"},
		{name: "too few", frames: [][]byte{utility, call("remove_lora")}, want: "UtilityCall.remove_lora: expected the arguments of remove_lora(self, lora_id: int) -> bool, found 0 arguments"},
		{name: "any method", frames: [][]byte{utility, call("shutdown")}, want: `UtilityCall.method: expected a method of the engine of line 0.33, found "shutdown" (byte 3)`},
		{name: "a method of other lines", line: "0.27", frames: [][]byte{utility, call("pause_generation")}, want: `UtilityCall.method: expected a method of the engine of line 0.27, found "pause_generation" (byte 3): a method of ` + since("0.33") + `; this is the layout of ` + since("0.33")},
		{name: "no method", frames: [][]byte{utility, msg([]any{0, 5, nil, []any{}})}, want: "UtilityCall.method: expected str, the name of a method, found nil (byte 3)"},
		{name: "arguments by name", frames: [][]byte{utility, msg([]any{0, 5, "sleep", []any{":"}})}, want: "UtilityCall.args: expected list of arguments, found {}"},
		{name: "a pickled function", frames: [][]byte{utility, call("collective_rpc", pack.AppendExt(nil, 2, []byte("f")), nil, []any{}, nil)}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			line := test.line
			if line == "" {
				line = recorded
			}
			got := ""
			if found := codecOf(t, line).CheckMessage(test.frames); len(found) > 0 {
				got = found[0].String()
			}
			require.True(t, (test.want != "" || got == "") && strings.HasPrefix(got, test.want), "got  %s\nwant %s", got, test.want)
		})
	}
}

// Nothing in a real request can become something else unseen, but for what its
// types leave open.
func TestEveryValueOfARequestCounts(t *testing.T) {
	open := []string{".extra_args.", ".chat_template_kwargs", ".json."}
	c := codecOf(t, recorded)
	values := 0
	for _, v := range loadVectors(t) {
		if v.Release != "0.33.0" || !strings.Contains(v.Name, "-add-") || strings.HasPrefix(v.Name, "enc-") {
			continue
		}
		ViewOf(v.Frames[1]).Walk(func(part Value) bool {
			if slices.ContainsFunc(open, func(o string) bool { return strings.Contains(part.Path()+".", o) }) {
				return false
			}
			values++
			// An ext of a code that nothing uses is no value of any type.
			if found := c.CheckRequest(part.Set(pack.AppendExt(nil, 5, []byte("?"))), v.Frames[2:]...); len(found) == 0 {
				t.Errorf("%s: %s became an ext, and nothing was found", v.Name, part.Path())
			}
			return true
		})
	}
	require.True(t, values >= 700, "%d values changed, want more", values)
}

// What a message holds wrong is listed up to a bound, however much it is.
func TestMismatchesAreBounded(t *testing.T) {
	wrong := make([]any, 10_000)
	found := codecOf(t, recorded).CheckRequest(requestWith(map[int]any{1: wrong}))
	require.True(t, len(found) == maxMismatches, "%d mismatches, want %d", len(found), maxMismatches)
}

func FuzzCheckMessage(f *testing.F) {
	seed(f, "-add-", "-util-", "-abort", "-out-", "enc-")
	c, older := codecOf(f, recorded), codecOf(f, "0.27")
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, codec := range []*Codec{c, older} {
			for _, found := range [][]Mismatch{
				codec.CheckRequest(data), codec.CheckUtility(data), codec.CheckAbort(data), codec.CheckOutputs(data), codec.CheckReady(data), codec.CheckInit(data),
			} {
				for _, m := range found {
					if m.Path == "" || m.Expected == "" || m.Actual == "" || m.Offset < 0 || m.Offset > len(data) {
						t.Fatalf("a mismatch without a place: %+v in %s", m, pack.Format(data))
					}
				}
			}
		}
		// What passes the strict check is no surprise to the decoder.
		if len(c.CheckAbort(data)) == 0 {
			if _, err := DecodeAbort(data); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A struct may have more fields than a machine word has bits.
func TestCheckManyFields(t *testing.T) {
	newest, err := LoadProfile(Newest())
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, WriteProfile(&text, newest))
	p, err := ReadProfile(&text)
	require.NoError(t, err)
	wide := p.Structs["SamplingParams"]
	for i := range 60 {
		wide.Fields = append(wide.Fields, Field{Name: fmt.Sprintf("later_%d", i), Type: "int", Required: true})
	}
	c, err := NewCodec(p)
	require.NoError(t, err)
	p.Structs["SamplingParams"] = wide // after it: a codec wants a value for each field that is required
	later := func(numbers ...int) (paths []string) {
		var pairs []any
		for _, i := range numbers {
			pairs = append(pairs, fmt.Sprintf("later_%d", i), i)
		}
		payload := requestWith(sampling(pairs...))
		for _, m := range c.CheckRequest(payload) {
			if text := m.String(); strings.Contains(text, "later_") {
				paths = append(paths, text)
			}
		}
		if err := c.Undecodable(payload); err != nil {
			paths = append(paths, err.Error())
		}
		return paths
	}
	all := make([]int, 60)
	for i := range all {
		all[i] = i
	}
	if found := later(all...); len(found) > 0 {
		t.Errorf("all fields are there, and found %s", found[0])
	}
	if found := later(all[:59]...); len(found) != 2 {
		t.Errorf("without the last field: %d findings %v, want one of each check", len(found), found)
	}
	if found := later(append(all, 59)...); len(found) == 0 {
		t.Error("the last field is there twice, and nothing is found")
	}
}
