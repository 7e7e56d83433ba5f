package load

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// full has something in every field.
func full() Shape {
	return Shape{
		Concurrency: 3, Stairs: []int{1, 20}, Requests: 5, Bursts: 6, Every: 1500 * time.Millisecond, PromptTokens: 7, OutputTokens: 8,
		Text: true, Images: 9, Arrivals: "a b.jsonl", Speed: 0.25,
	}
}

// Every field of a shape has a key, and what its flags say is the shape again.
func TestShapeIsItsFlags(t *testing.T) {
	value := reflect.ValueOf(full())
	for i := range value.NumField() {
		if value.Field(i).IsZero() {
			t.Fatalf("field %s is not tested", value.Type().Field(i).Name)
		}
	}
	want := []string{
		"--concurrency=3", "--stairs=1,20", "--requests=5", "--bursts=6", "--every=1.5s", "--prompt-tokens=7", "--output-tokens=8",
		"--text=true", "--images=9", "--arrival-trace=a b.jsonl", "--speed=0.25",
	}
	require.NoDiff(t, cmp.Diff(want, full().Flags()), "flags (-want +got)")
	var again Shape
	for _, f := range ShapeFields() {
		require.NoErrorf(t, again.Set(f.Key, full().Get(f.Key)), "%s", f.Key)
	}
	require.NoDiff(t, cmp.Diff(full(), again), "set from text (-want +got)")
	if got := (Shape{}).Flags(); got != nil {
		t.Errorf("flags of nothing: %q", got)
	}
}

func TestShapeRefuses(t *testing.T) {
	tests := []struct{ name, key, value, want string }{
		{"no number", "concurrency", "many", `"many": want a number from 1 to 4096`},
		{"nothing at a time", "concurrency", "0", `"0": want a number from 1 to 4096`},
		{"too many", "concurrency", "4097", `"4097": want a number from 1 to 4096`},
		{"below zero", "prompt_tokens", "-1", `"-1": want a number from 1 to 1048576`},
		{"no steps", "stairs", "", `"": want a number from 1 to 4096`},
		{"a step of nothing", "stairs", "1,0", `"0": want a number from 1 to 4096`},
		{"no time", "every", "7", `"7": want a time above 0, such as 500ms`},
		{"backwards", "every", "-1s", `"-1s": want a time above 0, such as 500ms`},
		{"too many images", "images", "65", `"65": want a number from 1 to 64`},
		{"no truth", "text", "perhaps", `"perhaps": want true or false`},
		{"no path", "arrivals", "", "want the path of a trace"},
		{"not a number", "speed", "NaN", `"NaN": want a number above 0`},
		{"endless", "speed", "+Inf", `"+Inf": want a number above 0`},
		{"standing", "speed", "0", `"0": want a number above 0`},
		{
			"another key", "rate", "1",
			"unknown: want one of concurrency, stairs, requests, bursts, every, prompt_tokens, output_tokens, text, images, arrivals, speed",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := new(Shape).Set(test.key, test.value); err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func TestShapesAndWorkloads(t *testing.T) {
	tests := []struct {
		name     string
		workload Workload
		shape    Shape
		key      string // "" for a shape that fits
		want     string
	}{
		{name: "nothing given", workload: Multiturn},
		{name: "all that stairs use", workload: Stairs, shape: Shape{Stairs: []int{2}, Requests: 1, PromptTokens: 1, OutputTokens: 1, Text: true, Images: 1}},
		{
			name: "of another workload", workload: Stairs, shape: Shape{Concurrency: 2}, key: "concurrency",
			want: "--concurrency: workload stairs does not use it; it uses stairs, requests, prompt_tokens, output_tokens, text, images",
		},
		{name: "of none", workload: Edge, shape: Shape{PromptTokens: 2}, key: "prompt_tokens", want: "--prompt-tokens: workload edge has one shape only"},
		{name: "no trace", workload: Arrivals, key: "arrivals", want: "--arrival-trace: missing: workload arrivals wants the path of a trace"},
		{name: "out of range", workload: Concurrency, shape: Shape{Requests: -1}, key: "requests", want: `--requests: "-1": want a number from 1 to 1048576`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.shape.Check(test.workload)
			if test.key == "" {
				require.NoError(t, err)
				return
			}
			var wrong *ShapeError
			require.True(t, errors.As(err, &wrong) && wrong.Key == test.key && err.Error() == test.want, "got %#v, want %s", err, test.want)
		})
	}
}

// What a workload does unless told otherwise is something that it may be told.
func TestUsualShapes(t *testing.T) {
	for _, w := range Workloads() {
		t.Run(string(w), func(t *testing.T) {
			usual := UsualShape(w)
			if w == Arrivals {
				usual.Arrivals = "x"
			}
			require.NoError(t, usual.Check(w))
			for _, key := range ShapeKeys(w) {
				require.True(t, slices.Contains(shapeKeys(), key), "uses %q, which is no key", key)
			}
		})
	}
	if len(kinds) != len(Workloads()) {
		t.Errorf("%d workloads are listed, %d known", len(Workloads()), len(kinds))
	}
}
