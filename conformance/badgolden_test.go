package conformance

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// TestBadGolden damages a real golden, or what the manifest says of it, in one
// way at a time: exactly the right checks turn red, and say where. The self-test has more.
func TestBadGolden(t *testing.T) {
	usual := usualGolden(t)
	file := usual.BucketPath
	firstRecord := usual.read(t).Records[0].OutputTokens // on line 2
	tokensOf := func(n int) string { return fmt.Sprintf(`"output_tokens":%d,`, n) }
	tests := []struct {
		name   string
		damage func(*testing.T, *subjectGolden)
		want   outcome
	}{
		{
			"nothing", func(*testing.T, *subjectGolden) {}, outcome{exit: ExitOK},
		},
		{
			"written anew by our writer", func(t *testing.T, g *subjectGolden) { g.rewrite(t, func(*trace.Trace) {}) },
			outcome{exit: ExitOK},
		},
		{
			"cut gzip stream", func(_ *testing.T, g *subjectGolden) { g.register(g.data[:len(g.data)-4]) },
			judgedOnce(ExitFail, "line", Error, file+": line ", "gzip stream"),
		},
		{
			"token count that lies", func(t *testing.T, g *subjectGolden) {
				g.editLine(t, 2, tokensOf(firstRecord), tokensOf(firstRecord+1))
			},
			judgedOnce(ExitFail, "line", Error, file+": line 2: ",
				fmt.Sprintf("output_token_ids: want %d entries as in output_tokens, got %d", firstRecord+1, firstRecord)),
		},
		{
			"not pinned", func(_ *testing.T, g *subjectGolden) { g.TokensSHA256 = "" },
			outcome{exit: ExitOK, says: onlyFidelity(Pass,
				"tokens_sha256 is not pinned in the manifest: it is "+usual.TokensSHA256).says},
		},
		{
			"no arrivals", func(t *testing.T, g *subjectGolden) {
				g.rewrite(t, func(t *trace.Trace) {
					for i := range t.Records {
						t.Records[i].ArrivalMs = nil
					}
				})
			},
			onlyFidelity(Error, file, "no record has both arrival_ms and output_token_ids, so there is nothing to replay"),
		},
		{
			"prompt shorter than a block", func(t *testing.T, g *subjectGolden) {
				g.TokensSHA256 = usualArrivalDigest
				g.rewrite(t, func(t *trace.Trace) { shorten(firstStream(t)) })
			},
			outcome{exit: ExitOK, says: map[string][]string{
				"fidelity-prefix-16": {fmt.Sprintf("1 of %d streams not matched by prompt: shorter than a block of 16 tokens", usual.Streams)},
			}},
		},
		{
			"no prompt as long as a block", func(t *testing.T, g *subjectGolden) {
				g.TokensSHA256 = usualArrivalDigest
				g.rewrite(t, func(t *trace.Trace) {
					for i := range t.Records {
						shorten(&t.Records[i])
					}
				})
			},
			outcome{
				exit: ExitOK, verdict: map[string]Verdict{"fidelity-prefix-1": Skip, "fidelity-prefix-16": Skip},
				says: map[string][]string{"fidelity-prefix-16": {fmt.Sprintf("%[1]d of %[1]d streams not matched by prompt", usual.Streams)}},
			},
		},
		{
			"no block size", func(t *testing.T, g *subjectGolden) {
				g.rewrite(t, func(t *trace.Trace) { t.Meta.BlockSize = nil })
			},
			outcome{
				exit: ExitOK, verdict: map[string]Verdict{"fidelity-prefix-1": Skip, "fidelity-prefix-16": Skip},
				says: map[string][]string{"fidelity-prefix-16": {"not matched by prompt: the golden has no block_size"}},
			},
		},
		{
			"prompts without their hashes", func(t *testing.T, g *subjectGolden) {
				g.rewrite(t, func(t *trace.Trace) {
					for i := range t.Records {
						t.Records[i].BlockHashes = nil
					}
				})
			},
			outcome{exit: ExitOK},
		},
		{
			"no records", func(t *testing.T, g *subjectGolden) {
				g.rewrite(t, func(t *trace.Trace) { t.Records = nil })
			},
			onlyFidelity(Error, file, "nothing to replay"),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := usualGolden(t)
			test.damage(t, g)
			test.want.check(t, g.run(t))
		})
	}
}

func shorten(r *trace.Record) {
	r.PromptTokens, r.CachedTokens, r.BlockHashes = 3, 0, []uint64{}
	r.PromptTokenIDs = r.PromptTokenIDs[:3]
}

func dropTokens(t *trace.Trace) {
	for i := range t.Records {
		t.Records[i].OutputTokenIDs = nil
	}
}

// failing expects one check to fail and the others to pass.
func failing(check string, says ...string) outcome {
	return outcome{exit: ExitFail, verdict: map[string]Verdict{check: Fail}, says: map[string][]string{check: says}}
}

func text(s string) *string { return &s }

// TestBadReadyResponse damages what the captured engine registered with.
func TestBadReadyResponse(t *testing.T) {
	file := usualGolden(t).BucketPath
	tests := []struct {
		name   string
		role   manifest.Role
		change func(t *testing.T, hexText string) *string
		want   outcome
	}{
		{"missing", manifest.Fidelity, func(*testing.T, string) *string { return nil }, outcome{
			exit: ExitOK, verdict: map[string]Verdict{"schema": Skip},
			says: map[string][]string{"schema": {"the golden has no ready_response_hex"}},
		}},
		{
			"key removed", manifest.Fidelity, func(t *testing.T, s string) *string {
				return text(withoutKey(t, s, "max_loras"))
			},
			outcome{exit: ExitOK, says: map[string][]string{"schema": {"not sent by the captured engine: max_loras"}}},
		},
		{
			"key that the player does not send", manifest.Fidelity, func(t *testing.T, s string) *string {
				return text(withKey(t, s, "new_in_this_build", pack.AppendInt(nil, 1)))
			},
			failing("schema", file, "ready response: new_in_this_build is missing, but the captured engine sent it (int)"),
		},
		{
			"kind that the player does not send", manifest.Fidelity, func(t *testing.T, s string) *string {
				return text(withKey(t, withoutKey(t, s, "kv_cache_size_tokens"), "kv_cache_size_tokens", pack.AppendString(nil, "1M")))
			},
			failing("schema", file, "ready response: kv_cache_size_tokens is int, but the captured engine sent str"),
		},
		{
			"kind that the player cannot read", manifest.Fidelity, func(t *testing.T, s string) *string {
				return text(withKey(t, withoutKey(t, s, "max_num_seqs"), "max_num_seqs", pack.AppendString(nil, "64")))
			},
			func() outcome {
				o := onlyFidelity(Error, file, "meta.ready_response_hex", "max_num_seqs")
				o.verdict["schema"], o.says["schema"] = Error, []string{file, "meta.ready_response_hex", "max_num_seqs"}
				return o
			}(),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := usualGolden(t)
			g.Role = test.role
			g.rewrite(t, func(tr *trace.Trace) {
				tr.Meta.ReadyResponseHex = test.change(t, *tr.Meta.ReadyResponseHex)
			})
			test.want.check(t, g.run(t))
		})
	}
}

// withoutKey removes a key from a hex-coded msgpack map.
func withoutKey(t *testing.T, hexMap, key string) string {
	t.Helper()
	entries := mapEntries(t, hexMap)
	kept := slices.DeleteFunc(slices.Clone(entries), func(e []byte) bool { return bytes.HasPrefix(e, pack.AppendString(nil, key)) })
	if len(kept) != len(entries)-1 {
		t.Fatalf("the ready response has %s %d times", key, len(entries)-len(kept))
	}
	return hexOfMap(kept)
}

// withKey adds a key with a value that is msgpack already.
func withKey(t *testing.T, hexMap, key string, value []byte) string {
	t.Helper()
	return hexOfMap(append(mapEntries(t, hexMap), append(pack.AppendString(nil, key), value...)))
}

func hexOfMap(entries [][]byte) string {
	return hex.EncodeToString(append(pack.AppendMapHeader(nil, len(entries)), bytes.Join(entries, nil)...))
}

// mapEntries cuts a hex-coded msgpack map into its keys with their values.
func mapEntries(t *testing.T, hexMap string) [][]byte {
	t.Helper()
	raw, err := hex.DecodeString(strings.TrimSpace(hexMap))
	require.NoError(t, err)
	cur := pack.NewCursor(raw)
	n, err := cur.MapLen()
	require.NoError(t, err)
	var entries [][]byte
	for range n {
		start := cur.Offset()
		require.NoError(t, cur.Skip())
		require.NoError(t, cur.Skip())
		entries = append(entries, raw[start:cur.Offset()])
	}
	return entries
}
