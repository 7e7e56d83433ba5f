package golden

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sts"
)

// renewBefore is how long before they expire credentials of a role are replaced, at the earliest. It covers a request
// and a wrong clock; the shortest session is of 15 minutes.
const renewBefore = 5 * time.Minute

// roleCredentials assumes the role of the options with the identity that GitHub gives to this job. The session ends after
// an hour or so, and the identity after minutes, so both are asked for again as long as the run goes on.
func (s *Store) roleCredentials(cfg aws.Config) aws.CredentialsProvider {
	role := &gitHubRole{
		store: s, arn: s.S3.Role, client: sts.NewFromConfig(cfg),
		session: cmp.Or(s.S3.RoleSession, defaultSession(os.Getenv("GITHUB_RUN_ID"))),
	}
	return aws.NewCredentialsCache(role, func(o *aws.CredentialsCacheOptions) {
		o.ExpiryWindow = renewBefore
		o.ExpiryWindowJitterFrac = 0.5
	})
}

func defaultSession(run string) string {
	const name = "vllm-vcr"
	if session := name + "-" + run; run != "" && sessionPattern.MatchString(session) {
		return session
	}
	return name
}

// gitHubRole gives credentials of a role.
type gitHubRole struct {
	store        *Store
	arn, session string
	client       *sts.Client
}

// Retrieve asks GitHub for a token, and AWS for credentials in exchange. An error is a [*credentialsError].
func (r *gitHubRole) Retrieve(ctx context.Context) (aws.Credentials, error) {
	token, err := r.store.identityToken(ctx)
	if err != nil {
		return aws.Credentials{}, err
	}
	provider := stscreds.NewWebIdentityRoleProvider(r.client, r.arn, identityToken(token), func(o *stscreds.WebIdentityRoleOptions) {
		o.RoleSessionName = r.session
	})
	credentials, err := provider.Retrieve(ctx)
	if err != nil {
		return aws.Credentials{}, &credentialsError{err: err, cause: causeRole, subject: subjectOf(token)}
	}
	r.store.log().Info("AWS role assumed", "role", printable(scrub(r.arn)), "session", r.session,
		"expires", credentials.Expires.UTC().Format(time.RFC3339))
	return credentials, nil
}

// identityToken is a token that was had already.
type identityToken string

func (t identityToken) GetIdentityToken() ([]byte, error) { return []byte(t), nil }
