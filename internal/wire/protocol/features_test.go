package protocol

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// The images of requests are found in what frontends of every release wrote.
func TestFeaturesOfRealFrontends(t *testing.T) {
	want := map[string][]Feature{
		"enc-request-mm-inline": {{ID: "id1", Offset: 1, Length: 2, Key: "hash1"}},
		"enc-request-mm-aux":    {{ID: "id1", Offset: 1, Length: 2, Key: "hash1"}},
		"enc-request-mm-cached": {{ID: "id1", Offset: 1, Length: 2, Key: "hash1", Named: true}},
		"rust-11-add-image": {{
			ID: "8f5fe5fee219cef20b0c0dd7668274cb8f380a166443340a01d83fb03ba67b06", Offset: 6, Length: 4,
			Key: "8f5fe5fee219cef20b0c0dd7668274cb8f380a166443340a01d83fb03ba67b06",
		}},
		"rust-10-add-logprobs": nil,
	}
	read := 0
	for _, v := range loadVectors(t) {
		want, ok := want[v.Name]
		if !ok {
			continue
		}
		payload := v.Frames[0]
		if strings.HasPrefix(v.Name, "rust-") {
			payload = v.Frames[1]
		}
		r := new(Request)
		require.NoError(t, codecOf(t, v.Release).DecodeRequest(payload, r))
		got, err := DecodeFeatures(r.MMFeatures)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s %s: %v, -want +got:\n%s", v.Release, v.Name, err, diff)
		}
		read++
	}
	require.True(t, read >= 40, "only %d requests were read", read)
}

func feature(members ...any) []byte {
	b := pack.AppendMapHeader(nil, len(members)/2)
	for i := 0; i < len(members); i += 2 {
		b = append(pack.AppendString(b, members[i].(string)), members[i+1].([]byte)...)
	}
	return b
}

func TestFeaturesThatCannotBeRead(t *testing.T) {
	id := pack.AppendString(nil, "a")
	at := feature("offset", pack.AppendInt(nil, 1), "length", pack.AppendInt(nil, 2))
	for _, test := range []struct {
		name string
		raw  []byte
		want string
	}{
		{"no list", id, "mm_features: an array was expected, found str"},
		{"no map", array(id), "mm_features[0]: identifier, "},
		{"identifier", array(feature("identifier", id, "mm_position", at), feature("identifier", at, "mm_position", at)), "mm_features[1]: identifier, "},
		{"no identifier", array(feature("mm_hash", id, "mm_position", at)), "mm_features[0]: identifier, "},
		{"no position", array(feature("identifier", id)), "mm_features[0]: identifier, "},
		{"negative", array(feature("identifier", id, "mm_position", feature("offset", pack.AppendInt(nil, -1), "length", []byte{1}))), "mm_features[0]: identifier, "},
		{"no length", array(feature("identifier", id, "mm_position", feature("offset", []byte{1}))), "mm_features[0]: identifier, "},
		{"cut off", array(feature("identifier", id, "mm_position", at))[:8], "mm_features: an array was expected, found invalid"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := DecodeFeatures(test.raw); err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	if got, err := DecodeFeatures(array(feature("data", []byte{0xc0}, "identifier", id, "mm_position", at))); err != nil || len(got) != 1 {
		t.Errorf("got %v, %v, want one feature", got, err)
	}
}

func TestEmbedsOfRealEncoders(t *testing.T) {
	read := 0
	for _, v := range loadVectors(t) {
		if v.Name != "enc-request-prompt-embeds" {
			continue
		}
		r := new(Request)
		require.NoError(t, codecOf(t, v.Release).DecodeRequest(v.Frames[0], r))
		e, err := DecodeEmbeds(r.PromptEmbeds, v.Frames[1:])
		if err != nil || e.Rows != 3 || len(e.Row(1, 3)) != 2*64*2 || r.PromptTokenIDs != nil {
			t.Errorf("%s: %+v, %v, tokens %v, want 3 rows of 64 numbers of 2 bytes", v.Release, e, err, r.PromptTokenIDs)
		}
		read++
	}
	require.True(t, read >= 9, "only %d requests were read", read)
}

func TestEmbedsThatCannotBeRead(t *testing.T) {
	dtype := pack.AppendString(nil, "float16")
	data := pack.AppendExt(nil, ExtRawView, make([]byte, 12))
	ints := func(values ...int) []byte { return appendInts(nil, values) }
	for _, test := range []struct {
		name string
		raw  []byte
		want string
	}{
		{"good", array(dtype, ints(3, 2), data), ""},
		{"beside", array(dtype, ints(3, 2), []byte{1}), ""},
		{"two values", array(dtype, ints(3, 2)), "prompt_embeds: an array of 2 values"},
		{"no type", array(data, ints(3, 2), data), "prompt_embeds: dtype: msgpack"},
		{"one dimension", array(dtype, ints(6), data), "prompt_embeds: 1 dimensions"},
		{"many dimensions", array(dtype, ints(1, 1, 1, 1, 1, 1, 1, 1, 1), data), "prompt_embeds: shape: 9 dimensions"},
		{"no rows", array(dtype, ints(0, 2), data), "prompt_embeds: 12 bytes for 0 rows"},
		{"many rows", array(dtype, ints(1<<30, 2), data), "prompt_embeds: 12 bytes for 1073741824 rows"},
		{"uneven", array(dtype, ints(5, 2), data), "prompt_embeds: 12 bytes for 5 rows"},
		{"no such frame", array(dtype, ints(3, 2), []byte{2}), "prompt_embeds: data: auxiliary frame 2 of 1"},
		{"frame 0", array(dtype, ints(3, 2), []byte{0}), "prompt_embeds: data: auxiliary frame 0 of 1"},
		{"no data", array(dtype, ints(3, 2), dtype), "prompt_embeds: data: msgpack"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := DecodeEmbeds(test.raw, [][]byte{make([]byte, 6)})
			if got := fmtError(err); (got == "") != (test.want == "") || !strings.HasPrefix(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func fmtError(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// FuzzDecodeTensors: whatever a request holds beside its tokens is read, or refused
// with the name of the field.
func FuzzDecodeTensors(f *testing.F) {
	for _, v := range loadVectors(f) {
		if strings.Contains(v.Name, "request-mm") || strings.Contains(v.Name, "prompt-embeds") {
			payload := v.Frames[len(v.Frames)-len(v.Frames[1:])-1]
			f.Add(payload, v.Frames[len(v.Frames)-1])
		}
	}
	for name, frames := range tensorFrames(f, "testdata/tensors-0.33.0.jsonl") {
		if !strings.HasPrefix(name, "output") {
			f.Add(frames[0], frames[len(frames)-1])
		}
	}
	c := codecOf(f, recorded)
	f.Fuzz(func(t *testing.T, payload, aux []byte) {
		r := new(Request)
		if c.DecodeRequest(payload, r) != nil {
			return
		}
		frames := [][]byte{aux}
		features, err := DecodeFeatures(r.MMFeatures)
		named(t, err, "mm_features")
		for _, feature := range features {
			if feature.Offset < 0 || feature.Length < 0 {
				t.Fatalf("%+v is nowhere", feature)
			}
		}
		if r.PromptEmbeds != nil {
			e, err := DecodeEmbeds(r.PromptEmbeds, frames)
			if named(t, err, "prompt_embeds"); err == nil {
				e.Row(e.Rows-1, e.Rows)
			}
		}
		if r.Pooling != nil {
			_, err := c.DecodePooling(r.Pooling)
			named(t, err, "PoolingParams")
		}
		if r.Sampling.PromptScores == nil {
			return
		}
		p, err := DecodePromptScores(r.Sampling.PromptScores, frames)
		if named(t, err, "prompt_logprob_token_ids"); p != nil && len(p.IDs) != max(p.Rows, 1)*p.Width {
			t.Fatalf("%d ids for %d rows of %d", len(p.IDs), p.Rows, p.Width)
		}
	})
}

func named(t *testing.T, err error, field string) {
	t.Helper()
	if err != nil && !strings.HasPrefix(err.Error(), field) {
		t.Fatalf("an error without a place: %v, want %s", err, field)
	}
}
