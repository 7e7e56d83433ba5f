package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/program"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/helper"
	"github.com/vllm-vcr/conformance/internal/capture/kube"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/forge/oidc"
)

// Commands about a cluster are read here and carried out by vllm-vcr-cluster, see package helper.

// clusterOptions say which cluster it is, and as whom to talk to it.
type clusterOptions struct{ helper.Cluster }

func (opts *clusterOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&opts.Kubeconfig, "kubeconfig", "",
		"kubeconfig of the cluster (default $KUBECONFIG, ~/.kube/config, or the pod's own)")
	flags.StringVar(&opts.Context, "context", "", "context of the kubeconfig (default its current one)")
	flags.StringVar(&opts.Namespace, "namespace", deploy.DefaultNamespace, "namespace of the jobs, whatever that of the context is")
	flags.StringVar(&opts.Server, "server", "", "URL of the API server, in place of a kubeconfig; "+
		"who asks is then the identity that GitHub gives to the job")
	flags.StringVar(&opts.CAFile, "certificate-authority", "",
		"file with the authority of the --server's certificate (default the system's)")
	flags.StringVar(&opts.TokenAudience, "audience", "", "whom GitHub's token is for, as the --server demands")
}

// remoteOptions are those of the commands that run Jobs in a cluster.
type remoteOptions struct {
	targets   targetOptions
	cluster   clusterOptions
	jobs      jobOptions
	runID     string
	admission time.Duration
}

func (opts *remoteOptions) addFlags(flags *pflag.FlagSet) {
	opts.targets.addFlags(flags)
	opts.cluster.addFlags(flags)
	opts.jobs.addFlags(flags)
	flags.StringVar(&opts.runID, "run-id", "", "name of the run, at most 20 letters, digits and hyphens (default $GITHUB_RUN_ID, else a new one)")
}

func (opts *remoteOptions) addAdmissionFlag(flags *pflag.FlagSet) {
	flags.DurationVar(&opts.admission, "admission-timeout", 6*time.Hour, "how long a Job may wait for quota")
}

// request is what the helper is asked, about targets of which there must be some: all of all lines is never meant.
func (opts *remoteOptions) request(env *environment, command helper.Command, args []string) (helper.Request, error) {
	targets, err := opts.targets.choose(env, args)
	if err != nil {
		return helper.Request{}, err
	}
	if command != helper.Run { // which may be on this machine
		if targets, err = forCluster(env, targets); err != nil {
			return helper.Request{}, err
		}
	}
	id := cmp.Or(opts.runID, env.getenv("GITHUB_RUN_ID"))
	if id == "" {
		var random [3]byte
		_, _ = rand.Read(random[:]) // never fails
		id = time.Now().UTC().Format("20060102") + "-" + hex.EncodeToString(random[:])
	}
	return helper.Request{
		Command: command, Cluster: opts.cluster.Cluster, RunID: id, Targets: targets, Jobs: opts.jobs.run, Admission: opts.admission,
	}, nil
}

// forCluster leaves out what only this machine can capture, unless nothing else is asked for.
func forCluster(env *environment, targets []target.Target) ([]target.Target, error) {
	rest := slices.DeleteFunc(slices.Clone(targets), func(t target.Target) bool { return t.Session != nil })
	left := len(targets) - len(rest)
	if left > 0 && len(rest) == 0 {
		return nil, fmt.Errorf("%s is a session, whose models and frontend are made on this machine: capture it with --local", targets[0].Name())
	}
	if left > 0 {
		env.log.Warn("sessions are left out: capture them with capture run --local", "sessions", left)
	}
	return rest, nil
}

// callHelper has vllm-vcr-cluster carry out a request. On Unix it returns only if that cannot be started.
func callHelper(ctx context.Context, env *environment, request helper.Request) error {
	path, err := program.Find(ctx, helper.Program, "captures in a cluster need", buildVersion())
	if err != nil {
		return infra(err)
	}
	request.Verbose, request.LogFormat = env.verbose, env.logFormat
	if request.Program, err = os.Executable(); err != nil {
		return infra(err)
	}
	code, err := helper.Call(path, env.args, request)
	switch {
	case err != nil:
		return infra(fmt.Errorf("start %s: %w", path, err))
	case code != conformance.ExitOK:
		return exitError{code, errReported}
	}
	return nil
}

func newCaptureSubmitCommand(env *environment) *cobra.Command {
	var opts remoteOptions
	cmd := &cobra.Command{
		Use:   "submit TARGET…",
		Short: "Submit captures to a cluster, and leave them there",
		Long: "Submit a Job for each target, as `capture render` prints it. Who takes them up within their --fetch-timeout is\n" +
			"`capture run` or `capture fetch` with the same --run-id.",
		Example: "  vllm-vcr capture submit '0.33/*' --run-id 17",
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := opts.request(env, helper.Submit, args)
			if err != nil {
				return err
			}
			return callHelper(cmd.Context(), env, request)
		},
	}
	opts.addFlags(cmd.Flags())
	return cmd
}

func newCaptureFetchCommand(env *environment) *cobra.Command {
	var opts remoteOptions
	var work string
	cmd := &cobra.Command{
		Use:   "fetch TARGET…",
		Short: "Bring the recordings of submitted captures home",
		Long: "Wait until the Jobs of a run are ready, fetch their files into RUN/LINE/ID below --work, and delete the Jobs. What\n" +
			"does not come home stays in the cluster, for another attempt. Nothing is registered: `capture run` with the same\n" +
			"--run-id and --work does that, without capturing anything again.",
		Example: "  vllm-vcr capture fetch '0.33/*' --run-id 17",
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.runID == "" && env.getenv("GITHUB_RUN_ID") == "" {
				return errors.New("--run-id is not given: `vllm-vcr capture status` shows what there is")
			}
			request, err := opts.request(env, helper.Fetch, args)
			if err != nil {
				return err
			}
			request.Work = work
			return callHelper(cmd.Context(), env, request)
		},
	}
	opts.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&work, "work", workPath, "where recordings come to, in a folder RUN/LINE/ID each")
	opts.addAdmissionFlag(cmd.Flags())
	return cmd
}

// jobsOptions choose Jobs that are in a cluster.
type jobsOptions struct {
	cluster clusterOptions
	runID   string
}

func (opts *jobsOptions) request(command helper.Command, args []string) (helper.Request, error) {
	patterns, err := readPatterns("target", args)
	if err != nil {
		return helper.Request{}, err
	}
	for i, text := range patterns {
		patterns[i] = targetPattern(text)
	}
	return helper.Request{Command: command, Cluster: opts.cluster.Cluster, RunID: opts.runID, Patterns: patterns}, nil
}

func newCaptureStatusCommand(env *environment) *cobra.Command {
	var opts jobsOptions
	cmd := &cobra.Command{
		Use:   "status [TARGET…]",
		Short: "Print the captures that are in a cluster",
		Long:  "Print the Jobs of captures as a table: target, run, phase and since when, node, and why they are no further.",
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := opts.request(helper.Status, args)
			if err != nil {
				return err
			}
			return callHelper(cmd.Context(), env, request)
		},
	}
	opts.cluster.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&opts.runID, "run-id", "", "only those of this run")
	return cmd
}

func newCaptureCleanCommand(env *environment) *cobra.Command {
	var opts jobsOptions
	var all bool
	cmd := &cobra.Command{
		Use:   "clean [TARGET…]",
		Short: "Delete captures from a cluster",
		Long: "Delete the Jobs of captures, and wait until their pods are gone: those of targets, of a run, or both. What nobody\n" +
			"fetched is lost. Jobs that are not this program's are never touched.",
		Example: "  vllm-vcr capture clean --run-id 17",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && opts.runID == "" && !all {
				return errors.New("nothing is given: want targets, --run-id or --all")
			}
			request, err := opts.request(helper.Clean, args)
			if err != nil {
				return err
			}
			return callHelper(cmd.Context(), env, request)
		},
	}
	opts.cluster.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&opts.runID, "run-id", "", "those of this run")
	cmd.Flags().BoolVar(&all, "all", false, "all of the namespace, of whatever run")
	return cmd
}

func newCaptureCredentialCommand(env *environment) *cobra.Command {
	var audience string
	cmd := &cobra.Command{
		Use:   "credential",
		Short: "Print the identity that GitHub gives to this job as a credential for a cluster",
		Long: "Ask GitHub for the identity token of this job and print it as an ExecCredential, as a kubeconfig's exec\n" +
			"plugin. With --server, the other commands call it by themselves. The token is a secret for the minutes that\n" +
			"it is valid: do not call this in a step whose log it would go to.\n\n" +
			"The job needs the permission id-token: write.",
		Example: "  kubectl config set-credentials github --exec-api-version client.authentication.k8s.io/v1 \\\n" +
			"    --exec-interactive-mode Never --exec-command vllm-vcr \\\n" +
			"    --exec-arg capture --exec-arg credential --exec-arg --audience=my-cluster",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			job := oidc.Job{
				URL: env.getenv("ACTIONS_ID_TOKEN_REQUEST_URL"), Token: env.getenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN"), Log: env.log,
			}
			if audience == "" {
				return errors.New("--audience: say for whom the token is, as the API server's authentication configuration does")
			}
			credential, err := kube.Credential(cmd.Context(), job, audience)
			if err != nil {
				return infra(err)
			}
			_, err = fmt.Fprintf(env.stdout, "%s\n", credential)
			return err
		},
	}
	cmd.Flags().StringVar(&audience, "audience", "", "whom the token is for")
	return cmd
}
