package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
)

// replayFlags are the flags of capture render --offline-replay.
type replayFlags struct {
	golden, frontend string
	manifest         string
	image, vllmImage string
	store            storeFlags // only the bucket, and how to reach it
}

func (f *replayFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.golden, "golden", "", "golden that is replayed, LINE/ID")
	flags.StringVar(&f.frontend, "frontend", "", "frontend that serves it: rust (vllm-rs, the default) or python (vllm serve)")
	flags.StringVar(&f.manifest, "manifest", "", "registry of goldens (default $CONFORMANCE_MANIFEST, ./"+vcr.ManifestPath+", else the one in the binary)")
	flags.StringVar(&f.image, "image", "", "image of vllm-vcr for the replay, by digest (default the line's tap_image)")
	flags.StringVar(&f.vllmImage, "vllm-image", "", "image of vLLM for the replay's frontend, by digest; python needs one for the CPU (default that of the line)")
	flags.StringVar(&f.store.bucket, "bucket", "", "bucket that the golden is in, s3://name/prefix or https://host/path (default $CONFORMANCE_BUCKET)")
	f.store.s3.addFlags(flags)
}

// renderReplay are the objects that serve a golden.
func (a *app) renderReplay(f renderFlags) ([]any, error) {
	kind, err := chooseOne("--frontend", deploy.FrontendKind(cmp.Or(f.replay.frontend, string(deploy.Rust))), deploy.FrontendKinds()...)
	if err != nil {
		return nil, err
	}
	registered, err := a.registeredGolden(f)
	if err != nil {
		return nil, err
	}
	source, err := f.replay.source(a, registered)
	if err != nil {
		return nil, err
	}
	targets, err := f.targets.resolve(a, []string{f.replay.golden})
	if err != nil {
		return nil, err
	}
	t := targets[0]
	t.Images.Tap = cmp.Or(f.replay.image, t.Images.Tap)
	if f.replay.vllmImage != "" {
		t.Images.Engine, t.Images.Frontend = f.replay.vllmImage, ""
	}
	objects, err := deploy.Replay{
		Target: t, Frontend: kind, Source: source,
		Namespace: f.namespace, TokenSecret: f.jobs.run.TokenSecret, ModelCache: f.jobs.run.ModelCache,
	}.Objects()
	if err != nil {
		return nil, fmt.Errorf("%w; --image and --vllm-image give images", err)
	}
	return objects, nil
}

// registeredGolden is the golden that is named, which must be one that play takes.
func (a *app) registeredGolden(f renderFlags) (manifest.Golden, error) {
	line, id, ok := strings.Cut(f.replay.golden, "/")
	if !ok || strings.ContainsAny(f.replay.golden, "*@") {
		return manifest.Golden{}, fmt.Errorf("--golden %q: want LINE/ID of one", f.replay.golden)
	}
	_, registry, err := a.load(inputs{compat: f.targets.compat, manifest: a.orEnv(f.replay.manifest, "CONFORMANCE_MANIFEST")})
	if err != nil {
		return manifest.Golden{}, err
	}
	var names []string
	for _, g := range registry.Goldens {
		if g.Line != line || g.ID != id {
			names = append(names, g.Line+"/"+g.ID)
			continue
		}
		if g.Role == manifest.Wire {
			return g, fmt.Errorf("--golden %s: it has raw frames, which no frontend can be served with: name one of tokens", f.replay.golden)
		}
		return g, nil
	}
	near := ""
	if name, ok := tomlfile.Nearest(f.replay.golden, names); ok {
		near = fmt.Sprintf("; did you mean %s?", name)
	}
	return manifest.Golden{}, fmt.Errorf("--golden %s: %s has no such golden%s", f.replay.golden, registry.File, near)
}

// source are the flags by which the pod finds the golden. It has no files but those in the binary.
func (f *replayFlags) source(a *app, g manifest.Golden) ([]string, error) {
	f.store.maxSize = golden.DefaultMaxSize
	if err := f.store.resolve(a, new(inputs)); err != nil {
		return nil, err
	}
	_, err := fs.Stat(vcr.Files, path.Join(vcr.GoldensPath, g.BucketPath))
	if f.store.bucket == "" && err != nil && !strings.Contains(g.BucketPath, "://") {
		return nil, errors.New("golden " + g.Line + "/" + g.ID + " is not in the binary, and so not in its image: say with --bucket where it is")
	}
	return f.store.repeat(), nil
}
