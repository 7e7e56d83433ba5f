package protocol

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// TestRequestRoundTrip covers what no captured request has, in every line.
func TestRequestRoundTrip(t *testing.T) {
	raw := array(samples[pack.String], samples[pack.Int])
	for _, test := range []struct {
		name   string
		change func(*Request)
	}{
		{"plain", func(*Request) {}},
		{"empty prompt", func(r *Request) { r.PromptTokenIDs = []uint32{} }},
		{"embeddings in place of a prompt", func(r *Request) { r.PromptTokenIDs, r.PromptEmbeds = nil, raw }},
		{"pooling", func(r *Request) { r.HasSampling, r.Pooling = false, raw }},
		{"multimodal", func(r *Request) { r.MMFeatures = raw }},
		{"no limit", func(r *Request) { r.Sampling.MaxTokens, r.Sampling.HasMaxTokens = 0, false }},
		{"limit 0", func(r *Request) { r.Sampling.MaxTokens = 0 }},
		{"all logprobs", func(r *Request) { r.Sampling.Logprobs, r.Sampling.PromptLogprobs = AllLogprobs, AllLogprobs }},
		{"only the sampled token's logprobs", func(r *Request) { r.Sampling.Logprobs, r.Sampling.PromptLogprobs = 0, 0 }},
		{"seed 0", func(r *Request) { r.Sampling.HasSeed = true }},
		{"negative seed", func(r *Request) { r.Sampling.HasSeed, r.Sampling.Seed = true, -1<<63 }},
		{"extra arguments", func(r *Request) { r.Sampling.ExtraArgs = pack.AppendMapHeader(nil, 0) }},
		{"stops", func(r *Request) { r.Sampling.StopTokenIDs, r.Sampling.MinTokens = []uint32{7, 1<<32 - 1}, 3 }},
		{"filters", func(r *Request) {
			s := &r.Sampling
			s.AllowedTokenIDs, s.BadWords, s.AllStops = []uint32{7, 9}, [][]uint32{{1}, {2, 70000}}, []uint32{8}
			s.LogitBias = []Bias{{5, 1.5}, {70000, -100}}
			s.TopK, s.TopP, s.MinP, s.Repetition = 3, 0.5, 0.25, Repetition{MaxSize: 9, MinSize: 2, Count: 3}
		}},
		{"end of sequence 0", func(r *Request) { r.Sampling.EOSTokenID = 0 }},
		{"rank 0", func(r *Request) { r.DataParallelRank = 0 }},
		{"scalars", func(r *Request) {
			r.ExternalID, r.CacheSalt, r.ArrivalTime = "ext", "salt", 1.25
			r.ClientIndex, r.CurrentWave, r.Priority, r.Resumable, r.AbortImmediately = 1, 2, -3, true, true
		}},
	} {
		for _, line := range Lines() {
			t.Run(test.name+"/"+line, func(t *testing.T) {
				c := codecOf(t, line)
				want := plainRequest("a")
				test.change(want)
				var got Request
				payload := c.AppendRequest(nil, want)
				require.NoError(t, c.DecodeRequest(payload, &got))
				if raw := elements(t, payload)[3]; got.HasSampling && string(got.Sampling.Raw) != string(raw) {
					t.Errorf("sampling parameters are %x, kept as %x", raw, got.Sampling.Raw)
				}
				got.Fields, got.Unverified, got.Sampling.Raw = 0, false, nil
				if want.Sampling.AllStops == nil {
					got.Sampling.AllStops = nil // made of the others
				}
				if len(got.Sampling.StopTokenIDs) == 0 {
					got.Sampling.StopTokenIDs = nil
				}
				require.NoDiff(t, cmp.Diff(want, &got), "-sent +received")
			})
		}
	}
}

func TestLoRARoundTrip(t *testing.T) {
	for _, line := range Lines() {
		c := codecOf(t, line)
		sent := plainRequest("a")
		sent.LoRA = &LoRA{Name: "adapter", ID: 3, Path: "/p"}
		var got, again Request
		require.NoError(t, c.DecodeRequest(c.AppendRequest(nil, sent), &got))
		require.True(t, got.LoRA.Name == "adapter" && got.LoRA.ID == 3 && got.LoRA.Path == "/p", "line %s: %+v", line, got.LoRA)
		// What was received is passed on as it came.
		require.NoError(t, c.DecodeRequest(c.AppendRequest(nil, &got), &again))
		require.NoDiff(t, cmp.Diff(got.LoRA, again.LoRA), "line %s: -received +passed on", line)
		for _, in := range []bool{false, true} {
			sent.LoRA.InPlace = in
			lora := c.Read(new(View), KindRequest, c.AppendRequest(nil, sent)).Field("lora_request")
			if is, ok := lora.Field("load_inplace").Bool(); !ok || is != in || lora.Field("is_3d_lora_weight").Bytes()[0] != 0xc2 {
				t.Errorf("line %s: load_inplace %v is sent as %x", line, in, lora.Bytes())
			}
		}
	}
	for _, test := range []struct {
		name string
		raw  []byte
		path string
	}{
		{"no path", array(samples[pack.String], samples[pack.Int]), ""},
		{"path nil", array(samples[pack.String], samples[pack.Int], samples[pack.Nil]), ""},
		{"path", array(samples[pack.String], samples[pack.Int], samples[pack.String]), "x"},
	} {
		l, err := DecodeLoRA(test.raw)
		require.True(t, err == nil && l.Path == test.path && l.Name == "x" && l.ID == 5, "%s: %+v %v", test.name, l, err)
	}
}

// TestSamplingDefaults: what a frontend leaves out has vLLM's defaults
// (vllm/sampling_params.py), and nil is not the same as absent for max_tokens.
func TestSamplingDefaults(t *testing.T) {
	c := codecOf(t, recorded)
	values := elements(t, c.AppendRequest(nil, plainRequest("a")))
	maxTokens := func(value byte) []byte { return append(pack.AppendString([]byte{0x81}, "max_tokens"), value) }
	for _, test := range []struct {
		name  string
		raw   []byte
		limit int
		has   bool
	}{
		{"absent", []byte{0x80}, 16, true},
		{"nil", maxTokens(0xc0), 0, false},
		{"zero", maxTokens(0), 0, true},
		{"set", maxTokens(9), 9, true},
	} {
		var r Request
		require.NoError(t, c.DecodeRequest(array(replaced(values, 3, test.raw)...), &r))
		want := defaultSampling(nil, nil)
		want.MaxTokens, want.HasMaxTokens = test.limit, test.has
		r.Sampling.Raw = nil
		require.NoDiff(t, cmp.Diff(want, r.Sampling), "max_tokens %s: -want +got", test.name)
	}
}

// TestAllStopTokenIDs: the engine masks the end of sequence, too, until
// min_tokens are out.
func TestAllStopTokenIDs(t *testing.T) {
	for _, test := range []struct {
		name  string
		stops []uint32
		eos   int64
		want  string
	}{
		{"nothing", nil, -1, "[]"},
		{"stops", []uint32{9, 3}, -1, "[9, 3]"},
		{"end of sequence", nil, 2, "[2]"},
		{"both", []uint32{9}, 2, "[9, 2]"},
		{"the same", []uint32{2, 9}, 2, "[2, 9]"},
		{"no token id", []uint32{9}, 1 << 40, "[9]"},
	} {
		r := plainRequest("a")
		r.Sampling.StopTokenIDs, r.Sampling.EOSTokenID = test.stops, test.eos
		sampling := elements(t, codecOf(t, recorded).AppendRequest(nil, r))[3]
		require.Equal(t, pack.Format(member(t, sampling, "_all_stop_token_ids")), test.want, "%s", test.name)
	}
}

// An id to stop at that no token has is not there.
func TestStopIDsOfNoToken(t *testing.T) {
	c := codecOf(t, recorded)
	sent := plainRequest("a")
	sent.Sampling.StopTokenIDs = []uint32{7, math.MaxUint32, 9}
	payload := c.AppendRequest(nil, sent)
	unsigned, negative := []byte{0xce, 0xff, 0xff, 0xff, 0xff}, []byte{0xd2, 0xff, 0xff, 0xff, 0xff}
	if n := bytes.Count(payload, unsigned); n != 2 {
		t.Fatalf("the id is in %d places, want stop_token_ids and _all_stop_token_ids", n)
	}
	var got Request
	require.NoError(t, c.DecodeRequest(bytes.ReplaceAll(payload, unsigned, negative), &got))
	want := []uint32{7, 9}
	if !slices.Equal(got.Sampling.StopTokenIDs, want) || !slices.Equal(got.Sampling.AllStops, want) {
		t.Errorf("stop_token_ids %v, _all_stop_token_ids %v, want %v", got.Sampling.StopTokenIDs, got.Sampling.AllStops, want)
	}
}

// TestTensorsGoBesideTheMessage: from 256 bytes a table is a frame of its own,
// numbered from 1, and the next batch begins anew.
func TestTensorsGoBesideTheMessage(t *testing.T) {
	c := codecOf(t, recorded)
	b := c.NewBatch(0)
	for _, test := range []struct {
		width  int // of one row: 4 bytes an id, 4 a value
		frames []int
	}{
		{63, nil}, {64, []int{256, 256}}, {65, []int{260, 260}}, {1, nil},
	} {
		t.Run(fmt.Sprint(test.width), func(t *testing.T) {
			b.Reset()
			l := &Logprobs{Width: test.width, TokenIDs: make([]uint32, test.width), Values: make([]float32, test.width), Ranks: []int64{1}}
			for range 2 {
				require.NoError(t, b.Add(c.NewStream(plainRequest("a")), &Output{Tokens: []uint32{0}, Logprobs: l}))
			}
			m := finish(t, b, nil)
			var sizes []int
			for _, frame := range m[1:] {
				sizes = append(sizes, len(frame))
			}
			require.NoDiff(t, cmp.Diff(append(append([]int(nil), test.frames...), test.frames...), sizes), "auxiliary frames: -want +got")
			for i, o := range mustDecode(t, c, m).Outputs {
				require.NoDiff(t, cmp.Diff(l, engineOutput(t, &o, m).Logprobs), "output %d: -want +got", i)
			}
		})
	}
}

// TestTokensAreTheirOwn: the tokens of all outputs share an array, and a caller
// that appends to one output's must not write into the next one's.
func TestTokensAreTheirOwn(t *testing.T) {
	c := codecOf(t, recorded)
	b := c.NewBatch(0)
	for i := range uint32(3) {
		require.NoError(t, b.Add(c.NewStream(plainRequest("a")), &Output{Tokens: []uint32{i, i}}))
	}
	m := finish(t, b, nil)
	var o Outputs
	for range 2 { // afresh, then into the same arrays
		require.NoError(t, c.DecodeOutputs(m[0], &o))
		for i := range o.Outputs {
			_ = append(o.Outputs[i].Tokens, 99)
		}
		for i := range o.Outputs {
			require.NoDiff(t, cmp.Diff([]uint32{uint32(i), uint32(i)}, o.Outputs[i].Tokens), "output %d: -want +got", i)
		}
	}
}

// A message that ends early still says whom to answer, whatever is missing.
func TestTruncatedRequestKeepsItsID(t *testing.T) {
	codec := codecOf(t, "0.33.0")
	payload := codec.AppendRequest(nil, &Request{ID: "cmpl-replay-7-1a2b3c4d", PromptTokenIDs: []uint32{1, 2, 3}, DataParallelRank: -1})
	const idEnd = 3 + 1 + len("cmpl-replay-7-1a2b3c4d") // array 16, fixstr
	for n := range payload {
		var r Request
		if err := codec.DecodeRequest(payload[:n], &r); err == nil {
			t.Fatalf("%d of %d bytes decode", n, len(payload))
		}
		want := ""
		if n >= idEnd {
			want = "cmpl-replay-7-1a2b3c4d"
		}
		require.Equal(t, r.ID, want, "%d bytes: id", n)
	}
}
