package protocol

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// initWith is an INIT with keys nobody here knows, between and behind those that are known.
func initWith(coordinator bool) []byte {
	b := pack.AppendMapHeader(nil, 3)
	b = pack.AppendMapHeader(pack.AppendString(b, "addresses"), 6)
	b = appendStrings(pack.AppendString(b, "inputs"), []string{"tcp://h:1", "tcp://h:2"})
	b = pack.AppendFloat32(pack.AppendString(b, "new_in_addresses"), 1.5)
	b = appendStrings(pack.AppendString(b, "outputs"), []string{"tcp://h:3", "tcp://h:4"})
	in, out := "tcp://h:5", "tcp://h:6"
	if coordinator {
		b = pack.AppendString(pack.AppendString(b, "coordinator_input"), in)
		b = pack.AppendString(pack.AppendString(b, "coordinator_output"), out)
	} else {
		b = pack.AppendNil(pack.AppendString(b, "coordinator_input"))
		b = pack.AppendNil(pack.AppendString(b, "coordinator_output"))
	}
	b = pack.AppendString(pack.AppendString(b, "frontend_stats_publish_address"), "tcp://h:7")
	b = pack.AppendMapHeader(pack.AppendString(b, "parallel_config"), 1)
	// An integer wider than it need be: what is copied keeps its form.
	b = append(pack.AppendString(b, "data_parallel_size"), 0xd1, 0x00, 0x05)
	return pack.AppendExt(pack.AppendString(b, "new_beside"), 7, []byte{1, 2})
}

func TestRewriteInit(t *testing.T) {
	for _, coordinator := range []bool{false, true} {
		t.Run(fmt.Sprintf("coordinator=%v", coordinator), func(t *testing.T) {
			var asked []string
			payload := initWith(coordinator)
			got, err := RewriteInit(payload, func(k AddressKey, client int, a string) (string, error) {
				asked = append(asked, fmt.Sprintf("%s %d %s", k, client, a))
				return "T" + a[1:], nil
			})
			require.NoError(t, err)
			want := strings.NewReplacer("tcp://h:7", "tcp://h:7", "tcp:", "Tcp:").Replace(string(payload))
			if string(got) != want {
				t.Errorf("got\n%s\nwant\n%s", pack.Format(got), pack.Format([]byte(want)))
			}
			wantAsked := 4
			if coordinator {
				wantAsked = 6
			}
			require.True(t, len(asked) == wantAsked && asked[0] == "inputs 0 tcp://h:1" && asked[3] == "outputs 1 tcp://h:4", "asked %q", asked)
		})
	}
}

func TestRewriteInitRefuses(t *testing.T) {
	full := errors.New("no port left")
	for _, tt := range []struct {
		name    string
		payload []byte
		err     error
		want    string
	}{
		{"not a map", []byte{0x01}, nil, "handshake init"},
		{"cut short", initWith(false)[:40], nil, "handshake init"},
		{"no addresses", pack.AppendMapHeader(nil, 0), nil, "0 input and 0 output addresses"},
		{"replacement fails", initWith(false), full, "no port left"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := RewriteInit(tt.payload, func(AddressKey, int, string) (string, error) { return "x", tt.err })
			require.ErrorContains(t, err, tt.want)
		})
	}
}
