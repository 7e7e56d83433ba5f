package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/cluster"
	"github.com/vllm-vcr/conformance/internal/forge/oidc"
)

func (a *app) captureCredentialCommand() *cobra.Command {
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
				URL: a.orEnv("", "ACTIONS_ID_TOKEN_REQUEST_URL"), Token: a.orEnv("", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"), Log: a.log,
			}
			if audience == "" {
				return errors.New("--audience: say for whom the token is, as the API server's authentication configuration does")
			}
			credential, err := cluster.Credential(cmd.Context(), job, audience)
			if err != nil {
				return exitError{conformance.ExitInfra, err}
			}
			_, err = fmt.Fprintf(a.stdout, "%s\n", credential)
			return err
		},
	}
	cmd.Flags().StringVar(&audience, "audience", "", "whom the token is for")
	return cmd
}
