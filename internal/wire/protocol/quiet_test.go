package protocol

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// TestQuietOutputs: an output with nothing but tokens is read in one piece, in every
// line, and gives what reading it field by field gives; so does one that differs in a
// byte, or ends early.
func TestQuietOutputs(t *testing.T) {
	for _, line := range Lines() {
		t.Run(line, func(t *testing.T) {
			quick := codecOf(t, line)
			if !quick.output.quiet {
				t.Fatal("the line's defaults say something: its outputs are read field by field")
			}
			slow := *quick
			slow.output.quiet = false
			b := quick.NewBatch(0)
			for i, id := range []string{"a", "cmpl-0123456789abcdef-0-0123abcd-0123abcd", ""} {
				s := quick.NewStream(plainRequest(id))
				require.NoError(t, b.Add(s, &Output{Tokens: []uint32{uint32(i), 300, 70_000}}))
			}
			frame := slices.Clone(finish(t, b, &SchedulerStats{Running: 3})[0])
			compareDecoding(t, quick, &slow, frame)
			for at := range frame {
				for _, value := range []byte{frame[at] - 1, frame[at] + 1, 0x90, 0xc0, 0xc1} {
					changed := slices.Clone(frame)
					changed[at] = value
					compareDecoding(t, quick, &slow, changed)
				}
				compareDecoding(t, quick, &slow, frame[:at])
			}
		})
	}
}

func compareDecoding(t *testing.T, quick, slow *Codec, frame []byte) {
	t.Helper()
	var got, want Outputs
	gotErr, wantErr := quick.DecodeOutputs(frame, &got), slow.DecodeOutputs(frame, &want)
	if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
		t.Fatalf("% x: want error %v, got %v", frame, wantErr, gotErr)
	}
	if wantErr != nil {
		return
	}
	for _, o := range []*Outputs{&got, &want} {
		o.tokens, o.cur = nil, pack.Cursor{}
		if math.IsNaN(o.Timestamp) {
			o.Timestamp = 0
		}
		for i := range o.Outputs {
			o.Outputs[i].Plain = false // it is set of what is read in one piece
		}
	}
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("% x (-field by field +in one piece):\n%s", frame, cmp.Diff(want, got, cmpopts.IgnoreUnexported(Outputs{})))
	}
}
