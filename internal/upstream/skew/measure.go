package skew

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// A Frontend is the frontend of a release: vllm-rs, or the Python client of the API server.
type Frontend struct {
	Line   string // "0.33"
	Binary string // vllm-rs, or an interpreter with Before, see [vllmrs.Options]
	Before []string
}

// name is that of the frontend in a table.
func (f Frontend) name() string {
	if f.Before != nil {
		return f.Line + Python
	}
	return f.Line
}

// An Engine is the engine core of a release.
type Engine struct {
	Line, Version string // "0.33", "0.33.0"
	// Start starts a real engine that registers at an address; nil plays the line.
	Start func(handshake string) (*process.Process, error)
}

// A Measurement tries each frontend in front of each engine.
type Measurement struct {
	Frontends []Frontend
	Engines   []Engine
	Model     string // model directory of the frontends
	Jobs      int    // pairs that are tried at the same time, default 4
	Log       *slog.Logger
	Progress  func(done, of int) // one call at a time; may be nil

	adapter  string                       // folder of a LoRA adapter
	profiles map[string]*protocol.Profile // by line
}

// How long a pair is waited for, and how long a request. What succeeds takes less than a second on an idle machine.
const (
	readyTime      = 60 * time.Second
	answerTime     = 60 * time.Second
	realAnswerTime = 5 * time.Minute // the first of a kind is compiled
)

// Make returns the cells, in the order of the frontends, then of the engines.
func (m Measurement) Make(ctx context.Context) ([]Cell, error) {
	var lines []string
	for _, f := range m.Frontends {
		lines = append(lines, f.Line)
	}
	for _, e := range m.Engines {
		lines = append(lines, e.Line)
	}
	m.profiles = map[string]*protocol.Profile{}
	for _, line := range lines {
		codec, err := protocol.CodecFor(line)
		if err != nil {
			return nil, err
		}
		m.profiles[line] = codec.Profile()
	}
	dir, remove, err := process.MkdirTemp("vllm-vcr-skew-*")
	if err != nil {
		return nil, err
	}
	defer remove()
	m.adapter = filepath.Join(dir, adapter)
	if err := errors.Join(os.Mkdir(m.adapter, 0o755), os.WriteFile(filepath.Join(m.adapter, "adapter_config.json"), []byte("{}"), 0o644)); err != nil {
		return nil, err
	}
	cells := make([]Cell, len(m.Frontends)*len(m.Engines))
	var counting sync.Mutex
	done := 0
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cmp.Or(m.Jobs, 4))
	for i := range cells {
		group.Go(func() (err error) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			f, e := m.Frontends[i/len(m.Engines)], m.Engines[i%len(m.Engines)]
			if cells[i], err = m.try(ctx, f, e); err != nil {
				return fmt.Errorf("frontend %s before engine %s: %w", f.Line, e.Line, err)
			}
			counting.Lock()
			defer counting.Unlock()
			if done++; m.Progress != nil {
				m.Progress(done, len(cells))
			}
			return nil
		})
	}
	return cells, group.Wait()
}

// try starts a pair and sends a request of each feature. An error is of this side.
func (m Measurement) try(ctx context.Context, f Frontend, e Engine) (Cell, error) {
	cell := Cell{Frontend: f.name(), Engine: e.Line, Real: e.Start != nil}
	server, err := vllmrs.Start(ctx, vllmrs.Options{
		Binary: f.Binary, Before: f.Before, ModelDir: m.Model, ReadyTimeout: readyTime, Log: m.Log,
		Env: []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", "VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES=" + filepath.Dir(m.adapter)},
	})
	if err != nil {
		return cell, err
	}
	defer server.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, readyTime+time.Duration(len(Features))*realAnswerTime, errors.New("the pair took too long"))
	defer cancel()
	p := &pair{python: f.Before != nil, adapter: m.adapter, server: server, client: openai.NewClient(server.URL(), server.Model())}
	defer p.client.Close()
	stop, err := p.start(ctx, e)
	if err != nil {
		return cell, err
	}
	defer stop()
	if err := server.Healthy(ctx); err != nil {
		cell.Verdict = DoesNotStart
		p.explain(&cell, m.profiles[f.Line], m.profiles[e.Line], err)
		return cell, nil
	}
	cell.Verdict = Works
	for _, feature := range Features {
		if feature == LoRA && (e.Start != nil || f.Before != nil) {
			continue // no adapter for the model exists
		}
		err := p.ask(ctx, feature)
		switch {
		case err == nil:
		case feature == Plain:
			cell.Verdict = RequestsFail
			p.explain(&cell, m.profiles[f.Line], m.profiles[e.Line], err)
			return cell, nil
		default:
			before := cell.Reason
			p.explain(&cell, m.profiles[f.Line], m.profiles[e.Line], err)
			cell.Verdict, cell.Without = WorksWithout, append(cell.Without, feature)
			cell.Reason = strings.TrimPrefix(before+"; "+string(feature)+": "+cell.Reason, "; ")
		}
	}
	return cell, context.Cause(ctx)
}

// A pair is a frontend before an engine.
type pair struct {
	adapter string
	server  *vllmrs.Server
	client  *openai.Client
	engine  *process.Process // nil for a player
	played  *answers         // nil for a real engine
	python  bool             // the frontend is one of [Python]
}

func (p *pair) start(ctx context.Context, e Engine) (stop func(), err error) {
	if e.Start != nil {
		if p.engine, err = e.Start(p.server.Handshake()); err != nil {
			return nil, err
		}
		return func() { _ = p.engine.Stop(context.Background()) }, nil
	}
	ready := protocol.DefaultReady(e.Version)
	ready.SupportsLoRA, ready.MaxLoRAs = true, 4
	codec, err := player.CodecFor(e.Version)
	if err != nil {
		return nil, err
	}
	registration := hex.EncodeToString(codec.AppendReady(nil, &ready))
	p.played = &answers{}
	engine, err := player.New(player.Options{
		Handshake: p.server.Handshake(), HandshakeTimeout: readyTime, VLLMVersion: "v" + e.Version, Source: p.played,
		Trace: &trace.Trace{Meta: trace.Meta{ReadyResponseHex: &registration}},
		LoRA:  player.LoRAOptions{MaxLoRAs: 4}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	playing, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = engine.Run(playing) // its end shows in the answers of the frontend
	}()
	return func() { cancel(); <-done }, nil
}

// answers is a player.Source that answers with the tokens of the prompt, and keeps what the engine has understood of the last request.
type answers struct {
	mu         sync.Mutex
	lora       string
	structured bool
}

func (a *answers) Script(r *player.Request) (player.Script, error) {
	a.mu.Lock()
	a.lora, a.structured = r.LoRA, r.Sampling.StructuredOutputs != nil
	a.mu.Unlock()
	return player.Echo{}.Script(r)
}

var prompt = []uint32{35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54}

const adapter = "adapter"

// ask sends the requests of a feature, and returns why it does not work.
func (p *pair) ask(ctx context.Context, feature Feature) error {
	limit := answerTime
	if p.played == nil {
		limit = realAnswerTime
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	body := map[string]any{
		"model": p.server.Model(), "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
	}
	switch feature {
	case Statistics:
		return p.statistics(ctx)
	case LogProbs:
		body["logprobs"] = 2
	case Structured:
		body["structured_outputs"] = map[string]any{"choice": []string{"yes", "no"}}
		delete(body, "ignore_eos")
	case LoRA:
		load := map[string]any{"lora_name": adapter, "lora_path": p.adapter}
		if err := p.post(ctx, "/v1/load_lora_adapter", load, nil); err != nil {
			return err
		}
		body["model"] = adapter
	}
	var answer struct {
		Choices []struct {
			Text         string   `json:"text"`
			TokenIDs     []uint32 `json:"token_ids"`
			FinishReason string   `json:"finish_reason"`
			LogProbs     *struct {
				TokenLogProbs []float64 `json:"token_logprobs"`
			} `json:"logprobs"`
		} `json:"choices"`
	}
	if err := p.post(ctx, "/v1/completions", body, &answer); err != nil {
		return err
	}
	if len(answer.Choices) != 1 {
		return fmt.Errorf("%d choices, want 1", len(answer.Choices))
	}
	got := answer.Choices[0]
	switch {
	case p.played == nil && feature == Structured:
		if got.Text != "yes" && got.Text != "no" {
			return fmt.Errorf("the answer is %q, which is neither choice", got.Text)
		}
		return nil
	case p.played == nil && (len(got.TokenIDs) != 8 || got.FinishReason != "length"):
		return fmt.Errorf("%d tokens and finish_reason %q, want 8 and length", len(got.TokenIDs), got.FinishReason)
	case p.played != nil && !slices.Equal(got.TokenIDs, prompt[:8]):
		return fmt.Errorf("the answer has the tokens %v, and the engine sent %v", got.TokenIDs, prompt[:8])
	case feature == LogProbs && (got.LogProbs == nil || len(got.LogProbs.TokenLogProbs) != 8):
		return errors.New("the answer has no log-probabilities")
	}
	if p.played != nil {
		p.played.mu.Lock()
		defer p.played.mu.Unlock()
		if feature == Structured && !p.played.structured {
			return errors.New("the engine does not find the constraint in the request")
		}
		if feature == LoRA && p.played.lora != adapter {
			return fmt.Errorf("the engine reads the adapter %q in the request, want %q", p.played.lora, adapter)
		}
	}
	return nil
}

// post sends a request. An error is also an answer that is not of status 200.
func (p *pair) post(ctx context.Context, path string, body, answer any) error {
	a, err := p.client.Send(ctx, http.MethodPost, path, body)
	if err != nil {
		return err
	}
	if a.Status != http.StatusOK {
		return &openai.StatusError{Method: http.MethodPost, URL: path, Status: a.Status, Body: string(a.Body[:min(len(a.Body), openai.MaxQuote)])}
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(a.Body, answer)
}

var queries = regexp.MustCompile(`(?m)^vllm:prefix_cache_queries_total\{.*\} ([0-9.e+]+)$`)

// statistics waits until a metric that a frontend reads out of the engine's statistics has moved.
func (p *pair) statistics(ctx context.Context) error {
	for {
		a, err := p.client.Send(ctx, http.MethodGet, "/metrics", nil)
		if err != nil {
			return err
		}
		if found := queries.FindSubmatch(a.Body); found != nil {
			if n, err := strconv.ParseFloat(string(found[1]), 64); err == nil && n > 0 {
				return nil
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return errors.New("vllm:prefix_cache_queries_total stays 0")
		}
	}
}

// failed is what [Cell.Reason] and [Cell.Field] are made of: an error of vllm-rs about a message that it cannot decode.
var failed = regexp.MustCompile(`decode failed for \S*::(\w+): (.*?)(?:; value fallback|\n|$)`)

// explain puts down why a pair fails, in the words of the frontend where it says that it cannot decode a message, and names the
// fields that are the cause by the wire profiles of both lines.
func (p *pair) explain(cell *Cell, f, e *protocol.Profile, err error) {
	found := failed.FindStringSubmatch(p.server.Tail())
	if found == nil {
		found = failed.FindStringSubmatch(err.Error())
	}
	if found == nil {
		text := err.Error()
		var status *openai.StatusError
		var body struct {
			Error struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		if errors.As(err, &status) && json.Unmarshal([]byte(status.Body), &body) == nil && body.Error.Message != "" {
			text = fmt.Sprintf("status %d: %s", status.Status, body.Error.Message)
		}
		if cell.Verdict == DoesNotStart && p.python {
			lines := strings.Split(strings.TrimSpace(p.server.Tail()), "\n")
			text = lines[len(lines)-1] // the exception
			if m := missing.FindStringSubmatch(text); m != nil {
				cell.Fields = []string{"EngineCoreReadyResponse." + m[1]} // the one message of the start that has keys
			}
		}
		text, _, _ = strings.Cut(text, "\n")
		cell.Reason = safetext.Line(offset.ReplaceAllString(text, ""))
		return
	}
	cell.Reason = safetext.Line(found[1] + ": " + found[2])
	cell.Fields = causes(f, e, found[1], found[2])
}

var (
	offset  = regexp.MustCompile(` \(byte \d+\)$`) // differs from one run to the next, as names of requests do
	missing = regexp.MustCompile("missing (?:required )?field `(\\w+)`")
	longer  = regexp.MustCompile(`incorrect length, expected (\d+)`)
)

// causes are the fields of the engine's messages, "Struct.field", that a frontend cannot decode: the one that it misses, or of each struct in
// the message whose values are known by position, the first one that is not where the frontend expects it.
func causes(frontend, engine *protocol.Profile, root, failure string) (fields []string) {
	if m := missing.FindStringSubmatch(failure); m != nil {
		return []string{root + "." + m[1]}
	}
	length := longer.FindStringSubmatch(failure)
	for _, name := range structsOf(engine, root) {
		known, sent := frontend.Structs[name].Fields, engine.Structs[name].Fields
		if engine.Structs[name].Encoding != "array" || length != nil && length[1] != strconv.Itoa(len(known)) {
			continue
		}
		for i, f := range sent {
			if i < len(known) && known[i].Name != f.Name || i == len(known) && length != nil {
				fields = append(fields, name+"."+f.Name)
				break
			}
		}
	}
	return fields
}

// structsOf are a struct and those that its fields may hold, by name.
func structsOf(p *protocol.Profile, root string) []string {
	all := []string{root}
	for i := 0; i < len(all); i++ {
		for _, f := range p.Structs[all[i]].Fields {
			for _, word := range protocol.PyWords(f.Type) {
				if _, is := p.Structs[word]; is && !slices.Contains(all, word) {
					all = append(all, word)
				}
			}
		}
	}
	return all
}
