package kvevents

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// envEngines names the releases whose engines are installed, separated by spaces.
const envEngines = "VLLM_VCR_ENGINES"

// What releases decode with types of their own is what was published, and they are
// answered when they ask for it again.
func TestPythonSubscribers(t *testing.T) {
	versions := strings.Fields(os.Getenv(envEngines))
	if len(versions) == 0 {
		t.Skipf("set %s to the releases whose CPU engines are installed, such as \"0.33.0 0.27.1\"", envEngines)
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			s := startPython(t, version)
			s.follow(t, version, false)
			s.follow(t, version, true)
		})
	}
}

// follow publishes to the subscriber, and asks it what it got.
func (s *pythonSubscriber) follow(t *testing.T, version string, digests bool) {
	t.Helper()
	p := publisher(t, profile(t, version), Options{
		Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0", Topic: "kv@pod",
		BufferSteps: 2, Rank: 3, Digests: digests,
	})
	s.ask(fmt.Sprint("subscribe ", p.Endpoint(), " ", p.ReplayEndpoint(), " kv@pod"), 0)
	p.await("subscribed to")
	for i, events := range pythonBatches {
		require.NoError(t, p.Publish(float64(i)+0.5, events))
	}
	var live, again []string
	for i, batch := range decodedBatches(digests) {
		live = append(live, fmt.Sprintf(`["live", "kv@pod", %d, %s]`, i, batch))
		again = append(again, fmt.Sprintf(`["replay", "kv@pod", %d, %s]`, i, batch))
	}
	again = append(again, `["replay", "", -1, null]`)
	for _, ask := range []struct {
		command string
		want    []string
	}{
		{command: "live 3", want: live},
		{command: "replay 0", want: again[1:]}, // two are kept
		{command: "replay 3", want: again[3:]},
		{command: "first 2", want: again[2:3]},
	} {
		require.NoDiff(t, cmp.Diff(ask.want, s.ask(ask.command, len(ask.want))), "digests %v: %s (-want +got)", digests, ask.command)
	}
}

func hashOf(n byte) []byte { return append(make([]byte, 24), 0x80, 0, 0, 0, 0, 0, 0, n) }

// pythonBatches have one event each.
var pythonBatches = [][]kvcache.Event{
	{kvcache.BlockStored{
		Hashes: [][]byte{hashOf(1), hashOf(2)}, Parent: hashOf(9), Tokens: []uint32{1, 2, 3, 1<<32 - 1}, BlockSize: 2,
		LoRA: kvcache.LoRA{ID: 3, Name: "adapter"},
		Keys: [][]kvcache.Key{{
			{Kind: kvcache.KeyLoRA, Text: "adapter"},
			{Kind: kvcache.KeyFeature, Text: "image", Offset: -3},
			{Kind: kvcache.KeySalt, Text: "salt"},
		}, nil},
	}},
	{kvcache.BlockRemoved{Hash: hashOf(1)}},
	{kvcache.AllBlocksCleared{}},
}

// decodedBatches is what Python says of them, see testdata/subscriber.py.
func decodedBatches(digests bool) (texts []string) {
	hash := func(n byte) string {
		if digests {
			return fmt.Sprintf(`"%x"`, hashOf(n))
		}
		return fmt.Sprint(kvcache.IntHash(hashOf(n)))
	}
	for i, event := range []string{
		`{"block_hashes": [` + hash(1) + `, ` + hash(2) + `], "block_size": 2, "extra_keys": [["adapter", ["image", -3], "salt"], null], ` +
			`"group_idx": 0, "is": "BlockStored", "kv_cache_spec_kind": "full_attention", "lora_id": 3, "lora_name": "adapter", ` +
			`"medium": "GPU", "parent_block_hash": ` + hash(9) + `, "token_ids": [1, 2, 3, 4294967295]}`,
		`{"block_hashes": [` + hash(1) + `], "group_idx": 0, "is": "BlockRemoved", "medium": "GPU"}`,
		`{"is": "AllBlocksCleared"}`,
	} {
		texts = append(texts, fmt.Sprintf(`{"data_parallel_rank": 3, "events": [%s], "is": "KVEventBatch", "ts": %d.5}`, event, i))
	}
	return texts
}

// pythonSubscriber is testdata/subscriber.py at work.
type pythonSubscriber struct {
	t        *testing.T
	commands io.Writer
	answers  *bufio.Scanner
}

func startPython(t *testing.T, version string) *pythonSubscriber {
	t.Helper()
	cmd := exec.Command(filepath.Join(testenv.PeersDir(t), "engines", version, "bin", "python"), "testdata/subscriber.py")
	cmd.Env = append(os.Environ(), "VLLM_LOGGING_LEVEL=ERROR")
	commands, err := cmd.StdinPipe()
	require.NoError(t, err)
	answers, w := io.Pipe()
	cmd.Stdout = w
	peer := testenv.Process(t, "subscriber", cmd)
	go func() {
		<-peer.Done()
		w.Close()
	}()
	t.Cleanup(func() { commands.Close(); answers.Close() })
	s := &pythonSubscriber{t: t, commands: commands, answers: bufio.NewScanner(answers)}
	s.answers.Scan() // it says that it is ready, after half a minute
	return s
}

// ask returns the n lines that answer a command.
func (s *pythonSubscriber) ask(command string, n int) (lines []string) {
	s.t.Helper()
	if _, err := fmt.Fprintln(s.commands, command); err != nil {
		s.t.Fatal(err)
	}
	for range n {
		if !s.answers.Scan() {
			s.t.Fatalf("%s: the subscriber ended after %d lines of %d: %v", command, len(lines), n, s.answers.Err())
		}
		lines = append(lines, s.answers.Text())
	}
	return lines
}

// TestVectorsInPython: the files of the module vectors mean in Python what they say, and to releases that are installed, too.
func TestVectorsInPython(t *testing.T) {
	read := func(python, line string) {
		t.Helper()
		out, err := exec.Command(python, "testdata/vectors.py", filepath.Join("../../../vectors/kvevents", line)).Output()
		files, _ := filepath.Glob(filepath.Join("../../../vectors/kvevents", line, "*.msgpack"))
		require.True(t, err == nil && len(files) >= 20 && strings.TrimSpace(string(out)) == fmt.Sprint(len(files)), "%s: of %d messages: %v: %s", line, len(files), err, out)
	}
	for _, line := range protocol.Lines() {
		read(testenv.Python(t), line)
	}
	for _, version := range strings.Fields(os.Getenv(envEngines)) {
		read(filepath.Join(testenv.PeersDir(t), "engines", version, "bin", "python"), protocol.LineOf(version))
	}
}
