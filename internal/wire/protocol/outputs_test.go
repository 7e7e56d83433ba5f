package protocol

import (
	"errors"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

func TestOutputsWrong(t *testing.T) {
	c := codecOf(t, recorded)
	envelope := elements(t, everything(t, c)[0])
	output := elements(t, elements(t, envelope[1])[0])
	inEnvelope := func(i int, value []byte) []byte { return array(replaced(envelope, i, value)...) }
	inOutput := func(i int, value []byte) []byte {
		return inEnvelope(1, array(array(output...), array(replaced(output, i, value)...)))
	}
	utility := func(values ...[]byte) []byte { return inEnvelope(4, array(values...)) }
	id, null := samples[pack.Int], samples[pack.Nil]
	for _, test := range []struct {
		name  string
		frame []byte
		want  string
	}{
		{"not an array", samples[pack.Map], ": msgpack: byte 0: expected array, found map"},
		{"engine nil", inEnvelope(0, null), ".engine_index: msgpack"},
		{"engine negative", inEnvelope(0, []byte{0xff}), ".engine_index: -1 is out of range"},
		{"outputs nil", inEnvelope(1, null), ".outputs: msgpack"},
		{"output nil", inEnvelope(1, array(null)), ".outputs[0]: msgpack"},
		{"output of one field", inEnvelope(1, array(array(samples[pack.String]))), ".outputs[0]: EngineCoreOutput has 1 fields"},
		{"id nil", inOutput(0, null), ".outputs[1].request_id: msgpack"},
		{"tokens nil", inOutput(1, null), ".outputs[1].new_token_ids: msgpack"},
		{"token negative", inOutput(1, array([]byte{0xff})), ".outputs[1].new_token_ids: msgpack"},
		{"finish text", inOutput(5, samples[pack.String]), ".outputs[1].finish_reason: msgpack"},
		{"finish 5", inOutput(5, []byte{5}), ".outputs[1].finish_reason: finish_reason 5: want 0 to 4"},
		{"finish -1", inOutput(5, []byte{0xff}), ".outputs[1].finish_reason: finish_reason -1: want 0 to 4"},
		{"nans nil", inOutput(13, null), ".outputs[1].num_nans_in_logits: expected int, found nil"},
		{"nans text", inOutput(13, samples[pack.String]), ".outputs[1].num_nans_in_logits: expected int, found str"},
		{"timestamp nil", inEnvelope(3, null), ".timestamp: msgpack"},
		{"utility scalar", inEnvelope(4, id), ".utility_output: msgpack"},
		{"utility empty", utility(), ".utility_output: UtilityOutput has no fields"},
		{"call id text", utility(samples[pack.String]), ".utility_output: call_id: msgpack"},
		{"failure int", utility(id, id), ".utility_output: failure_message: msgpack"},
		{"result bool", utility(id, null, samples[pack.Bool]), ".utility_output: result: msgpack"},
		{"result of three", utility(id, null, array(null, null, null)), ".utility_output: result: 3 values"},
		{"type info", utility(id, null, array(id, null)), ".utility_output: result: type_info is not nil"},
		{"finished a map", inEnvelope(5, samples[pack.Map]), ".finished_requests: msgpack"},
		{"finished ints", inEnvelope(5, array(id)), ".finished_requests: msgpack"},
		{"wave text", inEnvelope(6, samples[pack.String]), ".wave_complete: msgpack"},
		{"start negative", inEnvelope(7, []byte{0xff}), ".start_wave: -1 is out of range"},
		{"weights int", inEnvelope(8, id), ".weight_version: msgpack"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := c.DecodeOutputs(test.frame, new(Outputs))
			require.True(t, err != nil && strings.HasPrefix(err.Error(), "EngineCoreOutputs"+test.want), "got %v, want EngineCoreOutputs%s", err, test.want)
		})
	}
}

// TestOutputsTooLong: one field more than the line knows is a LengthError, of
// the envelope and of an output; every length below reads as it should.
func TestOutputsTooLong(t *testing.T) {
	for _, line := range Lines() {
		t.Run(line, func(t *testing.T) {
			c := codecOf(t, line)
			envelope := elements(t, everything(t, c)[0])
			output := elements(t, elements(t, envelope[1])[0])
			err := c.DecodeOutputs(array(append(envelope, []byte{0xc0})...), new(Outputs))
			wantLength(t, err, LengthError{"EngineCoreOutputs", line, len(envelope) + 1, len(envelope)})
			long := replaced(envelope, 1, array(array(append(output, []byte{0xc0})...)))
			err = c.DecodeOutputs(array(long...), new(Outputs))
			wantLength(t, err, LengthError{"EngineCoreOutput", line, len(output) + 1, len(output)})
			for n := 2; n <= len(output); n++ {
				var o Outputs
				if err := c.DecodeOutputs(array(replaced(envelope, 1, array(array(output[:n]...)))...), &o); err != nil || o.Outputs[0].Fields != n {
					t.Errorf("output of %d fields: %v", n, err)
				}
			}
			for n := range len(envelope) + 1 {
				var o Outputs
				if err := c.DecodeOutputs(array(envelope[:n]...), &o); err != nil || o.Fields != n || o.WaveComplete != -1 {
					t.Errorf("envelope of %d fields: %v", n, err)
				}
			}
		})
	}
}

func wantLength(t *testing.T, err error, want LengthError) {
	t.Helper()
	var got *LengthError
	require.True(t, errors.As(err, &got) && *got == want, "got %v, want %v", err, &want)
	require.True(t, err == nil || strings.Contains(err.Error(), want.Error()), "%v does not say %v", err, &want)
}

func TestEngineDead(t *testing.T) {
	c := codecOf(t, recorded)
	require.ErrorIs(t, c.DecodeOutputs([]byte(EngineDead), new(Outputs)), ErrEngineDead)
	if err := c.DecodeOutputs([]byte(EngineDead+" "), new(Outputs)); err == nil || errors.Is(err, ErrEngineDead) {
		t.Errorf("one byte more: %v", err)
	}
}
