package pack

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestAppendJSON converts values of every kind.
func TestAppendJSON(t *testing.T) {
	for _, test := range []struct {
		name string
		raw  []byte
		want string
	}{
		{"nil", AppendNil(nil), `null`},
		{"ints", AppendInt(AppendUint(AppendArrayHeader(nil, 2), 1<<64-1), -5), `[18446744073709551615,-5]`},
		{"floats", AppendFloat32(AppendFloat64(AppendFloat64(AppendArrayHeader(nil, 3), 2), 1e300), 0.9), `[2.0,1e+300,0.9]`},
		{"nan", []byte{0xca, 0x7f, 0xc0, 0, 0}, `null`},
		{"text", AppendString(nil, "a\"\\\n\x01é\xc3"), `"a\"\\\u000a\u0001é` + "\ufffd" + `"`},
		{"bytes", AppendBin(nil, []byte{1, 2}), `"AQI="`},
		{"tensor", AppendExt(nil, 3, []byte{1}), `null`},
		{"keys", append(AppendInt(AppendMapHeader(nil, 2), 7), 0xc3, 0xa1, 'k', 0x80), `{"7":true,"k":{}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			cur := NewCursor(test.raw)
			got, err := cur.AppendJSON(nil)
			require.True(t, err == nil && string(got) == test.want && cur.Done() && json.Valid(got), "got %s, %v; want %s", got, err, test.want)
		})
		for n := range test.raw {
			cur := NewCursor(test.raw[:n])
			if got, err := cur.AppendJSON(nil); err == nil {
				t.Errorf("%s: %d bytes of it are %s", test.name, n, got)
			}
		}
	}
	deep := NewCursor(append(bytes.Repeat([]byte{0x91}, DefaultDepth+1), 0xc0))
	if _, err := deep.AppendJSON(nil); err == nil {
		t.Error("there is no end to how deep values are nested")
	}
}
