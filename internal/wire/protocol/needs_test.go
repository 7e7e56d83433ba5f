package protocol

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// TestReadsByNameSampling: the keys that are said to be read are those whose values
// decoding notices.
func TestReadsByNameSampling(t *testing.T) {
	p, err := LoadProfile(Newest())
	require.NoError(t, err)
	values := [][]byte{
		pack.AppendInt(nil, 7), pack.AppendBool(nil, true), pack.AppendFloat64(nil, 0.5), pack.AppendString(nil, "x"),
		pack.AppendInt(pack.AppendArrayHeader(nil, 1), 7), pack.AppendMapHeader(nil, 0),
		pack.AppendInt(pack.AppendString(pack.AppendMapHeader(nil, 1), "max_pattern_size"), 7),
	}
	var none Sampling
	require.NoError(t, decodeSamplingOf(pack.AppendMapHeader(nil, 0), &none))
	for _, f := range p.Structs["SamplingParams"].Fields {
		noticed := false
		for _, value := range values {
			var got Sampling
			err := decodeSamplingOf(append(pack.AppendString(pack.AppendMapHeader(nil, 1), f.Name), value...), &got)
			noticed = noticed || err != nil || !cmp.Equal(none, got)
		}
		if said := ReadsByName("SamplingParams", f.Name); said != noticed {
			t.Errorf("%s is noticed: %v, and said to be: %v", f.Name, noticed, said)
		}
	}
}

func decodeSamplingOf(message []byte, s *Sampling) error {
	r := Request{Sampling: defaultSampling(nil, nil)}
	cur := pack.NewCursor(message)
	err := decodeSampling(&cur, &r)
	*s = r.Sampling
	s.Raw = nil
	return err
}

// TestReadsByNameIsDeclared: what is said to be read is a field of the newest line.
func TestReadsByNameIsDeclared(t *testing.T) {
	p, err := LoadProfile(Newest())
	require.NoError(t, err)
	declared := map[string]bool{}
	for name, s := range p.Structs {
		for _, f := range s.Fields {
			declared[name+"."+f.Name] = true
		}
	}
	for field := range readFields() {
		require.True(t, declared[field], "%s is read, and no field", field)
	}
	require.True(t, !ReadsByName("EngineCoreOutput", "routed_experts") && ReadsByName("EngineCoreOutput", "finish_reason"), "finish_reason is skipped, or routed_experts is read")
}
