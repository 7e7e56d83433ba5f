package player

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
)

// dozer is a parrot that dozes for an hour when it is asked for one token.
type dozer struct{ parrot }

func (d *dozer) Script(r *Request) (Script, error) {
	script, err := d.parrot.Script(r)
	if r.Sampling.MaxTokens == 1 {
		script.FirstToken = time.Hour
	}
	return script, err
}

// pythonEvent is a line of testdata/ranks.py.
type pythonEvent struct {
	Event   string
	Address string
	Hash    string
	Counts  []int // running requests of each engine
	Awake   bool  // the client takes the engines for running
	Turn    int
	Answers [][3]json.RawMessage // id, engine and tokens
	Values  []bool
	Wave    int
}

// The data-parallel clients of released frontends in Python, with their coordinator in a
// process of its own, and a group of players.
func TestPythonClientsOfAGroup(t *testing.T) {
	releases := strings.Fields(os.Getenv("VLLM_VCR_ENGINES"))
	if len(releases) == 0 {
		t.Skip("set VLLM_VCR_ENGINES to the releases whose CPU engines are installed, such as \"0.33.0 0.27.1\"")
	}
	for _, release := range releases {
		home := t.TempDir() // where a release keeps what it has found out about models
		for _, tt := range []struct {
			client   string
			experts  bool
			together bool
		}{
			{"DPLBAsyncMPClient", false, true},
			{"DPLBAsyncMPClient", true, true},
			{"DPLBAsyncMPClient", true, false},
			{"DPAsyncMPClient", true, true}, // knows the first engine only
		} {
			t.Run(fmt.Sprintf("%s/%s/experts=%v/together=%v", release, tt.client, tt.experts, tt.together), func(t *testing.T) {
				const requests = 40
				p := startPython(t, home, release, tt.client, requests, tt.experts, tt.experts && tt.together)
				begun := p.next("engines")
				stop := playBehind(t, begun, release, tt.together)
				spread := tt.client == "DPLBAsyncMPClient"
				for turn := range 2 {
					checkRunning(t, p.next("running"), requests, spread, tt.experts)
					checkAnswers(t, p.next("answers"), turn, requests, spread)
				}
				if diff := gocmp.Diff([]bool{false, true}, p.next("calls").Values); diff != "" {
					t.Errorf("is_sleeping and reset_prefix_cache (-want +got):\n%s", diff)
				}
				if left := p.next("leave"); tt.experts && tt.together && left.Wave < 2 {
					t.Errorf("the client is at wave %d after two turns", left.Wave)
				}
				stop()
				p.next("dead")
			})
		}
	}
}

// python is a process of testdata/ranks.py.
type python struct {
	t     *testing.T
	lines *bufio.Scanner
	peer  *testenv.Peer
}

func startPython(t *testing.T, home, release, client string, requests int, experts, wavesEnd bool) *python {
	t.Helper()
	model := testenv.ModelDir(t)
	if experts {
		model = withExperts(t, model)
	}
	cmd := exec.Command(filepath.Join(testenv.PeersDir(t), "engines", release, "bin", "python"),
		"-B", "testdata/ranks.py", model, strconv.Itoa(ranks), client, strconv.Itoa(requests))
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + os.TempDir(), "LANG=C.UTF-8", "OMP_NUM_THREADS=1", "NO_COLOR=1",
		"VLLM_NO_USAGE_STATS=1", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_PLUGINS=", "VLLM_CPU_KVCACHE_SPACE=1",
	}
	if wavesEnd {
		cmd.Env = append(cmd.Env, "WAVES_END=1")
	}
	out, err := cmd.StdoutPipe()
	must(t, err)
	p := &python{t: t, lines: bufio.NewScanner(out)}
	p.lines.Buffer(nil, 1<<20)
	p.peer = testenv.Process(t, "ranks.py of "+release, cmd)
	late := time.AfterFunc(5*time.Minute, p.peer.Stop)
	t.Cleanup(func() { late.Stop() })
	return p
}

// next returns the next line, which is of a kind.
func (p *python) next(event string) (e pythonEvent) {
	p.t.Helper()
	if !p.lines.Scan() {
		p.t.Fatalf("no %s of the client: %v", event, p.lines.Err())
	}
	if err := json.Unmarshal(p.lines.Bytes(), &e); err != nil || e.Event != event {
		p.t.Fatalf("%s: %v, want %s", p.lines.Text(), err, event)
	}
	return e
}

// playBehind runs the engines, in one group or each alone, until it is told to stop.
func playBehind(t *testing.T, begun pythonEvent, release string, together bool) (stop func()) {
	t.Helper()
	var options []Options
	for i := range ranks {
		options = append(options, Options{
			Handshake: begun.Address, VLLMVersion: "v" + release, EngineIndex: i, DataParallelSize: ranks, Source: new(dozer),
			Timing: Timing{Pace: PaceRecorded}, ParallelConfigHash: begun.Hash, Limits: Limits{MaxModelLen: 2048},
		})
	}
	groups := [][]Options{options}
	if !together {
		groups = slices.Collect(slices.Chunk(options, 1))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	for _, options := range groups {
		g, err := NewGroup(options)
		must(t, err)
		running.Go(func() {
			if err := g.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	return stop
}

// checkRunning compares what the client knows of the engines.
func checkRunning(t *testing.T, got pythonEvent, requests int, spread, experts bool) {
	t.Helper()
	want := []int{requests, 0, 0, 0}
	if spread {
		want = slices.Repeat([]int{requests / ranks}, ranks)
	}
	if diff := gocmp.Diff(want, got.Counts); diff != "" {
		t.Errorf("running requests of each engine (-want +got):\n%s", diff)
	}
	if got.Awake != experts {
		t.Errorf("the client takes the engines for running: %v", got.Awake)
	}
}

// checkAnswers compares what each request was answered with.
func checkAnswers(t *testing.T, got pythonEvent, turn, requests int, spread bool) {
	t.Helper()
	byEngine := map[string]int{}
	for i, a := range got.Answers {
		want := []uint32{}
		for n := range 20 + i {
			want = append(want, []uint32{5, 6, 7 + uint32(i)}[n%3])
		}
		var tokens []uint32
		must(t, json.Unmarshal(a[2], &tokens))
		if diff := gocmp.Diff(want, tokens); diff != "" || string(a[0]) != fmt.Sprintf("%q", fmt.Sprintf("r-%d-%d", turn, i)) {
			t.Errorf("%s (-want +got):\n%s", a[0], diff)
		}
		byEngine[string(a[1])]++
	}
	if !spread && byEngine["0"] != requests || spread && len(byEngine) != ranks {
		t.Errorf("requests answered by engine: %v", byEngine)
	}
}
