package recorder

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// obsSampling is a SamplingParams map with everything that may tell content.
func obsSampling() []byte {
	type pair struct {
		key   string
		value func([]byte) []byte
	}
	text := func(s string) func([]byte) []byte { return func(b []byte) []byte { return pack.AppendString(b, s) } }
	num := func(n int64) func([]byte) []byte { return func(b []byte) []byte { return pack.AppendInt(b, n) } }
	ids := func(ids ...uint32) func([]byte) []byte {
		return func(b []byte) []byte { return pack.AppendUint32s(b, ids) }
	}
	pairs := []pair{
		{"temperature", func(b []byte) []byte { return pack.AppendFloat32(b, 0.7) }},
		{"top_p", func(b []byte) []byte { return pack.AppendFloat64(b, 1) }}, // the default
		{"top_k", num(0)}, // the default
		{"max_tokens", num(50)},
		{"seed", num(-3)},
		{"logprobs", num(2)},
		{"_eos_token_id", num(2)},
		{"stop_token_ids", ids(11, 12)},
		{"_all_stop_token_ids", ids(2, 11, 12)},
		{"ignore_eos", func(b []byte) []byte { return pack.AppendBool(b, true) }},
		{"output_kind", num(0)}, // the default
		{"prompt_logprobs", func(b []byte) []byte { return pack.AppendNil(b) }},
		{"stop", func(b []byte) []byte { return pack.AppendString(pack.AppendArrayHeader(b, 1), "SECRET-stop") }},
		{"bad_words", func(b []byte) []byte { return pack.AppendString(pack.AppendArrayHeader(b, 1), "SECRET-bad") }},
		{"logit_bias", func(b []byte) []byte {
			return pack.AppendFloat32(pack.AppendInt(pack.AppendMapHeader(b, 1), 777001), -1.5)
		}},
		{"trace_decode_token_ids", ids(777002)},
		{"allowed_token_ids", ids(777003)},
		{"extra_args", func(b []byte) []byte {
			return text("SECRET-arg")(pack.AppendString(pack.AppendMapHeader(b, 1), "note"))
		}},
		{"structured_outputs", func(b []byte) []byte {
			b = pack.AppendMapHeader(b, 3)
			b = pack.AppendNil(pack.AppendString(b, "json"))
			b = pack.AppendString(pack.AppendString(b, "regex"), "SECRET-[a-z]+")
			return pack.AppendString(pack.AppendString(b, "_backend"), "xgrammar")
		}},
		{"some_future_text", text("SECRET-future")},
		{"some_future_number", num(4)},
	}
	b := pack.AppendMapHeader(nil, len(pairs))
	for _, p := range pairs {
		b = p.value(pack.AppendString(b, p.key))
	}
	return b
}

// obsSecrets sends a request full of content: prompt ids from 555000, output ids
// from 666000, and everything of obsSampling.
func obsSecrets(s *obsSession) {
	// Written by hand: the codec's requests have no such parameters.
	b := pack.AppendArrayHeader(nil, 22)
	b = pack.AppendString(b, "cmpl-1")
	b = pack.AppendUint32s(b, []uint32{555001, 555002, 555003})
	b = pack.AppendNil(b) // mm_features
	b = append(b, obsSampling()...)
	b = pack.AppendNil(b) // pooling_params
	b = pack.AppendFloat64(b, 1.5)
	b = pack.AppendArrayHeader(b, 3) // lora_request
	b = pack.AppendString(b, "adapter \"é")
	b = pack.AppendInt(b, 4)
	b = pack.AppendString(b, "/SECRET-path")
	b = pack.AppendString(b, "SECRET-salt")
	for range 3 {
		b = pack.AppendNil(b)
	}
	b = pack.AppendInt(b, 2)  // client_index
	b = pack.AppendInt(b, 0)  // current_wave
	b = pack.AppendInt(b, -7) // priority
	b = pack.AppendNil(b)     // trace_headers
	b = pack.AppendBool(b, false)
	for range 3 {
		b = pack.AppendNil(b)
	}
	b = pack.AppendBool(b, false)
	b = pack.AppendNil(b)
	b = pack.AppendNil(b)
	s.event(Input, FromFrontend, []byte{protocol.TypeAdd}, b)
	s.out(1, obsTokens("cmpl-1", 666001))
	end := obsEnd("cmpl-1", protocol.FinishStop, 666002)
	end.StopString = "SECRET-reason"
	s.out(1, end)
}

// TestObserveKeepsContentOut: without an opt-in no id, no text and no salt of a
// request is anywhere in the files, but the frames file, which is the opt-in to
// everything.
func TestObserveKeepsContentOut(t *testing.T) {
	secrets := []string{"SECRET", "5550", "6660", "7770"}
	for _, test := range []struct {
		name    string
		opt     Options
		allowed []string
	}{
		{name: "neither"},
		{name: "tokens", opt: Options{RecordTokens: true}, allowed: []string{"6660", "SECRET-reason"}},
		{name: "prompts", opt: Options{RecordPrompts: true}, allowed: []string{
			"5550", "7770", "SECRET-stop", "SECRET-bad", "SECRET-arg", "SECRET-[a-z]+", "SECRET-future", "SECRET-salt",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := obsStart(t, test.opt)
			obsSecrets(s)
			if got := s.finish(); len(got.Records) != 1 {
				t.Fatalf("%d records, want 1", len(got.Records))
			}
			for _, name := range []string{"run.jsonl", "steps.jsonl"} {
				data, err := os.ReadFile(s.file(name))
				require.NoError(t, err)
				text := string(data)
				for _, word := range test.allowed {
					require.True(t, name != "run.jsonl" || strings.Contains(text, word), "%s does not have %q:\n%s", name, word, text)
					text = strings.ReplaceAll(text, word, "")
				}
				for _, word := range secrets {
					require.True(t, !strings.Contains(text, word), "%s tells %q:\n%s", name, word, text)
				}
			}
		})
	}
}

// TestObserveExtraKeys is what a record says beyond the common keys.
func TestObserveExtraKeys(t *testing.T) {
	base := map[string]string{
		"request_id": `"cmpl-1"`, "client_index": `2`, "priority": `-7`, "lora_name": `"adapter \"é"`,
		"sampling_params": `{"temperature":0.7,"max_tokens":50,"seed":-3,"logprobs":2,"_eos_token_id":2,` +
			`"stop_token_ids":[11,12],"ignore_eos":true,"structured_output":"regex","some_future_number":4}`,
	}
	for _, test := range []struct {
		name string
		opt  Options
		more map[string]string
	}{
		{name: "redacted"},
		{name: "with content", opt: Options{RecordTokens: true, RecordPrompts: true}, more: map[string]string{
			"cache_salt": `"SECRET-salt"`, "stop_reason": `"SECRET-reason"`,
			"sampling_params": `{"temperature":0.7,"max_tokens":50,"seed":-3,"logprobs":2,"_eos_token_id":2,` +
				`"stop_token_ids":[11,12],"ignore_eos":true,"stop":["SECRET-stop"],"bad_words":["SECRET-bad"],` +
				`"logit_bias":{"777001":-1.5},"trace_decode_token_ids":[777002],"allowed_token_ids":[777003],` +
				`"extra_args":{"note":"SECRET-arg"},"structured_output":"regex",` +
				`"structured_outputs":{"json":null,"regex":"SECRET-[a-z]+","_backend":"xgrammar"},` +
				`"some_future_text":"SECRET-future","some_future_number":4}`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := obsStart(t, test.opt)
			obsSecrets(s)
			got := map[string]string{}
			for key, raw := range s.finish().Records[0].Extra {
				got[key] = string(raw)
			}
			want := map[string]string{}
			for _, m := range []map[string]string{base, test.more} {
				for key, value := range m {
					want[key] = value
				}
			}
			require.NoDiff(t, cmp.Diff(want, got), "extra keys (-want +got)")
		})
	}
}

// TestObserveStopTokenReason: a token id as the stop reason is no content.
func TestObserveStopTokenReason(t *testing.T) {
	s := obsStart(t, Options{})
	s.add(obsRequest("a", 1))
	end := obsEnd("a", protocol.FinishStop, 11)
	end.StopToken, end.HasStopToken = 11, true
	s.out(1, end)
	require.Equal(t, string(s.finish().Records[0].Extra["stop_reason"]), "11", "stop_reason")
}

// TestObservePromptForms: embeddings have no ids to count, multimodal items have
// hashes, and the prefill of another engine is none of this one's.
func TestObservePromptForms(t *testing.T) {
	s := obsStart(t, Options{RecordPrompts: true})
	embeds := obsRequest("embeds", 0)
	embeds.PromptTokenIDs, embeds.PromptEmbeds = nil, []byte{0x93, 0xa1, 'f', 0x90, 0x01}
	s.add(embeds)
	mm := obsRequest("mm", 40)
	mm.MMFeatures = obsFeatures()
	s.add(mm)
	remote := obsRequest("remote", 30)
	args := pack.AppendString(pack.AppendMapHeader(nil, 1), "kv_transfer_params")
	args = pack.AppendString(pack.AppendMapHeader(args, 1), "do_remote_prefill")
	remote.Sampling.ExtraArgs = pack.AppendBool(args, true)
	s.add(remote)
	s.out(3, obsTokens("embeds", 1))
	s.out(3, obsTokens("mm", 1), obsTokens("remote", 1), obsTokens("embeds", 2))
	s.out(3, obsEnd("embeds", protocol.FinishStop), obsEnd("mm", protocol.FinishStop), obsEnd("remote", protocol.FinishStop))
	records := s.finish().Records
	if r := records[0]; r.PromptTokens != 0 || r.PromptTokenIDs != nil || r.BlockHashes != nil || r.ITLCtx.PrefillTokens[0] != 40 {
		t.Errorf("embeds: %+v, context %+v", r, r.ITLCtx)
	}
	require.NoDiff(t, cmp.Diff([]string{"hash-1", "hash-3"}, records[1].MMHashes), "mm_hashes (-want +got)")
	if len(records[1].BlockHashes) != 2 || len(records[2].PromptTokenIDs) != 30 {
		t.Errorf("%d hashes, %d prompt ids", len(records[1].BlockHashes), len(records[2].PromptTokenIDs))
	}
}

func obsFeatures() []byte {
	b := pack.AppendArrayHeader(nil, 3)
	for _, hash := range []string{"hash-1", "", "hash-3"} {
		b = pack.AppendString(pack.AppendMapHeader(b, 2), "mm_hash")
		if hash == "" {
			b = pack.AppendNil(b)
		} else {
			b = pack.AppendString(b, hash)
		}
		b = pack.AppendString(pack.AppendString(b, "modality"), "image")
	}
	return b
}
