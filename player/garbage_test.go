package player

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// No message stops the service of a tolerant player for others: between any two pieces of garbage a
// request is answered, and one that was open all along is answered at the end.
func TestGarbageDoesNotStopTheService(t *testing.T) {
	nested := bytes.Repeat([]byte{0x91}, 100_000)
	claim := []byte{0xdd, 0xff, 0xff, 0xff, 0xff} // an array of 2^32-1
	frames := func(n int) [][]byte {
		all := make([][]byte, n)
		for i := range all {
			all[i] = []byte{}
		}
		return all
	}
	unreadable := requestOf(t, "0.33", ask("\xff", count(0, 4), 1))
	add, abort, utility := []byte{protocol.TypeAdd}, []byte{protocol.TypeAbort}, []byte{protocol.TypeUtility}
	garbage := []struct {
		name   string
		frames [][]byte
		quiet  bool // nobody is told
	}{
		{"one frame", [][]byte{add}, false},
		{"one empty frame", frames(1), false},
		{"two empty frames", frames(2), false},
		{"many empty frames", frames(200), false},
		{"a type of two bytes", [][]byte{{0, 0}, {0x90}}, false},
		{"a type that the engine keeps for itself", [][]byte{{4}, {0x90}}, false},
		{"a type that nobody knows", [][]byte{{0xff}, {0x90}}, false},
		{"READY from a coordinator", [][]byte{[]byte("READY")}, false},
		{"a wave", [][]byte{{protocol.TypeStartDPWave}, {0x92, 0, 0xc0}}, true},
		{"a wave that is none", [][]byte{{protocol.TypeStartDPWave}, {0xc1}}, true},
		{"a request of nothing", [][]byte{add, {}}, false},
		{"a request that is nil", [][]byte{add, {0xc0}}, false},
		{"a request of a reserved byte", [][]byte{add, {0xc1}}, false},
		{"a request that claims much", [][]byte{add, claim}, false},
		{"a request that claims a long id", [][]byte{add, {0x92, 0xdb, 0xff, 0xff, 0xff, 0xff}}, false},
		{"a request with an id of bytes", [][]byte{add, {0x92, 0xc4, 1, 'a'}}, false},
		{"a request with an id that is no text", [][]byte{add, {0x92, 0xa1, 0xff}}, false},
		{"a whole request with an id that is no text", [][]byte{add, unreadable}, false},
		{"a request nested deep", [][]byte{add, nested}, false},
		{"an abort of nothing", [][]byte{abort, {}}, false},
		{"an abort that claims much", [][]byte{abort, claim}, false},
		{"an abort of numbers", [][]byte{abort, {0x91, 7}}, false},
		{"an abort nested deep", [][]byte{abort, nested}, false},
		{"an abort of unknown ids", [][]byte{abort, protocol.AppendAbort(nil, "x", "", "y")}, true},
		{"a call of nothing", [][]byte{utility, {}}, false},
		{"a call that claims much", [][]byte{utility, claim}, false},
		{"a call without a number", [][]byte{utility, {0x94, 0, 0xc0, 0xa1, 'x', 0x90}}, false},
		{"a call of a method that is no text", [][]byte{utility, {0x94, 0, 5, 0xa1, 0xff, 0x90}}, false},
		{"a broken call of a method that is no text", [][]byte{utility, {0x94, 0, 5, 0xa1, 0xff, 7}}, false},
		{"a call nested deep", [][]byte{utility, nested}, false},
	}
	told := make(chan string, len(garbage))
	tr := traceOf(t, take{prompt: count(0, 4), output: []uint32{1, 2, 3}})
	s := connect(t, Options{Tolerant: true, Trace: tr, OnRefused: func(id string, err error) { told <- fmt.Sprintf("%s%v", id, err) }}, 1)
	s.reply(0, "pause_scheduler", pack.AppendString(nil, "keep"))
	s.submit(ask("open-x", count(0, 4), 5))
	for _, g := range garbage {
		require.NoErrorf(t, s.front.SendRaw(0, g.frames...), "%s", g.name)
		if _, err := s.front.Call(0, "is_sleeping"); err != nil {
			t.Fatal(err)
		}
		if u := s.next(0).Utility; u == nil {
			t.Fatalf("%s was answered", g.name)
		}
		select {
		case got := <-told:
			require.True(t, !g.quiet, "%s: OnRefused was told %q", g.name, got)
		default:
			require.True(t, g.quiet, "%s: OnRefused was told nothing", g.name)
		}
	}
	s.reply(0, "resume_scheduler")
	got, _ := s.finished(0, 1)
	equal(t, "the request that was open", randomTokens(0, defaultVocab, "open-x", 5), got["open-x"].tokens)
	s.submit(ask("replay-0", count(0, 4), 9))
	if got, _ = s.finished(0, 1); len(got["replay-0"].tokens) != 3 {
		t.Errorf("a request afterwards got %+v", got["replay-0"])
	}
}

func TestABrokenUtilityCallIsAnsweredByItsNumber(t *testing.T) {
	s := connect(t, Options{}, 1)
	for _, tt := range []struct {
		name    string
		payload []byte
		want    string
	}{
		{"no arguments", []byte{0x94, 0, 9, 0xa1, 'x', 7}, "Call to x method failed: utility call x: args: msgpack: byte 5: expected array, found int"},
		{"no method", []byte{0x94, 0, 9, 7, 0x90}, "Call to  method failed: utility call: method: msgpack: byte 3: expected str, found int"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			must(t, s.front.SendRaw(0, []byte{protocol.TypeUtility}, tt.payload))
			u := s.next(0).Utility
			require.True(t, u != nil && u.CallID == 9 && u.Failure == tt.want, "answered %+v, want call 9: %s", u, tt.want)
		})
	}
}

// An error repeats what a client sent as far as any frontend can read it: one that is sent a string that is not UTF-8 ends.
func TestErrorsAreText(t *testing.T) {
	key := "\xff" + strings.Repeat("k", 10_000)
	r := newRig(t, Options{}, 1)
	broken := protocol.Request{ID: "a", HasSampling: true}
	r.player.answerBroken(&event{request: &broken, broken: fmt.Errorf("sampling_params: %s: no value", key)})
	id := r.call(0, key)
	for what, text := range map[string]string{"request": r.answer("a").err, "utility call": r.result(id)} {
		require.True(t, utf8.ValidString(text) && strings.Contains(text, "\ufffdkkk") && len(text) <= 5000, "the %s got %d bytes: %.100q", what, len(text), text)
	}
}

// KV events repeat the name of an adapter.
func TestTheNameOfAnAdapterIsText(t *testing.T) {
	r := newRig(t, Options{}, 1)
	r.submit(ask("a", count(0, 4), 1, func(q *protocol.Request) { q.LoRA = &protocol.LoRA{Name: "\xff", ID: 1} }))
	require.Contains(t, r.answer("a").err, "is not UTF-8")
}

// requestOf encodes a request as the line's frontend does.
func requestOf(t *testing.T, line string, r *protocol.Request) []byte {
	t.Helper()
	codec, err := protocol.CodecFor(line)
	must(t, err)
	return codec.AppendRequest(nil, r)
}

// unreadableMessages are messages after which an engine of 0.32 reads no other.
func unreadableMessages(t *testing.T) []struct {
	name string
	m    zmq.Message
	want string
} {
	add := func(values map[int]any, extra ...any) zmq.Message {
		fields := []any{"a", []any{1, 2}, nil, map[string]any{"max_tokens": 3}, nil, 1.5, nil, nil, nil}
		for i, v := range values {
			fields[i] = v
		}
		return zmq.Message{{protocol.TypeAdd}, packed(t, append(fields, extra...))}
	}
	sampling := func(key string, value any) zmq.Message {
		return add(map[int]any{3: map[string]any{key: value}})
	}
	return []struct {
		name string
		m    zmq.Message
		want string
	}{
		{"as short as may be", add(nil), ""},
		{"longer than the line's", add(nil, nil, nil, 0, 0, 0, nil, false, nil, nil, nil, false, nil, nil, "later"), ""},
		{"an unknown key", sampling("later", 5), ""},
		{"an adapter", add(map[int]any{6: []any{"n", 1, "/p", nil, false, false}}), ""},
		{"a shorter adapter", add(map[int]any{6: []any{"n", 1}}), ""},
		{"integers for floats", sampling("presence_penalty", 1), ""},
		{"an adapter of 0.31", add(map[int]any{6: []any{"n", 1, "/p", nil, nil, false, false}}), "EngineCoreRequest.lora_request.load_inplace: expected bool, found nil"},
		{"no time", add(map[int]any{5: nil}), "EngineCoreRequest.arrival_time: expected float, found nil"},
		{"a number for text", add(map[int]any{7: 5}), "EngineCoreRequest.cache_salt: expected str | None, found 5"},
		{"text that is none", add(map[int]any{7: "\xff"}), "EngineCoreRequest.cache_salt: expected str in UTF-8"},
		{"a penalty of text", sampling("presence_penalty", "1"), `EngineCoreRequest.sampling_params.presence_penalty: expected float, found "1"`},
		{"a nil that may not be", sampling("temperature", nil), "EngineCoreRequest.sampling_params.temperature: expected float, found nil"},
		{"what the player does not read", sampling("detokenize", 1), "EngineCoreRequest.sampling_params.detokenize: expected bool, found 1"},
		{"a word in place of words", sampling("bad_words", "x"), "EngineCoreRequest.sampling_params.bad_words: expected list[str] | None"},
		{"a list for a map", sampling("logit_bias", []any{5}), "EngineCoreRequest.sampling_params.logit_bias: expected dict[int, float] | None"},
		{"too short", zmq.Message{{protocol.TypeAdd}, packed(t, []any{"a", []any{1}})}, "EngineCoreRequest.mm_features: expected list[MultiModalFeatureSpec] | None, found missing"},
		{"no message", zmq.Message{{protocol.TypeAdd}, {0xc1}}, "never used"},
		{"no type", zmq.Message{{}, {0xc0}}, "does not begin with a request type"},
		{"a type that nobody knows", zmq.Message{{0xff}, {0xc0}}, "unknown request type 0xff"},
		{"an abort that ends too early", zmq.Message{{protocol.TypeAbort}, {0x92}}, "msgpack"},
		{"an abort of numbers", zmq.Message{{protocol.TypeAbort}, {0x91, 7}}, ""},
		{"a call of three values", zmq.Message{{protocol.TypeUtility}, packed(t, []any{0, 1, "x"})}, "utility call: 3 values"},
		{"a call of no arguments", zmq.Message{{protocol.TypeUtility}, packed(t, []any{0, 1, "x", 7})}, ""},
		// What only the player cannot use, it refuses.
		{"an id of too many bits", add(map[int]any{1: []any{1, int64(1) << 40}}), ""},
	}
}

func TestMessagesThatNoEngineDecodes(t *testing.T) {
	for _, tt := range unreadableMessages(t) {
		t.Run(tt.name, func(t *testing.T) {
			for _, tolerant := range []bool{false, true} {
				p, err := New(Options{VLLMVersion: "0.32", Tolerant: tolerant})
				must(t, err)
				e, _ := p.decode(tt.m)
				switch got := fmt.Sprint(e.broken); {
				case e.fatal != (tt.want != "" && !tolerant):
					t.Errorf("tolerant %v: fatal %v: %s", tolerant, e.fatal, got)
				case e.fatal && !strings.Contains(got, tt.want):
					t.Errorf("%s, want %s", got, tt.want)
				}
			}
		})
	}
}

// TestNothingIsReadAfterAMessageThatNoEngineDecodes: who runs goes on to the end, and is the last one.
func TestNothingIsReadAfterAMessageThatNoEngineDecodes(t *testing.T) {
	told := make(chan string, 1)
	s := connect(t, Options{VLLMVersion: "0.32", OnRefused: func(id string, err error) { told <- id + ": " + err.Error() }}, 2)
	s.reply(0, "pause_scheduler", pack.AppendString(nil, "keep"))
	s.submit(ask("runs", count(0, 4), 5))
	s.reply(0, "is_sleeping") // it was read
	bad := ask("bad", count(0, 4), 5, func(q *protocol.Request) {
		q.LoRA = &protocol.LoRA{Raw: packed(t, []any{"n", 1, "/p", nil, nil, false, false})}
	})
	must(t, s.front.SendRaw(0, []byte{protocol.TypeAdd}, requestOf(t, "0.32", bad)))
	if got := <-told; !strings.Contains(got, "bad: EngineCoreRequest.lora_request.load_inplace: expected bool, found nil") {
		t.Error(got)
	}
	s.player.later(func() { s.player.engine.resume() })
	got, _ := s.finished(0, 1)
	if len(got["runs"].tokens) != 5 {
		t.Errorf("the request that ran got %+v", got["runs"])
	}
	// The frontend may know by now that the engine's sockets are gone: then nothing is sent.
	_, _ = s.front.Call(1, "is_sleeping")
	s.stop()
	must(t, s.wait())
	var o protocol.Outputs
	if _, err := s.front.Next(s.ctx, 1, &o); !errors.Is(err, protocol.ErrEngineDead) {
		t.Errorf("%+v, %v after the last message that is read, want the end alone", o, err)
	}
}

// packed is a value as a frontend writes it.
func packed(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := msgpack.Marshal(v)
	must(t, err)
	return raw
}
