package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/kube"
	"github.com/vllm-vcr/conformance/internal/capture/target"
)

// jobFlags say what the Jobs of a run have in common.
type jobFlags struct{ run deploy.Run }

func (f *jobFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.run.Queue, "queue", deploy.DefaultQueue, "local queue that admits the Jobs")
	flags.DurationVar(&f.run.Start, "start-timeout", time.Hour, "how long the engine may take to serve, model and all")
	flags.DurationVar(&f.run.Load, "load-timeout", time.Hour, "how long the load may take after that")
	flags.DurationVar(&f.run.Fetch, "fetch-timeout", 2*time.Hour, "how long the files wait to be fetched before the pod gives up its GPU")
	flags.StringVar(&f.run.ModelCache, "model-cache", "100Gi", "size of the pod's volume for models of the hub")
	flags.StringVar(&f.run.TokenSecret, "hub-token-secret", "", "secret in the cluster that has the model hub's token, NAME or NAME/KEY (default no token)")
	flags.StringToStringVar(&f.run.NodeSelector, "node-selector", nil, "label that nodes must have, KEY=VALUE; may be repeated")
}

// jobs renders what is submitted for the targets in a namespace.
func (f *jobFlags) jobs(targets []target.Target, id, namespace string) ([]*kube.Job, error) {
	f.run.ID, f.run.Namespace = id, namespace
	return deploy.Jobs(targets, f.run)
}

// quota is that of the file of a cluster queue. A cluster that is there is asked for its own.
func (f *renderFlags) quota() (deploy.Quota, error) {
	if f.clusterQueue == "" {
		objects, err := deploy.Setup(vcr.Files, vcr.DeployPath)
		if err != nil {
			return deploy.Quota{}, err
		}
		return deploy.QuotaOf(objects)
	}
	text, err := os.ReadFile(f.clusterQueue)
	if err != nil {
		return deploy.Quota{}, fmt.Errorf("--cluster-queue: %w", err)
	}
	return deploy.ReadQuota(f.clusterQueue, text)
}

// renderFlags are the flags of capture render.
type renderFlags struct {
	targets              targetFlags
	jobs                 jobFlags
	clusterQueue         string
	runID, namespace     string
	format               string
	setup, offlineReplay bool
	replay               replayFlags
}

func (a *app) captureRenderCommand() *cobra.Command {
	var f renderFlags
	cmd := &cobra.Command{
		Use:   "render [TARGET…]",
		Short: "Print what a capture is in a Kubernetes cluster",
		Long: "Print the Jobs that submit sends for targets, such as 0.33/multiturn-s7 or '0.33/*', byte for byte. A Job is\n" +
			"suspended until its queue admits it; its pod has engine, tap and frontend beside the load generator.\n\n" +
			"With --setup print what the cluster needs before the first of them: namespace, queue and roles, as they are in\n" +
			"the folder " + vcr.DeployPath + ". With --offline-replay print a Deployment and a Service that serve a golden without an engine:\n" +
			"a real frontend with the player behind it.\n\n" +
			"Nothing is sent anywhere.",
		Example: "  vllm-vcr capture render --setup | kubectl apply -f -\n" +
			"  vllm-vcr capture render 0.33/qwen3-8b-multiturn-s7 --run-id 17 | kubectl create -f -\n" +
			"  vllm-vcr capture render --offline-replay --golden 0.33/multiturn-s7 --frontend rust \\\n" +
			"      --image ghcr.io/vllm-vcr/vllm-vcr:1.1.0@sha256:… --vllm-image docker.io/vllm/vllm-openai:v0.33.0@sha256:…",
		RunE: func(_ *cobra.Command, args []string) error { return a.captureRender(f, args) },
	}
	flags := cmd.Flags()
	f.targets.addFlags(flags)
	f.jobs.addFlags(flags)
	f.replay.addFlags(flags)
	flags.StringVar(&f.clusterQueue, "cluster-queue", "", "file of the ClusterQueue, whose quota the Jobs must fit into (default that of "+vcr.DeployPath+"/ in the binary)")
	flags.StringVar(&f.runID, "run-id", "preview", "name of the run, in the names of its Jobs")
	flags.StringVar(&f.namespace, "namespace", deploy.DefaultNamespace, "namespace of the objects")
	flags.StringVar(&f.format, "format", string(deploy.YAML), "yaml or json")
	flags.BoolVar(&f.setup, "setup", false, "print what the cluster needs before the first capture")
	flags.BoolVar(&f.offlineReplay, "offline-replay", false, "print the Deployment that serves a golden without an engine")
	return cmd
}

func (a *app) captureRender(f renderFlags, args []string) error {
	format, err := chooseOne("--format", deploy.Format(f.format), deploy.Formats()...)
	if err != nil {
		return err
	}
	objects, err := a.renderObjects(f, args)
	if err != nil {
		return err
	}
	return deploy.Write(a.stdout, format, objects...)
}

func (a *app) renderObjects(f renderFlags, args []string) ([]any, error) {
	switch {
	case f.setup && f.offlineReplay:
		return nil, errors.New("--setup and --offline-replay: want one of the two")
	case f.setup || f.offlineReplay:
		if len(args) > 0 {
			return nil, fmt.Errorf("target %q: --setup and --offline-replay print no Jobs", args[0])
		}
		if f.setup {
			return deploy.Setup(vcr.Files, vcr.DeployPath)
		}
		return a.renderReplay(f)
	}
	if f.replay.golden != "" || f.replay.frontend != "" {
		return nil, errors.New("--golden and --frontend are of --offline-replay, which is not given")
	}
	targets, err := f.targets.resolve(a, args)
	if err != nil {
		return nil, err
	}
	quota, err := f.quota()
	if err != nil {
		return nil, err
	}
	jobs, err := f.jobs.jobs(targets, f.runID, f.namespace)
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
