package conformance

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func FuzzShapeOf(f *testing.F) {
	g := usualGolden(f)
	for _, seed := range []string{"\x81\xa1a\x81\xa1b\xc0", "\x80", "\x91\x01", "\xdf\xff\xff\xff\xff", strings.Repeat("\x81\xa1a", 100)} {
		f.Add([]byte(seed))
	}
	f.Add(capturedReady(f, g))
	f.Fuzz(func(t *testing.T, raw []byte) {
		shape, err := check.ShapeOf(raw)
		if (err == nil) != (shape != nil) {
			t.Fatalf("shape %v and error %v", shape, err)
		}
		// Every key takes three bytes of the message.
		if 3*len(shape) > len(raw)+3 {
			t.Fatalf("%d keys out of %d bytes", len(shape), len(raw))
		}
	})
}

func capturedReady(tb testing.TB, g *subjectGolden) []byte {
	tb.Helper()
	r := (&Runner{Store: g}).begin(tb.Context())
	loaded := r.load(tb.Context(), Case{Line: g.line, Golden: g.Golden})
	if loaded.ReadErr != nil {
		tb.Fatal(loaded.ReadErr)
	}
	raw, err := hex.DecodeString(*loaded.Trace.Meta.ReadyResponseHex)
	require.NoError(tb, err)
	return raw
}

// TestCompareShapes compares shapes with what line 0.33 declares, which requires
// among others max_model_len, and where dp_stats_address and kv_events_config
// may be nil.
func TestCompareShapes(t *testing.T) {
	profile, err := protocol.LoadProfile("0.33")
	require.NoError(t, err)
	all := map[string]pack.Kind{}
	for _, field := range profile.Structs["EngineCoreReadyResponse"].Fields {
		all[field.Name] = pack.Int
	}
	tests := []struct {
		name      string
		want, got map[string]pack.Kind // on top of every field as an int; Invalid removes one
		fails     []string
		note      string
	}{
		{name: "equal"},
		{
			name: "missing", got: map[string]pack.Kind{"block_size": pack.Invalid},
			fails: []string{"block_size is missing, but the captured engine sent it (int)"},
		},
		{
			name: "kind", got: map[string]pack.Kind{"block_size": pack.String},
			fails: []string{"block_size is str, but the captured engine sent int"},
		},
		{name: "int for float", want: map[string]pack.Kind{"block_size": pack.Float}},
		{
			name: "float for int", got: map[string]pack.Kind{"block_size": pack.Float},
			fails: []string{"block_size is float, but the captured engine sent int"},
		},
		{name: "nil for what may be", got: map[string]pack.Kind{"dp_stats_address": pack.Nil}},
		{name: "something for nil", want: map[string]pack.Kind{"dp_stats_address": pack.Nil}},
		{
			name: "nil for what may not be", got: map[string]pack.Kind{"max_model_len": pack.Nil},
			fails: []string{"max_model_len is nil, but the captured engine sent int"},
		},
		{
			name: "required, of which the captured engine knew nothing either",
			want: map[string]pack.Kind{"max_model_len": pack.Invalid}, got: map[string]pack.Kind{"max_model_len": pack.Invalid},
			fails: []string{"max_model_len is missing, and the line's frontend requires it (vllm/v1/engine/__init__.py)"},
		},
		{
			name: "nested key missing",
			want: map[string]pack.Kind{"kv_events_config": pack.Map, "kv_events_config.topic": pack.String},
			got:  map[string]pack.Kind{"kv_events_config": pack.Map},
			fails: []string{
				"kv_events_config.topic is missing, but the captured engine sent it (str)",
			},
		},
		{
			name: "nested keys of what may be nil",
			want: map[string]pack.Kind{"kv_events_config": pack.Map, "kv_events_config.topic": pack.String},
			got:  map[string]pack.Kind{"kv_events_config": pack.Nil},
		},
		{
			name: "nested key of another kind",
			want: map[string]pack.Kind{"kv_events_config": pack.Map, "kv_events_config.topic": pack.String},
			got:  map[string]pack.Kind{"kv_events_config": pack.Map, "kv_events_config.topic": pack.Nil},
			fails: []string{
				"kv_events_config.topic is nil, but the captured engine sent str",
			},
		},
		{
			name: "more than was captured", got: map[string]pack.Kind{"zeta": pack.Int, "eta": pack.Int},
			note: "not sent by the captured engine: eta, zeta",
		},
	}
	codec, err := protocol.NewCodec(profile)
	require.NoError(t, err)
	g := &check.Golden{Location: "file", Codec: codec}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var f check.Outcome
			check.CompareShapes(&f, g, overlaid(all, test.want), overlaid(all, test.got))
			var got []string
			for _, failure := range f.Failures {
				got = append(got, strings.TrimPrefix(failure.Message, "file: ready response: "))
			}
			require.True(t, slices.Equal(got, test.fails) && f.Note == test.note, "got %q, note %q\nwant %q, note %q", got, f.Note, test.fails, test.note)
			require.True(t, f.Asserted >= len(all)-1, "%d asserted of %d fields", f.Asserted, len(all))
		})
	}
}

func overlaid(base, changes map[string]pack.Kind) map[string]pack.Kind {
	shape := map[string]pack.Kind{}
	for _, from := range []map[string]pack.Kind{base, changes} {
		for path, kind := range from {
			if shape[path] = kind; kind == pack.Invalid {
				delete(shape, path)
			}
		}
	}
	return shape
}
