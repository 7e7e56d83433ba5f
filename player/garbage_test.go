package player

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// No message stops the service for others: between any two pieces of garbage a
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
	tr := cassette(t, take{prompt: count(0, 4), output: []uint32{1, 2, 3}})
	s := connect(t, Options{Trace: tr, OnRefused: func(id string, err error) { told <- fmt.Sprintf("%s%v", id, err) }}, 1)
	s.reply(0, "pause_scheduler", pack.AppendString(nil, "keep"))
	s.submit(ask("open-x", count(0, 4), 5))
	for _, g := range garbage {
		if err := s.front.SendRaw(0, g.frames...); err != nil {
			t.Fatalf("%s: %v", g.name, err)
		}
		if _, err := s.front.Call(0, "is_sleeping"); err != nil {
			t.Fatal(err)
		}
		if u := s.next(0).Utility; u == nil {
			t.Fatalf("%s was answered", g.name)
		}
		select {
		case got := <-told:
			if g.quiet {
				t.Errorf("%s: OnRefused was told %q", g.name, got)
			}
		default:
			if !g.quiet {
				t.Errorf("%s: OnRefused was told nothing", g.name)
			}
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
			if u == nil || u.CallID != 9 || u.Failure != tt.want {
				t.Errorf("answered %+v, want call 9: %s", u, tt.want)
			}
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
		if !utf8.ValidString(text) || !strings.Contains(text, "\ufffdkkk") || len(text) > 5000 {
			t.Errorf("the %s got %d bytes: %.100q", what, len(text), text)
		}
	}
}

// KV events repeat the name of an adapter.
func TestTheNameOfAnAdapterIsText(t *testing.T) {
	r := newRig(t, Options{}, 1)
	r.submit(ask("a", count(0, 4), 1, func(q *protocol.Request) { q.LoRA = &protocol.LoRA{Name: "\xff", ID: 1} }))
	if got := r.answer("a").err; !strings.Contains(got, "is not UTF-8") {
		t.Errorf("%q", got)
	}
}

// requestOf encodes a request as the line's frontend does.
func requestOf(t *testing.T, line string, r *protocol.Request) []byte {
	t.Helper()
	codec, err := protocol.CodecFor(line)
	must(t, err)
	return codec.AppendRequest(nil, r)
}
