package player

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// extra adds a member with a packed value to the extra arguments.
func extra(name string, value []byte) change {
	return func(r *protocol.Request) {
		before := 0
		if len(r.Sampling.ExtraArgs) > 0 {
			before, r.Sampling.ExtraArgs = int(r.Sampling.ExtraArgs[0]&0xf), r.Sampling.ExtraArgs[1:]
		}
		first := pack.AppendString(pack.AppendMapHeader(nil, before+1), name)
		r.Sampling.ExtraArgs = slices.Concat(first, value, r.Sampling.ExtraArgs)
	}
}

// withFault lets a request ask for faults of its own.
func withFault(text string) change { return extra(faultArg, pack.AppendString(nil, text)) }

func faults(t *testing.T, text string) []Fault {
	t.Helper()
	f, err := ParseFaults(text)
	must(t, err)
	return f
}

func TestParseFaults(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []Fault
		err  string
	}{
		{text: ""},
		{text: "  "},
		{text: "refuse@0.01", want: []Fault{{Kind: FaultRefuse, Probability: 0.01}}},
		{text: "fail:3", want: []Fault{{Kind: FaultFail, Times: 3, Probability: 1}}},
		{text: "delay:50ms@0.1", want: []Fault{{Kind: FaultDelay, Delay: 50 * ms, Probability: 0.1}}},
		{text: "delay:2s:20", want: []Fault{{Kind: FaultDelay, Delay: 2 * time.Second, After: 20, HasAfter: true, Probability: 1}}},
		{text: "stall", want: []Fault{{Kind: FaultStall, Probability: 1}}},
		{text: "stall:20@0.5~*slow*", want: []Fault{{Kind: FaultStall, After: 20, HasAfter: true, Probability: 0.5, Requests: "*slow*"}}},
		{text: "drop, wrong-token:5 ,kill:100", want: []Fault{
			{Kind: FaultDrop, Probability: 1},
			{Kind: FaultWrongToken, After: 5, HasAfter: true, Probability: 1},
			{Kind: FaultKill, After: 100, HasAfter: true, Probability: 1},
		}},
		{text: "crash", err: `fault 1, "crash": no such fault: want one of refuse, fail:N, delay:TIME[:AFTER], stall[:AFTER], drop[:AFTER], error[:AFTER], wrong-token[:AFTER], kill[:AFTER]`},
		{text: "drop,,stall", err: `fault 2, "": no such fault`},
		{text: "drop,", err: `fault 2, ""`},
		{text: "refuse:0.01", err: "with a probability refuse@0.01"},
		{text: "refuse@0", err: `probability "0": want a number above 0`},
		{text: "refuse@1.5", err: `probability "1.5"`},
		{text: "refuse@NaN", err: `probability "NaN"`},
		{text: "fail", err: "want fail:N"},
		{text: "fail:0", err: "want fail:N"},
		{text: "delay", err: "want delay:TIME[:AFTER], with a time such as 50ms"},
		{text: "delay:-1s", err: `time "-1s"`},
		{text: "delay:1s:x", err: `value "x"`},
		{text: "stall:-1", err: `value "-1"`},
		{text: "stall:", err: `value ""`},
		{text: "stall~", err: `pattern ""`},
		{text: "stall~[", err: `pattern "["`},
	} {
		t.Run(tt.text, func(t *testing.T) {
			got, err := ParseFaults(tt.text)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			for _, f := range got {
				if again, err := ParseFaults(f.String()); err != nil || len(again) != 1 || again[0] != f {
					t.Errorf("%s is read as %v: %v", f, again, err)
				}
			}
		})
	}
}

// outcome is all that one request got, as text.
func outcome(a *answer) string {
	if a == nil {
		return "nothing"
	}
	text := fmt.Sprint(a.tokens())
	if a.finish != protocol.Unfinished {
		text += " " + a.finish.String()
	}
	if a.err != "" {
		text += " " + a.err
	}
	return text
}

// counting says its prompt's last token and on.
type counting struct{}

func (counting) Script(r *Request) (Script, error) {
	last := r.PromptTokenIDs[len(r.PromptTokenIDs)-1]
	return Script{Fill: func(i int) uint32 { return last + 1 + uint32(i) }, CachedTokens: LookUp}, nil
}

func TestFaultsByChance(t *testing.T) {
	// hit are those of 1,000 requests that end in an error: by the faults of the player, or by their own.
	hit := func(seed uint64, text, own string) (ids []string) {
		r := newRig(t, Options{Source: counting{}, Faults: faults(t, text), Seed: seed, RequestFaults: true}, 1)
		for i := range 1000 {
			q := ask(fmt.Sprint("a", i), []uint32{1}, 1)
			if own != "" {
				withFault(own)(q)
			}
			r.submit(q)
		}
		r.runAll()
		all := r.answers()
		for i := range 1000 {
			if id := fmt.Sprint("a", i); all[id].finish == protocol.FinishError {
				ids = append(ids, id)
			}
		}
		return ids
	}
	for _, tt := range []struct{ name, text, own string }{{"the player's", "refuse@0.1", ""}, {"their own", "", "refuse@0.1"}} {
		some := hit(1, tt.text, tt.own)
		require.True(t, len(some) >= 60 && len(some) <= 140, "%s: %d of 1000 refused, want about 100", tt.name, len(some))
		equal(t, tt.name+" with the same seed", some, hit(1, tt.text, tt.own))
		require.True(t, !cmp.Equal(some, hit(2, tt.text, tt.own)), "%s: another seed refuses the same", tt.name)
	}
	equal(t, "with another fault", hit(1, "refuse@0.1", ""), hit(1, "refuse@0.1,stall:9@0.5", ""))
	equal(t, "fail:3", []string{"a0", "a1", "a2"}, hit(1, "fail:3", ""))
	equal(t, "fail:3~a7*", []string{"a7", "a70", "a71"}, hit(1, "fail:3~a7*", ""))
}

// A killed engine says what it said before, and no last word.
func TestKill(t *testing.T) {
	for _, tt := range []struct {
		fault string
		want  int // tokens before
	}{{"kill", 0}, {"kill:3", 3}} {
		t.Run(tt.fault, func(t *testing.T) {
			s := connect(t, Options{Source: counting{}, RequestFaults: true}, 2)
			s.submit(ask("a", []uint32{1}, 10, withFault(tt.fault)))
			tokens := 0
			for {
				var o protocol.Outputs
				if _, err := s.front.Next(s.ctx, 0, &o); err != nil {
					require.True(t, s.ctx.Err() == nil && !errors.Is(err, protocol.ErrEngineDead), "the connection ended with %v", err)
					break
				}
				for _, out := range o.Outputs {
					tokens += len(out.Tokens)
				}
			}
			require.True(t, tokens == tt.want, "%d tokens came before the end, want %d", tokens, tt.want)
			require.ErrorIs(t, <-s.ended, ErrKilled)
		})
	}
}

// prompts is a model in which only prompts take time.
type prompts struct{ fixed }

func (prompts) Duration(step *latency.Step) time.Duration {
	return time.Duration(len(step.Chunks)) * ms
}

// An engine that is killed at the end of a step does not begin another one.
func TestAKilledEngineIsSilent(t *testing.T) {
	r := newRig(t, Options{Source: counting{}, Timing: Timing{Pace: PaceModelled, Latency: prompts{}}, RequestFaults: true}, 1)
	r.submit(ask("other", []uint32{11}, 9), ask("bad", []uint32{2}, 9, withFault("kill")))
	r.step()
	r.clock.advance(2 * ms)
	r.step()
	if !r.killed || r.answers()["bad"] != nil {
		t.Errorf("killed: %v, the request got %s", r.killed, outcome(r.answers()["bad"]))
	}
	require.Equal(t, outcome(r.answer("other")), "[12]", "the other one, which has what it sent in the step that killed")
}
