package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/vllm-vcr/conformance/internal/forge/action"
)

// CredentialVersion is the version of an ExecCredential.
const CredentialVersion = "client.authentication.k8s.io/v1"

// Credential asks GitHub for the identity of a job, for an audience, and returns it as the ExecCredential that an exec
// plugin prints. No error has a secret in it.
func Credential(ctx context.Context, job action.TokenService, audience string) ([]byte, error) {
	if audience == "" {
		return nil, errors.New("no audience: say with --audience for whom the token is")
	}
	token, err := job.Identity(ctx, audience)
	if errors.Is(err, action.ErrNoIdentity) {
		return nil, fmt.Errorf("%w: give the job the permission id-token: write; "+
			"jobs of pull requests from forks have none, and outside of GitHub a kubeconfig is the way", err)
	}
	if err != nil {
		return nil, err
	}
	return execCredential(token)
}

// execCredential is what an exec plugin prints. Without an expiry the library would ask again only after a refusal.
func execCredential(token string) ([]byte, error) {
	type status struct {
		Token   string `json:"token"`
		Expires string `json:"expirationTimestamp,omitempty"`
	}
	credential := struct {
		Kind       string   `json:"kind"`
		APIVersion string   `json:"apiVersion"`
		Spec       struct{} `json:"spec"`
		Status     status   `json:"status"`
	}{Kind: "ExecCredential", APIVersion: CredentialVersion, Status: status{Token: token}}
	if at := action.ReadClaims(token).Expires; !at.IsZero() {
		credential.Status.Expires = at.UTC().Format(time.RFC3339)
	}
	return json.Marshal(credential)
}
