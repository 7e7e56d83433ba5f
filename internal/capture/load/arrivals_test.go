package load

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	return path
}

// arrivalLine is a record of a trace.
func arrivalLine(at float64, prompt, output int, blocks ...string) string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"output_tokens":%d,"ttft_ms":1,"itl_summary":{"mean_ms":1,"count":1},"arrival_ms":%v,"block_hashes":[%s]}`+"\n",
		prompt, output, at, strings.Join(blocks, ","))
}

// Two prompts share as much as the prompts of the trace did, block by block, whether as token ids or as text; and each
// is as long as it was.
func TestArrivalsShareWhatTheyShared(t *testing.T) {
	all, blockSize, err := Config{Shape: Shape{Arrivals: capturedMultiturn, Speed: 1}}.readArrivals()
	if err != nil || len(all) != 180 || blockSize != 16 {
		t.Fatalf("%d requests, blocks of %d, %v; want 180, 16", len(all), blockSize, err)
	}
	blocks := func(i int) []string { // as text
		drawn := strings.Fields(all[i].draw(7, i, blockSize, true).(string))
		if len(drawn) != all[i].prompt {
			t.Fatalf("prompt %d has %d words, want %d", i, len(drawn), all[i].prompt)
		}
		var list []string
		for piece := range slices.Chunk(drawn[:len(all[i].blocks)*blockSize], blockSize) {
			list = append(list, strings.Join(piece, " "))
		}
		return list
	}
	shared := 0
	of := map[uint64]string{} // by hash
	to := map[string]uint64{} // by block of ids
	texts := map[uint64]string{}
	for i, a := range all {
		ids := a.draw(7, i, blockSize, false).([]int)
		if len(ids) != a.prompt {
			t.Fatalf("prompt %d has %d tokens, want %d", i, len(ids), a.prompt)
		}
		inText := blocks(i)
		for b, hash := range a.blocks {
			block := fmt.Sprint(ids[b*blockSize : (b+1)*blockSize])
			if known, ok := of[hash]; ok {
				shared++
				require.True(t, known == block && texts[hash] == inText[b], "request %d, block %d: two blocks for the hash %d", i, b, hash)
			}
			if known, ok := to[block]; ok && known != hash {
				t.Errorf("request %d, block %d: one block for the hashes %d and %d", i, b, hash, known)
			}
			of[hash], to[block], texts[hash] = block, hash, inText[b]
		}
	}
	require.True(t, shared >= 500, "%d blocks came again: this trace shows nothing", shared)
	if one, other := fmt.Sprint(all[0].draw(7, 0, 16, false)), fmt.Sprint(all[0].draw(8, 0, 16, false)); one == other {
		t.Error("another seed draws the same prompt")
	}
}

func TestArrivalsAreTheFirst(t *testing.T) {
	path := write(t, "a.jsonl", arrivalLine(30, 0, 0)+arrivalLine(10, 5, 7)+arrivalLine(20, 1, 1))
	all, _, err := Config{Shape: Shape{Arrivals: path, Speed: 1, Requests: 2}}.readArrivals()
	if err != nil || len(all) != 2 || all[0].line != 2 || all[0].prompt != 5 || all[0].output != 7 || all[1].line != 3 {
		t.Errorf("got %+v, %v; want lines 2 and 3", all, err)
	}
	all, _, err = Config{Shape: Shape{Arrivals: path, Speed: 1, Requests: 9}}.readArrivals()
	require.True(t, err == nil && len(all) == 3 && all[2].prompt == 1 && all[2].output == 1, "got %+v, %v; want three requests of one token or more", all, err)
}

func TestBadTraces(t *testing.T) {
	const meta = `{"meta":{"block_size":16}}` + "\n"
	whole, err := os.ReadFile(capturedMultiturn)
	require.NoError(t, err)
	tests := []struct{ name, file, text, want string }{
		{name: "no times", text: meta + `{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1}` + "\n", want: "%s:2: no arrival_ms: want a trace with the arrival time"},
		{name: "hashes of what", text: arrivalLine(1, 16, 1, "5"), want: "%s:1: block_hashes, but no block_size in the meta line"},
		{name: "too many hashes", text: meta + arrivalLine(1, 16, 1, "5", "6"), want: "%s:2: 2 block_hashes of 16 tokens each, but prompt_tokens is 16"},
		{name: "too long", text: arrivalLine(1, 1<<20+1, 1), want: "%s:1: 1048577 prompt_tokens and 1 output_tokens: want 1048576 at most"},
		{name: "no records", text: meta, want: "%s has no records, so there is nothing to ask"},
		{name: "nothing", want: "%s has no records, so there is nothing to ask"},
		{name: "half a line", text: meta + arrivalLine(1, 1, 1)[:30], want: "%s: line 2"},
		{name: "cut", file: "a.jsonl.gz", text: string(whole[:len(whole)/2]), want: "%s is cut off: "},
		{name: "not gzip", file: "a.jsonl.gz", text: meta, want: "not gzip data"},
		{name: "days", text: arrivalLine(0, 1, 1) + arrivalLine(9e9, 1, 1), want: "%s: its last request arrives 2500 hours after the first: want a schedule of 24 hours or less, by --speed or --requests"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			name := "a.jsonl"
			if test.file != "" {
				name = test.file
			}
			path := write(t, name, test.text)
			cfg := config("http://127.0.0.1:1", Arrivals, 7)
			cfg.Shape.Arrivals, cfg.Shape.Speed = path, 1
			want := strings.ReplaceAll(test.want, "%s", path)
			require.ErrorContains(t, cfg.Check(), want)
		})
	}
}

// FuzzArrivals: whatever a trace says, prompts are as long as it says.
func FuzzArrivals(f *testing.F) {
	f.Add([]byte(`{"meta":{"block_size":2}}`+"\n"+arrivalLine(1, 5, 1, "1", "2")), uint64(1))
	f.Add([]byte(arrivalLine(-1e300, 1, 1)+arrivalLine(1e300, 1, 1)), uint64(2))
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		all, blockSize, err := Config{Shape: Shape{Arrivals: write(t, "a.jsonl", string(text)), Speed: 1}}.readArrivals()
		if err != nil {
			return
		}
		for i, a := range all[:min(len(all), 3)] {
			if a.prompt > 10000 {
				continue
			}
			if ids := a.draw(seed, i, blockSize, false).([]int); len(ids) != a.prompt {
				t.Errorf("%d tokens, want %d", len(ids), a.prompt)
			}
		}
	})
}
