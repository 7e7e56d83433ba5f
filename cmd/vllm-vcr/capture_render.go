package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/manifest"
)

// jobOptions are what the Jobs of a run have in common.
type jobOptions struct{ run deploy.Run }

func (opts *jobOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&opts.run.Queue, "queue", deploy.DefaultQueue, "`NAME` of the LocalQueue that admits the Jobs")
	flags.DurationVar(&opts.run.Start, "start-timeout", time.Hour, "maximum time for the engine to start, with the download of the model (default 1h; 10m with --local of capture run)")
	flags.DurationVar(&opts.run.Load, "load-timeout", time.Hour, "maximum time to send all requests after that")
	flags.DurationVar(&opts.run.Fetch, "fetch-timeout", 2*time.Hour, "maximum time that the pod keeps its GPU until its files are fetched")
	above0(flags, "start-timeout")
	flags.StringVar(&opts.run.ModelCache, "model-cache", "100Gi", "`SIZE` of the pod's volume for models of the Hugging Face Hub")
	flags.StringVar(&opts.run.TokenSecret, "hub-token-secret", "", "`NAME[/KEY]` of the Secret in the cluster with the token of the Hugging Face Hub (default no token)")
	flags.StringToStringVar(&opts.run.NodeSelector, "node-selector", nil, "label that nodes must have, `KEY=VALUE`; may be repeated")
	grouped(flags, "Jobs")
}

// quota is that of the file of a cluster queue. A cluster that is there is asked for its own.
func (opts *renderOptions) quota() (deploy.Quota, error) {
	if opts.clusterQueue == "" {
		objects, err := deploy.Setup(vcr.Files, vcr.DeployPath)
		if err != nil {
			return deploy.Quota{}, err
		}
		return deploy.QuotaOf(objects)
	}
	text, err := os.ReadFile(opts.clusterQueue)
	if err != nil {
		return deploy.Quota{}, fmt.Errorf("--cluster-queue: %w", err)
	}
	return deploy.ReadQuota(opts.clusterQueue, text)
}

// renderOptions are the flags of capture render.
type renderOptions struct {
	targets              targetOptions
	jobs                 jobOptions
	clusterQueue         string
	runID, namespace     string
	format               deploy.Format
	setup, offlineReplay bool
	replay               replayOptions
}

func newCaptureRenderCommand(env *environment) *cobra.Command {
	var opts renderOptions
	cmd := &cobra.Command{
		Use:   "render [TARGET…]",
		Short: "Print the Kubernetes objects of a capture",
		RunE: func(_ *cobra.Command, args []string) error {
			objects, err := renderObjects(env, &opts, args)
			if err != nil {
				return err
			}
			return deploy.Write(env.stdout, opts.format, objects...)
		},
	}
	flags := cmd.Flags()
	opts.targets.addFlags(flags)
	flags.StringVar(&opts.clusterQueue, "cluster-queue", "", "`FILE` of the ClusterQueue; each Job must fit into its quota (default the one of "+vcr.DeployPath+"/ in the binary)")
	flags.StringVar(&opts.runID, "run-id", "preview", "`ID` of the run, which is part of the names of its Jobs")
	flags.StringVar(&opts.namespace, "namespace", deploy.DefaultNamespace, "`NAMESPACE` of the objects")
	oneOf(flags, (*string)(&opts.format), "format", deploy.YAML, "output format: yaml or json", deploy.Formats()...)
	flags.BoolVar(&opts.setup, "setup", false, "print the objects that the cluster needs before the first capture")
	flags.BoolVar(&opts.offlineReplay, "offline-replay", false, "print the Deployment and the Service that serve --golden without an engine")
	exclusive(flags, "setup", "offline-replay")
	grouped(flags, "Output")
	opts.jobs.addFlags(flags)
	opts.replay.addFlags(flags)
	common(flags, "line", "run-id", "namespace", "setup", "offline-replay", "golden", "frontend", "image", "vllm-image", "format")
	return cmd
}

func renderObjects(env *environment, opts *renderOptions, args []string) ([]any, error) {
	switch {
	case opts.setup || opts.offlineReplay:
		if len(args) > 0 {
			return nil, fmt.Errorf("target %q: --setup and --offline-replay take no targets", args[0])
		}
		if opts.setup {
			return deploy.Setup(vcr.Files, vcr.DeployPath)
		}
		return renderReplay(env, opts)
	}
	targets, err := opts.targets.resolve(env, args)
	if err != nil {
		return nil, err
	}
	if targets, err = forCluster(env, targets); err != nil {
		return nil, err
	}
	quota, err := opts.quota()
	if err != nil {
		return nil, err
	}
	opts.jobs.run.ID, opts.jobs.run.Namespace = opts.runID, opts.namespace
	jobs, err := deploy.Jobs(targets, opts.jobs.run)
	if err != nil {
		return nil, err
	}
	if err := deploy.Check(jobs, quota); err != nil {
		return nil, err
	}
	objects := make([]any, len(jobs))
	for i, job := range jobs {
		objects[i] = job
	}
	return objects, nil
}

// replayOptions are the flags of capture render --offline-replay.
type replayOptions struct {
	golden           string
	frontend         deploy.FrontendKind
	manifest         string
	image, vllmImage string
	store            storeOptions // only the bucket, and how to reach it
	given            *pflag.FlagSet
}

func (opts *replayOptions) addFlags(flags *pflag.FlagSet) {
	opts.given = flags
	flags.StringVar(&opts.golden, "golden", "", "golden to serve, `LINE/ID`")
	oneOf(flags, (*string)(&opts.frontend), "frontend", deploy.Rust, "`FRONTEND` that serves it: rust (vllm-rs) or python (vllm serve)", deploy.FrontendKinds()...)
	needs(flags, "golden", "offline-replay")
	needs(flags, "frontend", "offline-replay")
	flags.StringVar(&opts.manifest, "manifest", "", manifestUsage)
	flags.StringVar(&opts.image, "image", "", "`IMAGE` of vllm-vcr with its digest (default tap_image of the line)")
	flags.StringVar(&opts.vllmImage, "vllm-image", "", "`IMAGE` of vLLM for the frontend, with its digest; python needs an image for CPUs (default that of the line)")
	flags.StringVar(&opts.store.Bucket, "bucket", "", "bucket of the golden, `s3://NAME/PREFIX` or https://HOST/PATH (default $CONFORMANCE_BUCKET)")
	grouped(flags, "For --offline-replay")
	opts.store.s3.addFlags(flags)
}

// renderReplay are the objects that serve a golden.
func renderReplay(env *environment, opts *renderOptions) ([]any, error) {
	registered, err := replayedGolden(env, opts)
	if err != nil {
		return nil, err
	}
	source, err := opts.replay.source(env, registered)
	if err != nil {
		return nil, err
	}
	targets, err := opts.targets.resolve(env, []string{opts.replay.golden})
	if err != nil {
		return nil, err
	}
	t := targets[0]
	t.Images.Tap = cmp.Or(opts.replay.image, t.Images.Tap)
	if opts.replay.vllmImage != "" {
		t.Images.Engine, t.Images.Frontend = opts.replay.vllmImage, ""
	}
	objects, err := deploy.Replay{
		Target: t, Frontend: opts.replay.frontend, Source: source,
		Namespace: opts.namespace, TokenSecret: opts.jobs.run.TokenSecret, ModelCache: opts.jobs.run.ModelCache,
	}.Objects()
	if err != nil {
		return nil, fmt.Errorf("%w: give the images with --image and --vllm-image", err)
	}
	return objects, nil
}

// replayedGolden is the golden that is named, which must be one that play takes.
func replayedGolden(env *environment, opts *renderOptions) (manifest.Golden, error) {
	_, _, ok := strings.Cut(opts.replay.golden, "/")
	if !ok || strings.ContainsAny(opts.replay.golden, "*@") {
		return manifest.Golden{}, fmt.Errorf("--golden %q: want LINE/ID of one golden", opts.replay.golden)
	}
	matrix, mf, err := loadInputs(env, &inputs{compat: opts.targets.compat, manifest: cmp.Or(opts.replay.manifest, env.getenv("CONFORMANCE_MANIFEST"))})
	if err != nil {
		return manifest.Golden{}, err
	}
	line, id, _ := strings.Cut(ofLine(opts.replay.golden, matrix), "/")
	var names []string
	for _, g := range mf.Goldens {
		if g.Line != line || g.ID != id {
			names = append(names, g.Line+"/"+g.ID)
			continue
		}
		if g.Role.Raw() {
			return g, fmt.Errorf("--golden %s: it is a frames file, which cannot be served to a frontend: give a golden of role fidelity or schema", opts.replay.golden)
		}
		return g, nil
	}
	return manifest.Golden{}, fmt.Errorf("--golden %s: %s has no such golden%s", opts.replay.golden, mf.File, tomlfile.DidYouMean(opts.replay.golden, names, ""))
}

// source are the flags by which the pod finds the golden. It has no files but those in the binary.
func (opts *replayOptions) source(env *environment, g manifest.Golden) ([]string, error) {
	if err := opts.store.resolve(env, new(inputs)); err != nil {
		return nil, err
	}
	_, err := fs.Stat(vcr.Files, path.Join(vcr.GoldensPath, g.BucketPath))
	if opts.store.Bucket == "" && err != nil && !strings.Contains(g.BucketPath, "://") {
		return nil, errors.New("golden " + g.Line + "/" + g.ID + " is not in the binary and so not in its image: give its place with --bucket")
	}
	return repeated(opts.given, "bucket", "anonymous", "region", "endpoint-url", "path-style"), nil
}
