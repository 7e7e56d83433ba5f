package recorder

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// obsKilled names, in the environment, the file that a child is to write.
const obsKilled = "VLLM_VCR_TEST_OBSERVER_FILE"

// TestObserverChild is the process that [TestKilledObserver] kills: it observes
// requests without end, and says after each how many records are written.
func TestObserverChild(t *testing.T) {
	path := os.Getenv(obsKilled)
	if path == "" {
		t.Skip("not the child of another test")
	}
	s := &obsSession{t: t, at: 1}
	s.codec, _ = protocol.CodecFor("0.33")
	frames := filepath.Join(filepath.Dir(path), "frames.jsonl.gz")
	sinks := Sinks{Trace: obsCreate(t, path), Frames: obsCreate(t, frames)}
	s.o = NewObserver(Options{RecordTokens: true}, sinks, &s.counts, slog.New(slog.DiscardHandler))
	s.register("0.33.0")
	for i := 0; ; i++ {
		id := strconv.Itoa(i)
		s.add(obsRequest(id, 100))
		for range i % 20 {
			s.out(1, obsTokens(id, uint32(i)))
		}
		s.out(1, obsEnd(id, protocol.FinishStop, 2))
		if _, err := fmt.Println(s.counts.Records.Load()); err != nil {
			return
		}
	}
}

// TestKilledObserver kills a process at random moments: every record whose
// Observe had returned is in the file, which is read by its name.
func TestKilledObserver(t *testing.T) {
	rounds := 100
	if testing.Short() {
		rounds = 10
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range rounds {
		name := [...]string{"run.jsonl.gz", "run.jsonl"}[i%2]
		after := random.IntN(400)
		t.Run(fmt.Sprintf("%d/%s", i, name), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			said := obsKill(t, filepath.Join(dir, name), after)
			if said < after {
				t.Fatalf("seed %d: the child said %d records, want %d at least", seed, said, after)
			}
			left, err := filepath.Glob(filepath.Join(dir, "run.partial-*"))
			if err != nil || len(left) != 1 {
				t.Fatalf("files %q, %v", left, err)
			}
			if n := obsCountRecords(t, left[0]); n < said {
				t.Errorf("seed %d: %d records are readable, %d were written", seed, n, said)
			}
		})
	}
}

// obsKill starts a child, kills it after so many records, and returns how many it
// said to have written.
func obsKill(t *testing.T, path string, after int) (said int) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestObserverChild$")
	child.Env = append(os.Environ(), obsKilled+"="+path)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err != nil { // the last line may be cut
			break
		}
		if said, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
			t.Errorf("the child said %q", line)
			break
		}
		if said == after || after == 0 {
			require.NoError(t, child.Process.Kill())
		}
	}
	_ = child.Wait() // killed, by intention
	return said
}

// obsCountRecords reads what a killed process left. Of a plain file the last line
// may be a half one.
func obsCountRecords(t *testing.T, path string) (n int) {
	t.Helper()
	r, err := trace.Open(path, trace.Options{})
	require.NoError(t, err)
	defer r.Close()
	var rec trace.Record
	for ; ; n++ {
		err := r.Next(&rec)
		if err == nil {
			continue
		}
		if err != io.EOF && trace.IsGzip(path) {
			t.Errorf("record %d: %v", n, err)
		}
		return n
	}
}
