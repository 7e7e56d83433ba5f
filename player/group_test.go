package player

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// ranks is how many engines the frontends of these tests have.
const ranks = 4

// parrot is a source that says the prompt over and over, and counts what it is asked
// for.
type parrot struct{ requests, tokens atomic.Int64 }

func (p *parrot) Script(r *Request) (Script, error) {
	prompt := slices.Clone(r.PromptTokenIDs)
	p.requests.Add(1)
	p.tokens.Add(int64(r.Sampling.MaxTokens))
	return Script{
		Fill:   func(position int) uint32 { return prompt[position%len(prompt)] },
		Finish: protocol.FinishLength,
	}, nil
}

// waveLog is a log that tells how many waves have ended.
type waveLog struct {
	slog.Handler
	ended chan struct{}
}

func (l waveLog) Enabled(context.Context, slog.Level) bool { return true }

func (l waveLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "wave complete" {
		l.ended <- struct{}{}
	}
	return nil
}

// Real frontends spread requests over the ranks of a group, in one process or in
// several, and each rank's counts stay its own. For a model with experts the frontend
// runs a coordinator, too.
func TestRealFrontendsServeAGroup(t *testing.T) {
	for _, version := range testenv.FrontendVersions() {
		for _, experts := range []bool{false, true} {
			for _, together := range []bool{true, false} {
				name := fmt.Sprintf("%s/experts=%v/together=%v", version, experts, together)
				t.Run(name, func(t *testing.T) {
					server := startFrontend(t, version, experts)
					sources := [ranks]*parrot{}
					waves := waveLog{slog.DiscardHandler, make(chan struct{}, 10_000)}
					var options []Options
					for i := range ranks {
						sources[i] = new(parrot)
						options = append(options, Options{
							Handshake: server.Handshake(), VLLMVersion: "v" + version, EngineIndex: i, DataParallelSize: ranks,
							Source: sources[i], Log: slog.New(waves),
						})
					}
					groups := [][]Options{options}
					if !together {
						groups = slices.Collect(slices.Chunk(options, 1))
					}
					runGroups(t, server, groups)
					for range 2 {
						ask := 200
						each(t, ask, func(ctx context.Context, i int) error { return parroted(ctx, server, i) })
						if experts && together {
							<-waves.ended // all ranks agree that there is nothing left to do
						}
					}
					require.True(t, together || len(waves.ended) == 0, "a wave has ended, and nobody can know that")
					checkSpread(t, server, sources)
				})
			}
		}
	}
}

// checkSpread compares what the frontend has counted for each engine with what the
// engines were asked for.
func checkSpread(t *testing.T, server *vllmrs.Server, sources [ranks]*parrot) {
	t.Helper()
	want := map[string]int64{}
	for i, s := range sources {
		want[strconv.Itoa(i)] = s.tokens.Load()
		if n := s.requests.Load(); n < 10 {
			t.Errorf("engine %d was asked %d of 400 times: the frontend has not spread the requests", i, n)
		}
	}
	got := map[string]int64{}
	for _, m := range generated.FindAllStringSubmatch(metrics(t, server.URL()), -1) {
		tokens, err := strconv.ParseFloat(m[2], 64)
		must(t, err)
		got[m[1]] = int64(tokens)
	}
	require.NoDiff(t, gocmp.Diff(want, got), "tokens by engine (-asked for +in the frontend's metrics)")
}

var generated = regexp.MustCompile(`(?m)^vllm:generation_tokens_total\{[^}]*engine="(\d+)"[^}]*\} (\S+)$`)

// metrics are those of a frontend as text.
func metrics(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("/metrics: %s, %v", resp.Status, err)
	}
	return string(text)
}

// parroted asks for up to 60 tokens, whole or streamed, and compares.
func parroted(ctx context.Context, server *vllmrs.Server, i int) error {
	r := openai.Request{Prompt: []uint32{5, 6, 7 + uint32(i%100)}, MaxTokens: 20 + i%40, Stream: i%2 == 0, IgnoreEOS: true}
	got, err := server.Complete(ctx, r)
	if err != nil {
		return err
	}
	want := []uint32{}
	for n := range r.MaxTokens {
		want = append(want, r.Prompt[n%len(r.Prompt)])
	}
	if diff := gocmp.Diff(want, got.Tokens); diff != "" {
		return fmt.Errorf("request %d (-want +got):\n%s", i, diff)
	}
	return nil
}

// each does something n times, 32 at a time.
func each(t *testing.T, n int, do func(ctx context.Context, i int) error) {
	t.Helper()
	ctx, done := context.WithTimeout(t.Context(), patience)
	defer done()
	var running sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			if err := do(ctx, i); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
}

// runGroups runs groups until the test ends, and waits until the frontend is healthy.
func runGroups(t *testing.T, server *vllmrs.Server, groups [][]Options) {
	t.Helper()
	ctx, stop := context.WithCancelCause(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(nil); running.Wait() })
	for _, options := range groups {
		g, err := NewGroup(options)
		must(t, err)
		running.Go(func() {
			err := g.Run(ctx)
			if ctx.Err() != nil && errors.Is(err, ErrFrontendGone) {
				return // another group has ended first, which the frontend does not survive
			}
			if err != nil {
				t.Error(err)
				stop(err)
			}
		})
	}
	must(t, server.Healthy(ctx))
}

// startFrontend starts the frontend of several engines.
func startFrontend(t *testing.T, version string, experts bool) *vllmrs.Server {
	t.Helper()
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexec %s $(echo \"$@\" | sed 's/--data-parallel-size 1/--data-parallel-size %d/')\n",
		testenv.Frontend(t, version), ranks)
	binary := filepath.Join(dir, "frontend")
	testenv.WriteProgram(t, binary, script)
	model := testenv.ModelDir(t)
	if experts {
		model = withExperts(t, model)
	}
	// Not the context of the test, which ends before the engines are told to stop: they would miss the frontend.
	server, err := vllmrs.Start(context.Background(), vllmrs.Options{Binary: binary, ModelDir: model})
	must(t, err)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the last output of vllm-rs %s:\n%s", version, server.Tail())
		}
	})
	return server
}

// withExperts copies a model's files and makes it a mixture of experts by name.
func withExperts(t *testing.T, model string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(model)))
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	must(t, err)
	config := map[string]any{}
	must(t, json.Unmarshal(text, &config))
	config["architectures"], config["model_type"] = []string{"Qwen3MoeForCausalLM"}, "qwen3_moe"
	config["num_experts"], config["num_experts_per_tok"], config["moe_intermediate_size"] = 4, 2, 32
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(path, text, 0o644))
	return dir
}

func TestRanks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		opt   Options
		count int
		want  [][2]int // index and size
		err   string
	}{
		{name: "one", count: 1, want: [][2]int{{0, 0}}},
		{name: "several", count: 3, want: [][2]int{{0, 3}, {1, 3}, {2, 3}}},
		{name: "a part of a group", opt: Options{EngineIndex: 2, DataParallelSize: 6}, count: 2, want: [][2]int{{2, 6}, {3, 6}}},
		{name: "the last of a group", opt: Options{EngineIndex: 2}, count: 2, want: [][2]int{{2, 4}, {3, 4}}},
		{name: "none", count: 0, err: "0 engines"},
		{name: "more than the group has", opt: Options{EngineIndex: 2, DataParallelSize: 3}, count: 2, err: "engines 2 to 3 do not fit into a group of 3 engines"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all, err := Ranks(tt.opt, tt.count)
			var got [][2]int
			for _, o := range all {
				got = append(got, [2]int{o.EngineIndex, o.DataParallelSize})
			}
			if diff := gocmp.Diff(tt.want, got); diff != "" || !strings.Contains(fmt.Sprint(err), cmp.Or(tt.err, "nil")) {
				t.Errorf("%v; (-want +got):\n%s", err, diff)
			}
		})
	}
}

// An engine that cannot start ends the others, which are told nothing else.
func TestAGroupEndsTogether(t *testing.T) {
	s := connect(t, Options{}, 1)
	all, err := Ranks(Options{Handshake: s.front.Handshake()}, 2)
	must(t, err)
	all[1].Handshake = "nowhere"
	g, err := NewGroup(all)
	must(t, err)
	require.ErrorContains(t, g.Run(s.ctx), "engine 1: handshake: ")
	select {
	case <-g.Ready():
		t.Error("ready")
	default:
	}
	all[1].EngineIndex = 0
	if _, err := NewGroup(all); err == nil || !strings.Contains(err.Error(), "engine index 0 is given twice") {
		t.Errorf("NewGroup: %v", err)
	}
}
