package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/chart"
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
	targets          targetOptions
	jobs             jobOptions
	clusterQueue     string
	runID, namespace string
	format           chart.Format
	setup            bool
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
			return chart.Write(env.stdout, opts.format, objects...)
		},
	}
	flags := cmd.Flags()
	opts.targets.addFlags(flags)
	flags.StringVar(&opts.clusterQueue, "cluster-queue", "", "`FILE` of the ClusterQueue; each Job must fit into its quota (default the one of "+vcr.DeployPath+"/ in the binary)")
	flags.StringVar(&opts.runID, "run-id", "preview", "`ID` of the run, which is part of the names of its Jobs")
	flags.StringVar(&opts.namespace, "namespace", deploy.DefaultNamespace, "`NAMESPACE` of the objects")
	formatFlag(flags, (*string)(&opts.format), chart.YAML, "output format: yaml or json", chart.Formats()...)
	flags.BoolVar(&opts.setup, "setup", false, "print the objects that the cluster needs before the first capture")
	grouped(flags, "Output")
	opts.jobs.addFlags(flags)
	common(flags, "line", "run-id", "namespace", "setup", "format")
	return cmd
}

func renderObjects(env *environment, opts *renderOptions, args []string) ([]any, error) {
	if opts.setup {
		if len(args) > 0 {
			return nil, fmt.Errorf("target %q: --setup takes no targets", args[0])
		}
		return deploy.Setup(vcr.Files, vcr.DeployPath)
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
