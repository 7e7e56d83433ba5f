package selftest

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check/pd"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// nixlFaults are faults in goldens of role nixl, by which the player is not what was recorded.
func nixlFaults(codec *protocol.Codec) []Fault {
	// of changes the frames of a channel and direction, from the nth on; those for which there are none are left out.
	of := func(channel, direction string, nth int, change func(frame []byte) [][]byte) func([]trace.Message) []trace.Message {
		return func(messages []trace.Message) (out []trace.Message) {
			seen := 0
			for _, m := range messages {
				is := m.Channel == channel && m.Direction == direction
				if is {
					seen++
				}
				if !is || seen < nth {
					out = append(out, m)
				} else {
					for _, frame := range change(m.Frames[0]) {
						m.Frames = append([][]byte{frame}, m.Frames[1:]...)
						out = append(out, m)
					}
				}
			}
			return out
		}
	}
	lost := func([]byte) [][]byte { return nil }
	twice := func(frame []byte) [][]byte { return [][]byte{frame, frame} }
	last := func(frame []byte) [][]byte { // its last byte is another one
		frame = slices.Clone(frame)
		frame[len(frame)-1] ^= 3
		return [][]byte{frame}
	}
	text := func(old, other string) func([]byte) [][]byte {
		return func(frame []byte) [][]byte { return [][]byte{bytes.ReplaceAll(frame, []byte(old), []byte(other))} }
	}
	hash := func(frame []byte) [][]byte {
		frame = slices.Clone(frame)
		frame[bytes.Index(frame, []byte("compatibility_hash"))+len("compatibility_hash")+2] = 'x'
		return [][]byte{frame}
	}
	edited := func(edits ...edit) func([]trace.Message) []trace.Message {
		return func(messages []trace.Message) []trace.Message { return editedSession(codec, messages, edits) }
	}
	const prefill, decode, request, reply, notification = "nixl-prefill", "nixl-decode", "nixl_request", "nixl_reply", "nixl_notification"
	const ours, theirs = trace.FrontendToEngine, trace.EngineToFrontend
	var all []Fault
	for _, r := range []struct {
		name, golden string
		code         conformance.Code
		finds        string
		frames       func([]trace.Message) []trace.Message
	}{
		{"no-answer", prefill, pd.CodeGoldenHandshake, "answers no handshake", of(reply, theirs, 1, lost)},
		{"unasked", prefill, pd.CodeGoldenHandshake, "nobody asked for", of(request, ours, 1, lost)},
		{"asks-otherwise", prefill, pd.CodeGoldenHandshake, "handshake request", of(request, ours, 1, text("\x93", "\x92"))},
		{"other-payload", prefill, pd.CodeGoldenHandshake, "it has no compatibility_hash", of(reply, theirs, 2, text("compatibility_hash", "compatibility_hasH"))},
		{"other-key", prefill, pd.CodeGoldenHandshake, "it has no num_blocks", of(reply, theirs, 2, text("num_blocks", "num_blockS"))},
		{"other-hash", prefill, pd.CodeGoldenHandshake, "the compatibility hash is", of(reply, theirs, 1, hash)},
		{"other-layout", prefill, pd.CodeGoldenHandshake, "the metadata are", of(reply, theirs, 1, text("LBHNC", "LBHNX"))},
		{"other-params", prefill, pd.CodeGoldenParams, "kv_transfer_params are", edited(put("outputs.kv_transfer_params.remote_num_tokens", plus(1), 1))},
		{"other-end", decode, pd.CodeGoldenAnswer, "ends by", edited(instead("outputs.finish_reason", 1, 0))},
		{"other-request", decode, pd.CodeGoldenDecode, "the request for a handshake is", of(request, theirs, 1, last)},
		{"other-notification", decode, pd.CodeGoldenDecode, "the notification is", of(notification, theirs, 1, last)},
		{"notifies-once", decode, pd.CodeGoldenDecode, "sends no notification", of(notification, theirs, 2, twice)},
	} {
		w := want{code: r.code, request: anywhere, position: -1, says: []string{r.finds}, besides: true}
		all = append(all, Fault{
			Name: "nixl-" + r.name, Says: fmt.Sprintf("a recorded engine with a NixlConnector is not as the player: %q", r.finds), session: r.golden,
			red: only(conformance.NIXL, w), frames: r.frames, waits: idle,
		})
	}
	return all
}
