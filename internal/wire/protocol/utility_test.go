package protocol

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// TestUtilityResultKinds: a frontend answers HTTP 500 to a result of another
// kind than the line's method has, so none can be written.
func TestUtilityResultKinds(t *testing.T) {
	list := pack.AppendNil(pack.AppendArrayHeader(nil, 1))
	values := []struct {
		name  string
		value any
		kinds []ResultKind // that take it
	}{
		{"nil", nil, []ResultKind{ResultNone, ResultAny}},
		{"bool", true, []ResultKind{ResultBool, ResultAny}},
		{"string", "default", []ResultKind{ResultStr, ResultAny}},
		{"ints", []int64{1, -2}, []ResultKind{ResultInts, ResultAny}},
		{"no ints", []int64{}, []ResultKind{ResultInts, ResultAny}},
		{"strings", []string{"generate"}, []ResultKind{ResultStrings, ResultAny}},
		{"raw list", list, []ResultKind{ResultList, ResultAny}},
		{"raw map", pack.AppendMapHeader(nil, 0), []ResultKind{ResultAny}},
		{"broken raw", []byte{0x92, 0xc0}, nil},
		{"two raw values", []byte{0x90, 0x90}, nil},
		{"no raw", []byte{}, nil},
		{"int", 1, nil},
	}
	kinds := map[ResultKind]string{
		ResultNone: "reset_mm_cache", ResultBool: "is_sleeping", ResultStr: "get_weight_version", ResultInts: "list_loras",
		ResultStrings: "get_supported_tasks", ResultList: "collective_rpc", ResultAny: "handle_fault_tolerance",
	}
	c := codecOf(t, recorded)
	for kind, method := range kinds {
		for _, v := range values {
			t.Run(fmt.Sprintf("%s/%s", kind, v.name), func(t *testing.T) {
				m, err := c.UtilityResult(1, UtilityCall{CallID: 1 << 63, Method: method}, v.value, 1.5)
				if !slices.Contains(v.kinds, kind) {
					require.True(t, err != nil && m == nil && strings.Contains(err.Error(), "utility "+method+" of line "+Newest()+": "), "got %x %v, want an error naming method and line", m, err)
					return
				}
				require.NoError(t, err)
				o := mustDecode(t, c, m)
				require.True(t, o.Utility != nil && o.Utility.CallID == 1<<63 && !o.Utility.Failed && o.Utility.Result != nil, "%+v", o.Utility)
			})
		}
	}
}

// TestReservedCallIDs: a Python frontend keeps -1 and -2 for notifications of
// its own; they are read as they would be written in 64 bits.
func TestReservedCallIDs(t *testing.T) {
	for _, test := range []struct {
		id   []byte
		want uint64
	}{{[]byte{0xff}, 1<<64 - 1}, {[]byte{0xfe}, 1<<64 - 2}} {
		call, err := DecodeUtilityCall(array([]byte{0}, test.id, samples[pack.String], array()))
		require.True(t, err == nil && call.CallID == test.want, "%x: got %d %v, want %d", test.id, call.CallID, err, test.want)
	}
}

func TestBadCalls(t *testing.T) {
	str, null := samples[pack.String], samples[pack.Nil]
	client, id := []byte{2}, pack.AppendUint(nil, 1<<63)
	for _, test := range []struct {
		name   string
		values [][]byte
		want   string
		call   UtilityCall
	}{
		{"three values", [][]byte{client, id, str}, "utility call: 3 values, want [client_index, call_id, method, args]", UtilityCall{}},
		{"five values", [][]byte{client, id, str, array(), null}, "utility call x: 1 bytes after [client_index,", UtilityCall{ClientIndex: 2, CallID: 1 << 63, Method: "x"}},
		{"client nil", [][]byte{null, id, str, array()}, "utility call: client_index: ", UtilityCall{}},
		{"client negative", [][]byte{{0xff}, id, str, array()}, "utility call: client_index: -1 is out of range", UtilityCall{}},
		{"call id text", [][]byte{client, str, str, array()}, "utility call: call_id: ", UtilityCall{ClientIndex: 2}},
		{"method nil", [][]byte{client, id, null, array()}, "utility call: method: ", UtilityCall{ClientIndex: 2, CallID: 1 << 63}},
		{"args nil", [][]byte{client, id, str, null}, "utility call x: args: ", UtilityCall{ClientIndex: 2, CallID: 1 << 63, Method: "x"}},
		{
			"bad argument",
			[][]byte{client, id, str, {0x92, 0xc0, 0xc1}},
			"utility call x: argument 1: ",
			UtilityCall{ClientIndex: 2, CallID: 1 << 63, Method: "x", Args: [][]byte{null}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			call, err := DecodeUtilityCall(array(test.values...))
			require.True(t, err != nil && strings.HasPrefix(err.Error(), test.want), "got %v, want %s", err, test.want)
			require.NoDiff(t, cmp.Diff(test.call, call), "what could be read: -want +got")
		})
	}
	claimed := append([]byte{0x95}, slices.Concat(client, id, str, array())...)
	if _, err := DecodeUtilityCall(claimed); err == nil {
		t.Error("a call that claims five values and has four is taken for whole")
	}
	for name, payload := range map[string][]byte{
		"start wave of one": array(client), "of three": array(client, null, null), "wave nil": array(null, null), "engine text": array(client, str),
		"engine cut short": array(client, []byte{0xc4, 2, 0}),
	} {
		if _, _, err := DecodeStartWave(payload); err == nil || !strings.HasPrefix(err.Error(), "start_dp_wave: ") || strings.Contains(err.Error(), "%!") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, test := range []struct {
		payload       []byte
		wave, exclude int
	}{{array(client, null), 2, -1}, {array(client, []byte{0}), 2, 0}, {array(client, pack.AppendBin(nil, []byte{0, 0})), 2, -1}} {
		if wave, exclude, err := DecodeStartWave(test.payload); wave != test.wave || exclude != test.exclude || err != nil {
			t.Errorf("%x: wave %d, engine %d, %v", test.payload, wave, exclude, err)
		}
	}
	if _, err := DecodeAbort(array(str, client)); err == nil || !strings.HasPrefix(err.Error(), "abort: id 1: ") {
		t.Errorf("abort of an int: %v", err)
	}
	if ids, err := DecodeAbort(AppendAbort(nil)); err != nil || len(ids) != 0 {
		t.Errorf("abort of nothing: %v %v", ids, err)
	}
}
