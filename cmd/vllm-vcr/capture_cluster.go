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
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/forge/action"
)

// Commands about a cluster are read here and carried out by vllm-vcr-cluster.

// clusterOptions are the flags of a cluster and of the identity that it knows us by.
type clusterOptions struct{ deploy.Cluster }

func (opts *clusterOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&opts.Kubeconfig, "kubeconfig", "",
		"kubeconfig `FILE` of the cluster (default $KUBECONFIG, ~/.kube/config, or the service account of the pod)")
	flags.StringVar(&opts.Context, "context", "", "`CONTEXT` of the kubeconfig (default the current context)")
	flags.StringVar(&opts.Namespace, "namespace", deploy.DefaultNamespace, "`NAMESPACE` of the Jobs; that of the context is not used")
	flags.StringVar(&opts.Server, "server", "", "`URL` of the API server, instead of a kubeconfig; "+
		"the command authenticates with the OIDC identity of the GitHub job")
	flags.StringVar(&opts.CAFile, "certificate-authority", "",
		"`FILE` with the CA certificate of --server (default the CA certificates of the system)")
	flags.StringVar(&opts.TokenAudience, "audience", "", "`AUDIENCE` of the GitHub token, as configured in --server")
	grouped(flags, "Cluster")
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
	opts.addRunFlags(flags)
}

// addRunFlags adds those that do not choose targets.
func (opts *remoteOptions) addRunFlags(flags *pflag.FlagSet) {
	flags.StringVar(&opts.runID, "run-id", "", "`ID` of the run, at most 20 letters, digits and hyphens (default $GITHUB_RUN_ID, else a new one)")
	opts.cluster.addFlags(flags)
	opts.jobs.addFlags(flags)
}

func (opts *remoteOptions) addAdmissionFlag(flags *pflag.FlagSet) {
	flags.DurationVar(&opts.admission, "admission-timeout", 6*time.Hour, "maximum time that a Job waits for quota")
	grouped(flags, "Jobs")
}

// request is what the helper is asked, about targets of which there must be some: all of all lines is never meant.
func (opts *remoteOptions) request(env *environment, command deploy.HelperCommand, args []string) (deploy.HelperRequest, error) {
	targets, err := opts.targets.choose(env, args)
	if err != nil {
		return deploy.HelperRequest{}, err
	}
	if command != deploy.RunTargets { // which may be on this machine
		if targets, err = forCluster(env, targets); err != nil {
			return deploy.HelperRequest{}, err
		}
	}
	id := cmp.Or(opts.runID, env.getenv("GITHUB_RUN_ID"))
	if id == "" {
		var random [3]byte
		_, _ = rand.Read(random[:]) // never fails
		id = time.Now().UTC().Format("20060102") + "-" + hex.EncodeToString(random[:])
	}
	return deploy.HelperRequest{
		Command: command, Cluster: opts.cluster.Cluster, RunID: id, Targets: targets, Jobs: opts.jobs.run, Admission: opts.admission,
	}, nil
}

// forCluster leaves out what only this machine can capture, unless nothing else is asked for.
func forCluster(env *environment, targets []target.Target) ([]target.Target, error) {
	rest := slices.DeleteFunc(slices.Clone(targets), func(t target.Target) bool { return t.Session != nil })
	left := len(targets) - len(rest)
	if left > 0 && len(rest) == 0 {
		return nil, fmt.Errorf("%s is a session, which can only be captured on this machine: give --local", targets[0].Name())
	}
	if left > 0 {
		env.log.Warn("sessions are left out: capture them with capture run --local", "sessions", left)
	}
	return rest, nil
}

// callHelper has vllm-vcr-cluster carry out a request. On Unix it returns only if that cannot be started.
func callHelper(ctx context.Context, env *environment, request deploy.HelperRequest) error {
	path, err := process.FindHelper(ctx, deploy.Program, "captures in a cluster need", buildVersion())
	if err != nil {
		return infra(err)
	}
	request.Verbose, request.LogFormat = env.verbose, env.logFormat
	if request.Program, err = os.Executable(); err != nil {
		return infra(err)
	}
	code, err := deploy.Call(path, env.args, request)
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
		Short: "Submit the Jobs of captures to a cluster, and do not wait for them",
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := opts.request(env, deploy.Submit, args)
			if err != nil {
				return err
			}
			return callHelper(cmd.Context(), env, request)
		},
	}
	opts.addFlags(cmd.Flags())
	common(cmd.Flags(), "line", "run-id", "kubeconfig", "context", "namespace", "queue", "fetch-timeout")
	return cmd
}

func newCaptureFetchCommand(env *environment) *cobra.Command {
	var opts remoteOptions
	var work string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "fetch TARGET…",
		Short: "Fetch the recordings of submitted captures",
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.runID == "" && env.getenv("GITHUB_RUN_ID") == "" {
				return errors.New("--run-id is not given: `vllm-vcr capture status` prints the runs")
			}
			request, err := opts.request(env, deploy.Fetch, args)
			if err != nil {
				return err
			}
			request.Work, request.JSON = work, asJSON
			return callHelper(cmd.Context(), env, request)
		},
	}
	flags := cmd.Flags()
	opts.targets.addFlags(flags)
	flags.StringVar(&work, "work", workPath, "`FOLDER` for the recordings, with a subfolder RUN/LINE/ID for each target")
	grouped(flags, "Result")
	opts.addRunFlags(flags)
	opts.addAdmissionFlag(flags)
	common(flags, "line", "work", "run-id", "kubeconfig", "context", "namespace", "admission-timeout")
	addJSONFlag(cmd.Flags(), &asJSON)
	return cmd
}

// jobsOptions choose Jobs that are in a cluster.
type jobsOptions struct {
	cluster clusterOptions
	runID   string
}

func (opts *jobsOptions) request(command deploy.HelperCommand, args []string) (deploy.HelperRequest, error) {
	patterns, err := readPatterns("target", args)
	if err != nil {
		return deploy.HelperRequest{}, err
	}
	for i, text := range patterns {
		patterns[i] = targetPattern(text)
	}
	return deploy.HelperRequest{Command: command, Cluster: opts.cluster.Cluster, RunID: opts.runID, Patterns: patterns}, nil
}

func newCaptureStatusCommand(env *environment) *cobra.Command {
	var opts jobsOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [TARGET…]",
		Short: "Print the captures in a cluster",
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := opts.request(deploy.Status, args)
			if err != nil {
				return err
			}
			request.JSON = asJSON
			return callHelper(cmd.Context(), env, request)
		},
	}
	opts.cluster.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&opts.runID, "run-id", "", "show only the Jobs of this run `ID` (default all runs)")
	addJSONFlag(cmd.Flags(), &asJSON)
	return cmd
}

func newCaptureCleanCommand(env *environment) *cobra.Command {
	var opts jobsOptions
	var all bool
	cmd := &cobra.Command{
		Use:   "clean [TARGET…]",
		Short: "Delete captures from a cluster",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && opts.runID == "" && !all {
				return errors.New("nothing is selected: give targets, --run-id or --all")
			}
			request, err := opts.request(deploy.Clean, args)
			if err != nil {
				return err
			}
			return callHelper(cmd.Context(), env, request)
		},
	}
	opts.cluster.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&opts.runID, "run-id", "", "delete only the Jobs of this run `ID`")
	cmd.Flags().BoolVar(&all, "all", false, "delete the capture Jobs of all runs in the namespace")
	return cmd
}

func newCaptureCredentialCommand(env *environment) *cobra.Command {
	var audience string
	cmd := &cobra.Command{
		Use:   "credential",
		Short: "Print the OIDC identity of this GitHub job as a credential for a cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			job := action.TokenService{
				URL: env.getenv("ACTIONS_ID_TOKEN_REQUEST_URL"), Token: env.getenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN"), Log: env.log,
			}
			if audience == "" {
				return errors.New("--audience is not given: want the audience in the authentication configuration of the API server")
			}
			credential, err := deploy.Credential(cmd.Context(), job, audience)
			if err != nil {
				return infra(err)
			}
			_, err = fmt.Fprintf(env.stdout, "%s\n", credential)
			return err
		},
	}
	cmd.Flags().StringVar(&audience, "audience", "", "`AUDIENCE` of the token, as in the authentication configuration of the API server; required")
	return cmd
}
