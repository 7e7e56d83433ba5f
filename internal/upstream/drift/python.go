package drift

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/frontends/pyclient"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/player"
)

// Python is the layer of a release's own Python client, which is run on the packages of an engine.
type Python struct {
	Build   compat.Build
	Line    compat.Line   // whose player it gets
	Source  pinned.Source // of its wheel
	Cache   string        // folder for what is taken out of the wheel
	Model   string
	Engines Engines
	Log     *slog.Logger
	Step    func(step string) // gets what is being done; may be nil
}

// What the player registers with, and the number of tokens that it draws from.
const (
	pythonModelLen  = 2048
	pythonBlocks    = 101
	pythonBlockSize = 32
	pythonVocab     = 2048
)

// Run looks for an environment and, if there is one, at the client.
func (p Python) Run(ctx context.Context) Layer {
	environment, err := p.environment(ctx)
	if errors.Is(err, errAbsent) {
		return notLooked(PythonLayer, "%v", err)
	}
	if err != nil {
		return Unjudged(PythonLayer, err)
	}
	if p.Step != nil {
		p.Step("start its client on the packages of " + environment.Release)
	}
	wheel := pyclient.Wheel{Open: p.Source.Open}
	wheel.Check, err = p.Source.Python(ctx, p.Log)
	if errors.Is(err, pinned.ErrUnverified) {
		return notLooked(PythonLayer, "%v", err)
	}
	if err == nil {
		wheel.Key, wheel.Sure, err = p.Source.Key()
	}
	if err != nil {
		return Unjudged(PythonLayer, err)
	}
	tree, err := pyclient.Sources(ctx, wheel, p.Cache, p.Log)
	if err != nil {
		return Unjudged(PythonLayer, err)
	}
	layer := p.drive(ctx, environment, tree)
	layer.Downloaded = tree.Downloaded
	return layer
}

// drive runs the client. An environment of another release may lack what this one imports: that says nothing about the
// wire, and is not looked at.
func (p Python) drive(ctx context.Context, environment pyclient.Environment, tree pyclient.Tree) Layer {
	results, err := pyclient.Run(ctx, p.options(environment, tree))
	layer := Layer{Name: PythonLayer, Verdict: None}
	layer.Compared = fmt.Sprintf("its Python client, on the packages of %s, before the player of line %s", environment.Release, p.Line.Name)
	layer.judgeCases(pythonCases(results))
	switch {
	case err == nil && layer.Verdict == None && len(results) == 0:
		layer.Verdict, layer.Vacuous = Unknown, true
	case err == nil || layer.Verdict == Found:
	case environment.Release != p.Build.String():
		layer.Verdict, layer.Reason = Skipped, firstLine(fmt.Sprintf("it does not run on the packages of %s: %v", environment.Release, err))
	default:
		layer.Verdict, layer.Reason = Unknown, firstLine(err.Error())
	}
	return layer
}

// environment returns the one that is to be used, else that of the release, else the nearest.
func (p Python) environment(ctx context.Context) (pyclient.Environment, error) {
	engine, err := p.Engines.find(ctx, p.Build)
	if err == nil || !errors.Is(err, errAbsent) || p.Engines.Mode == EngineNever {
		return pyclient.Environment{Release: engine.Release, Python: engine.Python}, err
	}
	dir, err := local.Folder(p.Engines.Options.Dir)
	if err != nil {
		return pyclient.Environment{}, err
	}
	nearest, err := pyclient.Nearest(dir, p.Build.Version)
	if err != nil {
		err = fmt.Errorf("%w: %w", errAbsent, err)
	}
	return nearest, err
}

// options are for the release's client, and for a player whose every token is known.
func (p Python) options(environment pyclient.Environment, tree pyclient.Tree) pyclient.Options {
	source := player.Random{Seed: 1, Vocab: pythonVocab}
	return pyclient.Options{
		Python: environment.Python, Sources: tree, Model: p.Model, Log: p.Log,
		MaxModelLen: pythonModelLen, NumGPUBlocks: pythonBlocks, BlockSize: pythonBlockSize,
		Says: func(id string) func(int) uint32 {
			script, _ := source.Script(&player.Request{ID: id}) // it refuses nothing
			return script.Fill
		},
		Engine: func(handshake string) (func(context.Context) error, error) {
			engine, err := player.New(player.Options{
				Handshake: handshake, VLLMVersion: p.Line.Tag, Source: source, Vocab: pythonVocab, LoRA: player.LoRAOptions{MaxLoRAs: 1},
				Limits: player.Limits{MaxModelLen: pythonModelLen}, KVCache: player.KVCacheOptions{NumGPUBlocks: pythonBlocks, BlockSize: pythonBlockSize},
			})
			if err != nil {
				return nil, err
			}
			return engine.Run, nil
		},
	}
}

// pythonCases judges the client's cases.
func pythonCases(results []pyclient.Result) []LayerCase {
	verdicts := map[pyclient.Verdict]Verdict{
		pyclient.Passed: None, pyclient.Failed: Found, pyclient.Unjudged: Unknown, pyclient.Skipped: Skipped,
	}
	var all []LayerCase
	for _, r := range results {
		message := firstLine(r.Message)
		if r.Where != "" && r.Message != "" {
			message += " (" + r.Where + ")"
		}
		all = append(all, LayerCase{Name: r.Case, Verdict: verdicts[r.Verdict], Message: message})
	}
	return all
}
