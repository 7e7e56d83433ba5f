package drift

import (
	"context"
	"errors"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/frontends/pyclient"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/player"
)

// What the player registers with, and the number of tokens that it draws from.
const (
	pythonModelLen  = 2048
	pythonBlocks    = 101
	pythonBlockSize = 32
	pythonVocab     = 2048
)

// python is the layer of a release's own Python client, which is run on the packages of an engine.
func (r *running) python(ctx context.Context) Layer {
	if r.Extract == nil {
		return notLooked(PythonLayer, noSources)
	}
	environment, err := r.pythonEnvironment(ctx)
	if errors.Is(err, errAbsent) {
		return notLooked(PythonLayer, "%v", err)
	}
	if err != nil {
		return Unjudged(PythonLayer, err)
	}
	r.step(PythonLayer, "start its client on the packages of "+environment.Release)
	wheel := pyclient.Wheel{Open: r.Source.Open}
	wheel.Check, err = r.Source.Python(ctx, r.Live.Log)
	if errors.Is(err, pinned.ErrUnverified) {
		return notLooked(PythonLayer, "%v", err)
	}
	if err == nil {
		wheel.Key, wheel.Sure, err = r.Source.Key()
	}
	if err != nil {
		return Unjudged(PythonLayer, err)
	}
	tree, err := pyclient.Sources(ctx, wheel, r.Cache, r.Live.Log)
	if err != nil {
		return Unjudged(PythonLayer, err)
	}
	layer := r.drivePython(ctx, environment, tree)
	layer.Downloaded = tree.Downloaded
	return layer
}

// drivePython runs the client. An environment of another release may lack what this one imports: that says nothing about the
// wire, and is not looked at.
func (r *running) drivePython(ctx context.Context, environment pyclient.Environment, tree pyclient.Tree) Layer {
	results, err := pyclient.Run(ctx, r.pythonOptions(environment, tree))
	layer := Layer{Name: PythonLayer, Verdict: None}
	layer.Compared = fmt.Sprintf("its Python client, on the packages of %s, before the player of line %s", environment.Release, r.Line.Name)
	layer.judgeCases(pythonCases(results))
	switch {
	case err == nil && layer.Verdict == None && len(results) == 0:
		layer.Verdict, layer.Vacuous = Unknown, true
	case err == nil || layer.Verdict == Found:
	case environment.Release != r.Build.String():
		layer.Verdict, layer.Reason = Skipped, firstLine(fmt.Sprintf("it does not run on the packages of %s: %v", environment.Release, err))
	default:
		layer.Verdict, layer.Reason = Unknown, firstLine(err.Error())
	}
	return layer
}

// pythonEnvironment returns the one that is to be used, else that of the release, else the nearest.
func (r *running) pythonEnvironment(ctx context.Context) (pyclient.Environment, error) {
	engine, err := r.Engines.find(ctx, r.Build)
	if err == nil || !errors.Is(err, errAbsent) || r.Engines.Mode == EngineNever {
		return pyclient.Environment{Release: engine.Release, Python: engine.Python}, err
	}
	dir, err := local.Folder(r.Engines.Options.Dir)
	if err != nil {
		return pyclient.Environment{}, err
	}
	nearest, err := pyclient.Nearest(dir, r.Build.Version)
	if err != nil {
		err = fmt.Errorf("%w: %w", errAbsent, err)
	}
	return nearest, err
}

// pythonOptions are for the release's client, and for a player whose every token is known.
func (r *running) pythonOptions(environment pyclient.Environment, tree pyclient.Tree) pyclient.Options {
	source := player.Random{Seed: 1, Vocab: pythonVocab}
	return pyclient.Options{
		Python: environment.Python, Sources: tree, Model: r.Live.Model, Log: r.Live.Log,
		MaxModelLen: pythonModelLen, NumGPUBlocks: pythonBlocks, BlockSize: pythonBlockSize,
		Says: func(id string) func(int) uint32 {
			script, _ := source.Script(&player.Request{ID: id}) // it refuses nothing
			return script.Fill
		},
		Engine: func(handshake string) (func(context.Context) error, error) {
			engine, err := player.New(player.Options{
				Handshake: handshake, VLLMVersion: r.Line.Tag, Source: source, Vocab: pythonVocab, LoRA: player.LoRAOptions{MaxLoRAs: 1},
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
