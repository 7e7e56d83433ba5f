package drift

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A Check looks at one release in layers.
type Check struct {
	Subject
	// Layers are those that are wanted; the others are not looked at.
	Layers []LayerName
	// Cache is the folder for what is taken out of the wheel.
	Cache string
	// Frontend gets the vllm-rs of the release; the default takes it out of the wheel.
	Frontend func(context.Context) (Frontend, error)
	// Extract reads the sources of the release; the default reads those in the wheel, if there is one.
	Extract func(context.Context) (extract.Result, error)
	// Live is how frontends are put before the player; its Line and Binary are filled in.
	Live Live
	// Engines finds the engine of the release, and VCR is the path of vllm-vcr, which records it.
	Engines Engines
	VCR     string
	// BootTimeout is how long the engine may take until it serves; default that of a capture.
	BootTimeout time.Duration
	// Step gets what is being done where that takes more than seconds, from several goroutines; may be nil.
	Step func(layer LayerName, step string)
}

// A Result is what a check came to.
type Result struct {
	Outcome
	Layers   []Layer // every one there is, in the order of [Layers]
	Frontend Frontend
	Profile  *protocol.Profile // as the sources of the release have it, as far as they could be read; may be nil
	// Adoption is whether a player that is taught that profile serves the release's frontend: nil if the release
	// has a line. It is not part of the verdict.
	Adoption *Layer
}

// Run looks at all layers that are wanted. What it cannot look at keeps it from no other layer.
func (c Check) Run(ctx context.Context) Result {
	log := c.Live.Log
	if c.Frontend == nil {
		c.Frontend = func(ctx context.Context) (Frontend, error) {
			if c.Local.Binary != "" {
				return c.Local, nil
			}
			return Fetch(ctx, c.Source, c.Cache, log)
		}
	}
	if hasWheel := c.Source.Path != "" || c.Source.Index != nil; c.Extract == nil && hasWheel {
		request := extract.Request{Name: c.Source.Path}
		if request.Name == "" {
			request.Wheel, request.Index = &c.Source.File, c.Source.Index.URL
		}
		c.Extract = func(ctx context.Context) (extract.Result, error) { return extract.Read(ctx, request, log) }
	}
	r := &running{Check: c, layers: map[LayerName]Layer{}}
	r.Live.Line = c.Line.Name
	// The sources take the network, and the frontend a processor.
	var both sync.WaitGroup
	both.Go(func() { r.layer(ctx, StaticLayer, r.static) })
	both.Go(func() {
		r.fetch(ctx)
		r.layer(ctx, LiveLayer, r.live)
		r.layer(ctx, GoldensLayer, r.goldens)
		r.layer(ctx, BuiltinLayer, r.builtin)
	})
	both.Wait()
	r.adopt(ctx)
	both.Go(func() { r.layer(ctx, EngineLayer, r.engine) })
	both.Go(func() { r.layer(ctx, PythonLayer, r.python) })
	both.Wait()
	result := Result{Frontend: r.frontend, Profile: r.profile, Adoption: r.adoption}
	for _, name := range Layers() {
		result.Layers = append(result.Layers, r.layers[name])
	}
	result.Outcome = Judge(result.Layers)
	return result
}

// running is a check that is being made.
type running struct {
	Check

	mu       sync.Mutex
	layers   map[LayerName]Layer
	profile  *protocol.Profile // as far as it could be read
	whole    bool              // all of it could
	frontend Frontend
	absent   error // why there is no frontend
	fetching time.Duration
	adoption *Layer
	taught   bool // the process knows the profile
}

// layer looks at one layer, if it is wanted.
func (r *running) layer(ctx context.Context, name LayerName, look func(context.Context) Layer) {
	layer := notLooked(name, "it is not in --layers")
	if slices.Contains(r.Layers, name) {
		start := time.Now()
		layer = look(ctx)
		layer.Took += time.Since(start)
		if slow := name == EngineLayer || name == PythonLayer; slow && layer.Verdict != Skipped {
			r.step(name, fmt.Sprintf("%s after %.1f s: %s", layer.Verdict, layer.Took.Seconds(), layer.Reason))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.layers[name] = layer
}

func (r *running) step(layer LayerName, step string) {
	if r.Step != nil {
		r.Step(layer, step)
	}
}

// fetch gets the frontend, if a layer is wanted that runs it.
func (r *running) fetch(ctx context.Context) {
	if !slices.ContainsFunc(r.Layers, func(l LayerName) bool { return l == LiveLayer || l == GoldensLayer || l == BuiltinLayer }) {
		r.absent = errors.New("it was not fetched")
		return
	}
	start := time.Now()
	r.frontend, r.absent = r.Frontend(ctx)
	r.fetching = time.Since(start)
	if r.absent == nil {
		r.Live.Binary, r.Engines.Frontend = r.frontend.Binary, r.frontend.Binary
	}
}

const noSources = "a frontend alone has no sources: name a release or a wheel"

func (r *running) static(ctx context.Context) Layer {
	if r.Extract == nil {
		return notLooked(StaticLayer, noSources)
	}
	line := r.Line
	if own, ok := r.Live.Matrix.Lookup(r.Build.Version.Tag()); ok && protocol.HasProfile(own.Tag) {
		line = own // even one without goldens
	}
	layer, got := compareSources(ctx, line, r.Extract)
	r.profile, r.whole = got.Profile, len(got.Gaps) == 0
	if line.Name != r.Build.Line() && line.Name != compat.RC {
		layer.Notes = append(layer.Notes, fmt.Sprintf("%s is not a line of %s: vllm-vcr drift adopt %s", r.Build.Line(),
			r.Live.Matrix.File, r.Build))
	}
	return layer
}

func (r *running) live(ctx context.Context) Layer {
	switch {
	case errors.Is(r.absent, pinned.ErrUnverified):
		return notLooked(LiveLayer, "%v", r.absent)
	case r.absent != nil:
		return Unjudged(LiveLayer, r.absent)
	}
	layer := r.Live.Run(ctx)
	layer.Took, layer.Downloaded = r.fetching, r.frontend.Downloaded
	return layer
}

func (r *running) goldens(ctx context.Context) Layer {
	r.mu.Lock() // static runs at the same time
	live, ok := r.layers[LiveLayer]
	r.mu.Unlock()
	switch {
	case r.absent != nil:
		return notLooked(GoldensLayer, "there is no frontend to replay them behind")
	case !ok:
		return notLooked(GoldensLayer, "live was not run")
	case live.Verdict == Skipped:
		if err := Runs(ctx, r.Live.Binary); err != nil {
			return Unjudged(GoldensLayer, err)
		}
	}
	return r.Live.Replay(ctx, live)
}

// adopt teaches the process the line of a release that has none, and looks whether its frontend is served then.
func (r *running) adopt(ctx context.Context) {
	_, known := r.Live.Matrix.Lookup(r.Build.Version.Tag())
	if known || r.profile == nil || !r.whole || r.absent != nil || !slices.Contains(r.Layers, LiveLayer) {
		return
	}
	layer := r.Live.Taught(ctx, r.profile)
	r.adoption, r.taught = &layer, layer.Verdict != Unknown
}
