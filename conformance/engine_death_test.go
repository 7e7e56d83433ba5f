package conformance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// posthumous is an engine that ends at a request, and whose last words arrive only
// when everybody knows that it has ended, as those of a process may that were on their
// way when it was killed.
type posthumous struct {
	*rawEngine
	at    string // the id of the request, empty for the call that ends a replay
	words func(e *rawEngine) error
	t     *testing.T
}

func (p posthumous) Run(ctx context.Context) error {
	if err := p.connect(ctx); err != nil {
		return err
	}
	for {
		m, err := p.input.Recv()
		if err != nil {
			return err
		}
		var r protocol.Request
		if m[0][0] == protocol.TypeAdd {
			err = p.codec.DecodeRequest(m[1], &r)
		}
		if err == nil && r.ID == p.at {
			p.speakAfter(ctx)
			return errors.New("killed")
		}
		if err == nil {
			err = p.handle(m)
		}
		if err != nil {
			return err
		}
	}
}

// speakAfter says the last words when the engine is known to have ended.
func (p posthumous) speakAfter(ctx context.Context) {
	spoken := make(chan struct{})
	p.t.Cleanup(func() { <-spoken })
	go func() {
		defer close(spoken)
		<-ctx.Done()
		if err := p.words(p.rawEngine); err != nil {
			p.t.Error(err)
		}
		p.output.Close()
		p.input.Close()
	}()
}

// says sends the first tokens of the first recorded stream, one by one.
func says(e *rawEngine, tokens int, finish protocol.FinishReason, change func([]uint32)) error {
	words := slices.Clone(replay.RecordedStreams(e.opt.Trace)[0].Record.OutputTokenIDs[:tokens])
	if change != nil {
		change(words)
	}
	for i, token := range words {
		reason := protocol.Unfinished
		if i == len(words)-1 {
			reason = finish
		}
		if err := e.say("replay-0", reason, token); err != nil {
			return err
		}
	}
	return nil
}

// TestLastWords: what an engine had said before it ended is heard, however late it
// is read: the report tells how far it came, and compares what had ended.
func TestLastWords(t *testing.T) {
	tests := []struct {
		name  string
		at    string
		words func(e *rawEngine) error
		codes []Code // of the failures
		says  string // in the last of them
		place [2]int // the request and position of the first
	}{
		{"in a stream", "replay-0", func(e *rawEngine) error {
			return says(e, 5, protocol.Unfinished, nil)
		}, []Code{check.CodeEngineEnded}, "1 open: request 0 (line 7) after 5 of 24 tokens", [2]int{0, 5}},
		{
			"the end of a stream, wrong", "replay-0", func(e *rawEngine) error {
				return says(e, 24, protocol.FinishLength, func(words []uint32) { words[7] = 7 })
			},
			[]Code{replay.CodeToken, check.CodeEngineEnded},
			"engine: killed; 1 open: request 1 (line ",
			[2]int{0, 7},
		},
		{
			"garbage", "replay-0", func(e *rawEngine) error { return e.output.Send([]byte{0xc1}) },
			[]Code{check.CodeUndecodable},
			"the engine's message does not decode",
			[2]int{0, 0},
		},
		{
			"too much, and it can be sent no more", "replay-0", func(e *rawEngine) error {
				e.input.Close()
				return errors.Join(says(e, 24, protocol.FinishLength, nil), e.say("replay-0", protocol.Unfinished, 5))
			},
			[]Code{replay.CodeToken, replay.CodeLate, replay.CodeChunks, check.CodeEngineEnded},
			"engine: killed; 1 open: request 1 (line ",
			[2]int{0, 24},
		},
		{"the answer to the last call", "", func(e *rawEngine) error {
			m, err := e.codec.UtilityResult(0, protocol.UtilityCall{CallID: 1, Method: check.LastCall}, false, 1)
			return errors.Join(err, e.output.Send(m...))
		}, nil, "", [2]int{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := usualGolden(t)
			engine := func(opt player.Options) (Subject, error) {
				subject, err := raw(nil)(opt)
				return posthumous{subject.(*rawEngine), test.at, test.words, t}, err
			}
			r := g.judged(t, Runner{Timeouts: endless, Engine: engine}, oneByOne).Results[0]
			if len(r.Failures) != len(test.codes) {
				t.Fatalf("%d failures, want %v: %v", len(r.Failures), test.codes, r.Failures)
			}
			for i, f := range r.Failures {
				if f.Code != test.codes[i] {
					t.Errorf("failure %d is %s %s, want %s", i, f.Code, f.Message, test.codes[i])
				}
			}
			if n := len(r.Failures); n > 0 {
				if first := r.Failures[0]; first.Request != test.place[0] || first.Position != test.place[1] {
					t.Errorf("request %d, position %d, want %v", first.Request, first.Position, test.place)
				}
				if last := r.Failures[n-1]; !strings.Contains(last.Message, test.says) {
					t.Errorf("%q, want %q in it", last.Message, test.says)
				}
			}
		})
	}
}
