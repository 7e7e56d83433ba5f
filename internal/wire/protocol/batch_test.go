package protocol

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// TestAddRefuses lists the outputs that end or confuse a frontend: a batch has
// no way to hold them.
func TestAddRefuses(t *testing.T) {
	table := func(width, ids, values, rows int) *Logprobs {
		l := &Logprobs{Width: width, Values: make([]float32, values), Ranks: make([]int64, rows)}
		for range ids {
			l.TokenIDs = append(l.TokenIDs, 5)
		}
		return l
	}
	good := table(2, 2, 2, 1)
	for _, test := range []struct {
		name             string
		logprobs, prompt int // what the request asked for
		out              Output
		is               error
		message          string
	}{
		{"no logprobs", 1, NoLogprobs, Output{Tokens: []uint32{5}}, ErrLogprobsMissing, ""},
		{"no logprobs, none but the sampled asked for", 0, NoLogprobs, Output{Tokens: []uint32{5}}, ErrLogprobsMissing, ""},
		{"no logprobs, all asked for", AllLogprobs, NoLogprobs, Output{Tokens: []uint32{5}}, ErrLogprobsMissing, ""},
		{"no logprobs with the last token", 1, NoLogprobs, Output{Tokens: []uint32{5}, Finish: FinishStop}, ErrLogprobsMissing, ""},
		{"no prompt logprobs", NoLogprobs, 0, Output{Tokens: []uint32{5}}, ErrLogprobsMissing, "prompt_logprobs: "},
		{"only the other logprobs", NoLogprobs, 1, Output{Tokens: []uint32{5}, Logprobs: good}, ErrLogprobsMissing, "prompt_logprobs: "},
		{"fewer rows than tokens", 1, NoLogprobs, Output{Tokens: []uint32{5, 5}, Logprobs: good}, nil, "logprobs: 1 rows for 2 tokens"},
		{"more rows than tokens", 1, NoLogprobs, Output{Tokens: []uint32{5}, Logprobs: table(1, 2, 2, 2)}, nil, "logprobs: 2 rows for 1 tokens"},
		{"too few ids", 1, NoLogprobs, Output{Tokens: []uint32{5}, Logprobs: table(2, 1, 2, 1)}, nil, "logprobs: 1 ids and 2 values for 1 rows of 2"},
		{"too few values", 1, NoLogprobs, Output{Tokens: []uint32{5}, Logprobs: table(2, 2, 1, 1)}, nil, "logprobs: 2 ids and 1 values for 1 rows of 2"},
		{"no column", 1, NoLogprobs, Output{Tokens: []uint32{5}, Logprobs: table(0, 0, 0, 1)}, nil, "logprobs: 0 ids and 0 values for 1 rows of 0"},
		{"another token in column 0", 1, NoLogprobs, Output{Tokens: []uint32{6}, Logprobs: good}, nil, "logprobs: row 0 begins with id 5, the token is 6"},
		{"unasked for and wrong", NoLogprobs, NoLogprobs, Output{Tokens: []uint32{5}, Logprobs: table(1, 2, 2, 1)}, nil, "logprobs: 2 ids"},
		{"wrong, with an abort", 1, NoLogprobs, Output{Tokens: []uint32{5}, Finish: FinishAbort, Logprobs: table(1, 2, 2, 1)}, nil, "logprobs: 2 ids"},
		{"prompt table does not fit", NoLogprobs, 1, Output{PromptLogprobs: table(2, 3, 4, 2)}, nil, "prompt logprobs: 3 ids and 4 values for 2 rows of 2"},
		{"no such finish reason", NoLogprobs, NoLogprobs, Output{Finish: FinishRepetition + 1}, nil, "finish_reason(6) is not a finish reason"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := codecOf(t, recorded)
			r := plainRequest("req-7")
			r.Sampling.Logprobs, r.Sampling.PromptLogprobs = test.logprobs, test.prompt
			b, s := c.NewBatch(0), c.NewStream(r)
			err := b.Add(s, &test.out)
			if err == nil || !strings.HasPrefix(err.Error(), "request req-7: "+test.message) || test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("got %v, want request req-7: %s (%v)", err, test.message, test.is)
			}
			if b.Len() != 0 || s.started || s.finished {
				t.Errorf("something was added: %d outputs, started %v, finished %v", b.Len(), s.started, s.finished)
			}
			if _, err := b.Finish(nil, 0); !errors.Is(err, ErrEmptyBatch) {
				t.Errorf("the batch can be sent: %v", err)
			}
		})
	}
}

// TestAddAccepts: what a real engine leaves out may be left out.
func TestAddAccepts(t *testing.T) {
	prompt := &Logprobs{Width: 1, TokenIDs: []uint32{2, 3}, Values: make([]float32, 2), Ranks: make([]int64, 2)}
	for _, test := range []struct {
		name string
		outs []Output
	}{
		{"an error needs no logprobs", []Output{{Finish: FinishError}}},
		{"nor does an abort", []Output{{Finish: FinishAbort}}},
		{"prompt logprobs come once", []Output{{PromptLogprobs: prompt}, {}, {Finish: FinishLength}}},
		{"a prompt of one token has no rows", []Output{{PromptLogprobs: &Logprobs{Width: 1}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := codecOf(t, recorded)
			r := plainRequest("a")
			r.Sampling.Logprobs, r.Sampling.PromptLogprobs = 0, 0
			b, s := c.NewBatch(0), c.NewStream(r)
			for i := range test.outs {
				require.NoErrorf(t, b.Add(s, &test.outs[i]), "output %d", i)
			}
			mustDecode(t, c, finish(t, b, nil))
		})
	}
}

func TestStreamFinishesOnce(t *testing.T) {
	c := codecOf(t, recorded)
	for _, reason := range []FinishReason{FinishStop, FinishLength, FinishAbort, FinishError, FinishRepetition} {
		t.Run(reason.String(), func(t *testing.T) {
			b, s := c.NewBatch(0), c.NewStream(plainRequest("a"))
			if s.started || s.finished || s.ID() != "a" {
				t.Errorf("fresh stream: id %s, started %v, finished %v", s.ID(), s.started, s.finished)
			}
			for i, finish := range []FinishReason{Unfinished, reason} {
				require.NoError(t, b.Add(s, &Output{Tokens: []uint32{1}, Finish: finish}))
				require.True(t, s.started && s.finished == (i == 1), "after output %d: started %v, finished %v", i, s.started, s.finished)
			}
			for _, after := range []FinishReason{Unfinished, reason, FinishError} {
				require.ErrorIs(t, b.Add(s, &Output{Tokens: []uint32{1}, Finish: after}), ErrStreamFinished)
			}
			o := mustDecode(t, c, finish(t, b, nil))
			require.True(t, len(o.Outputs) == 2 && o.Outputs[1].Finish == reason, "%+v", o.Outputs)
		})
	}
}

func TestFinishReasons(t *testing.T) {
	for code := range int64(5) {
		f, err := FinishFromWire(code)
		require.True(t, err == nil && f != Unfinished && int64(f)-1 == code, "code %d: %v %v", code, f, err)
	}
	for _, code := range []int64{-1, 5, 255, 1 << 40} {
		if f, err := FinishFromWire(code); err == nil || f != Unfinished {
			t.Errorf("code %d: %v %v", code, f, err)
		}
	}
	c := codecOf(t, recorded)
	names := c.Profile().FinishReasons()
	for f := FinishStop; f <= FinishRepetition; f++ {
		if code, ok := names[strings.ToUpper(f.String())]; !ok || code != int(f)-1 {
			t.Errorf("%v is %d on the wire, vLLM says %v", f, int(f)-1, names)
		}
	}
	if got := (FinishRepetition + 1).String(); got != "finish_reason(6)" {
		t.Error(got)
	}
}

func TestBatchIsNeverEmpty(t *testing.T) {
	c := codecOf(t, recorded)
	for _, test := range []struct {
		name string
		fill func(*Batch) *SchedulerStats
		ok   bool
	}{
		{"nothing", func(*Batch) *SchedulerStats { return nil }, false},
		{"refused output", func(b *Batch) *SchedulerStats {
			_ = b.Add(c.NewStream(plainRequest("a")), &Output{Finish: 99})
			return nil
		}, false},
		{"reset output", func(b *Batch) *SchedulerStats {
			_ = b.Add(c.NewStream(plainRequest("a")), &Output{})
			b.ReportFinished("a")
			b.Reset()
			return nil
		}, false},
		{"statistics", func(*Batch) *SchedulerStats { return &SchedulerStats{} }, true},
		{"a finished request", func(b *Batch) *SchedulerStats { b.ReportFinished("a"); return nil }, true},
		{"an output without tokens", func(b *Batch) *SchedulerStats {
			_ = b.Add(c.NewStream(plainRequest("a")), &Output{})
			return nil
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := c.NewBatch(0)
			m, err := b.Finish(test.fill(b), 1)
			if test.ok {
				require.NoError(t, err)
				mustDecode(t, c, m)
			} else if !errors.Is(err, ErrEmptyBatch) || m != nil {
				t.Errorf("got %x %v, want ErrEmptyBatch", m, err)
			}
		})
	}
}

// TestFinishTwice: closing a batch again, or adding to a closed one, writes a
// whole message again.
func TestFinishTwice(t *testing.T) {
	c := codecOf(t, recorded)
	b := c.NewBatch(3)
	s := c.NewStream(plainRequest("a"))
	for i := range uint32(3) {
		require.NoError(t, b.Add(s, &Output{Tokens: []uint32{i}}))
		first := append([]byte(nil), finish(t, b, &SchedulerStats{Running: 1})[0]...)
		second := finish(t, b, &SchedulerStats{Running: 1})[0]
		require.NoDiff(t, cmp.Diff(first, second), "after %d outputs the second message is another", b.Len())
		o := mustDecode(t, c, ClientMessage{second})
		require.True(t, len(o.Outputs) == b.Len() && o.EngineIndex == 3 && o.WeightVersion == "default", "%d outputs of engine %d, weights %q", len(o.Outputs), o.EngineIndex, o.WeightVersion)
	}
}

// TestBatchHeaders walks the counts and engine indexes around the widths of a
// MessagePack header: the head is written last, in front of the outputs.
func TestBatchHeaders(t *testing.T) {
	c := codecOf(t, recorded)
	for _, test := range []struct{ count, index int }{
		{1, 0}, {1, 127}, {15, 128}, {16, 256}, {17, 65535}, {65535, 65536}, {65536, 1 << 31}, {65536, 1 << 40},
	} {
		b := c.NewBatch(test.index)
		s := c.NewStream(plainRequest("a"))
		for range test.count {
			require.NoError(t, b.Add(s, &Output{}))
		}
		envelope := elements(t, finish(t, b, nil)[0])
		cur := pack.NewCursor(envelope[0])
		got, err := cur.Int()
		if n := len(elements(t, envelope[1])); err != nil || int(got) != test.index || n != test.count {
			t.Errorf("%d outputs of engine %d: %d of engine %d, %v", test.count, test.index, n, got, err)
		}
	}
}

func TestCoordinatorMessages(t *testing.T) {
	for _, line := range Lines() {
		c := codecOf(t, line)
		for _, test := range []struct {
			name            string
			message         CoordinatorMessage
			complete, start int
			stats           bool
		}{
			{"wave complete", c.WaveComplete(2, 0, 1.5), 0, -1, false},
			{"start wave", c.StartWave(2, 300, 1.5), -1, 300, false},
			{"queue lengths", c.Stats(2, &SchedulerStats{Waiting: 4}, 1.5), -1, -1, true},
		} {
			t.Run(line+"/"+test.name, func(t *testing.T) {
				o := mustDecode(t, c, ClientMessage(test.message))
				require.True(t, o.EngineIndex == 2 && o.Timestamp == 1.5 && len(o.Outputs) == 0 && o.Utility == nil, "%+v", o)
				if o.WaveComplete != test.complete || o.StartWave != test.start || (o.SchedulerStats != nil) != test.stats {
					t.Errorf("wave complete %d, start %d, stats %x", o.WaveComplete, o.StartWave, o.SchedulerStats)
				}
			})
		}
	}
}

func finish(t testing.TB, b *Batch, stats *SchedulerStats) ClientMessage {
	t.Helper()
	m, err := b.Finish(stats, 1.5)
	require.NoError(t, err)
	return m
}

func mustDecode(t testing.TB, c *Codec, m ClientMessage) *Outputs {
	t.Helper()
	o := new(Outputs)
	if err := c.DecodeOutputs(m[0], o); err != nil {
		t.Fatalf("%v in %s", err, pack.Format(m[0]))
	}
	return o
}
