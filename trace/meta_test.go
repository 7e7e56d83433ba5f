package trace

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

type jsonRaw = json.RawMessage

func TestMetaRoundTrip(t *testing.T) {
	tests := []struct {
		name string
		line string
		meta Meta
	}{
		{"empty", `{"meta":{}}`, Meta{}},
		{
			"all keys in order",
			`{"meta":{"model":"m\"\\\n\u0001é","gpu":"H200","tp":4294967295,"max_num_seqs":18446744073709551615,"source":"tap","block_size":16,"config_hash":"ab","vllm_version":"0.33.0","ready_response_hex":"80","vllm_tag":"v0.33.0","engine_config":"a=<b>;c=&","a":{"b": [1]},"rate":0.50,"turns":null}}`,
			Meta{
				Model: new("m\"\\\n\x01é"), GPU: new("H200"), TP: new(uint32(1<<32 - 1)), MaxNumSeqs: new(uint64(1<<64 - 1)),
				Source: new("tap"), BlockSize: new(16), ConfigHash: new("ab"), VLLMVersion: new("0.33.0"), ReadyResponseHex: new("80"),
				VLLMTag: new("v0.33.0"), EngineConfig: new("a=<b>;c=&"),
				Extra: map[string]jsonRaw{"a": jsonRaw(`{"b": [1]}`), "rate": jsonRaw("0.50"), "turns": jsonRaw("null")},
			},
		},
		{
			"empty is not absent",
			`{"meta":{"model":"","tp":0,"block_size":0,"vllm_version":""}}`,
			Meta{Model: new(""), TP: new(uint32(0)), BlockSize: new(0), VLLMVersion: new("")},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr, err := readText(tt.line+"\n", Options{})
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(tt.meta, tr.Meta), "read (-want +got)")
			require.Equal(t, string(writeTrace(t, false, tt.meta)), tt.line+"\n", "written")
		})
	}
}

func TestMetaNullIsAbsent(t *testing.T) {
	tr, err := readText(`{"meta":{"model":null,"tp":null,"block_size":null}}`, Options{})
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(Meta{}, tr.Meta), "(-want +got)")
}

func TestHasMeta(t *testing.T) {
	for text, want := range map[string]bool{
		"":              false,
		"{\"meta\":{}}": true,
		`{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1}`: false,
	} {
		r, err := NewReader(strings.NewReader(text), "t", false, Options{})
		require.NoError(t, err)
		require.True(t, r.HasMeta() == want, "%q: want %v", text, want)
	}
}

func TestOr(t *testing.T) {
	if got := Or(nil, "none") + Or(new("some"), "none"); got != "nonesome" {
		t.Error(got)
	}
}
