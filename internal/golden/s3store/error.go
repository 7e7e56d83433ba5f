package s3store

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/vllm-vcr/conformance/internal/golden"
)

// Causes of failures, as words that an error shows in brackets, beside those of package golden.
const (
	causeNoCredentials = "no-credentials"      // none were found
	causeFork          = "fork-pull-request"   // none were found, as GitHub gives none to pull requests from forks
	causeNoIdentity    = "no-identity"         // GitHub gives the job no identity token
	causeRole          = "role-refused"        // AWS does not give the role
	causeCredentials   = "credentials-not-had" // they are configured, but cannot be had
	causeDenied        = "access-denied"       // or there is no such key
	causeExpired       = "credentials-expired"
	causeUnknownKey    = "unknown-access-key"
	causeSignature     = "wrong-signature" // of the secret key
	causeClock         = "clock-skew"
	causeRegion        = "wrong-region"
	causeNoBucket      = "no-bucket"
	causeArchived      = "archived"
	causeNoCondition   = "no-conditional-writes" // a store that cannot be published to
)

// A refusal is what S3 answered instead of sending or storing the object.
type refusal struct {
	golden.Refusal
	anonymous bool   // the request was not signed
	writing   bool   // the request was part of an upload
	code      string // S3's word for it, such as NoSuchKey
	message   string // S3's sentence
	// Where the bucket is, if the server said so, and where it was looked for.
	region, askedRegion string
	skew                time.Duration // what our clock is ahead of the server's; 0: not known
}

func (r *refusal) Error() string {
	text := r.Refusal.Error()
	for _, part := range []string{r.code, r.message} {
		if part != "" {
			text += ": " + part
		}
	}
	return text
}

// Unwrap returns what any server may answer.
func (r *refusal) Unwrap() error { return &r.Refusal }

// cause goes by the code, as the same status means several things. Codes:
// https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
func (r *refusal) cause() string {
	switch r.code {
	case "NoSuchBucket", "InvalidBucketName":
		return causeNoBucket
	case "NoSuchKey", "NoSuchVersion":
		return golden.CauseNoKey
	case "InvalidAccessKeyId", "XAdminUserNotFound":
		return causeUnknownKey
	case "SignatureDoesNotMatch":
		return causeSignature
	case "ExpiredToken", "InvalidToken", "TokenRefreshRequired":
		return causeExpired
	case "RequestTimeTooSkewed", "RequestExpired":
		return causeClock
	case "InvalidObjectState":
		return causeArchived
	case "SlowDown", "Throttling", "TooManyRequests":
		return golden.CauseBusy
	}
	switch {
	case r.isElsewhere():
		return causeRegion
	case r.Status == http.StatusForbidden && r.anonymous && fromFork():
		return causeFork
	case r.Status == http.StatusForbidden && r.anonymous:
		return causeNoCredentials
	case r.Status == http.StatusForbidden:
		return causeDenied
	case r.Status == http.StatusNotFound:
		return golden.CauseNoKey
	}
	return r.Refusal.Cause()
}

// isElsewhere reports whether the bucket is in another region than the one asked.
func (r *refusal) isElsewhere() bool {
	switch r.code {
	case "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException":
		return true
	}
	return r.Status == http.StatusMovedPermanently || r.region != "" && r.region != r.askedRegion
}

// Advice says what to look at.
func (r *refusal) Advice() golden.Advice {
	known := r.readAdvice()
	switch {
	case !r.writing:
	case r.Status == http.StatusNotImplemented:
		return golden.Advice{Cause: causeNoCondition, Hint: "the store does not know If-None-Match, without which it might overwrite"}
	case known.Cause == causeNoBucket:
		known.Hint = "there is no such bucket: check the location and AWS_ENDPOINT_URL"
	case known.Cause == causeDenied:
		known.Hint = "the credentials may not write this key, or not read it to compare"
	case known.Cause == causeNoCredentials, known.Cause == causeFork:
		known.Hint = "no AWS credentials were found, so the request was not signed" + forkHint()
	}
	return known
}

// hints are those that need nothing but the cause.
var hints = map[string]string{
	causeNoBucket: "there is no such bucket: check CONFORMANCE_BUCKET and AWS_ENDPOINT_URL",
	causeExpired:  "the AWS credentials have expired, and there are no newer ones: get new ones, or let the run assume the role itself, which renews them",
	causeUnknownKey: "the AWS credentials are wrong: nobody has this access key, or it was deleted, or it is of another server: " +
		"check AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL",
	causeSignature: "the AWS credentials are wrong: the secret does not belong to the access key; check AWS_SECRET_ACCESS_KEY for blanks and missing " +
		"characters, and whether a proxy changes requests",
	causeDenied:          "the credentials may not read this key, or there is no such key: S3 tells the two apart only to those who may list the bucket",
	causeArchived:        "the object is archived: restore it, or keep goldens in a storage class that is read at once",
	golden.CauseRedirect: "the server sends us elsewhere, which is not followed, as requests are signed for this server alone: check AWS_ENDPOINT_URL",
}

// readAdvice is the advice to those who read.
func (r *refusal) readAdvice() golden.Advice {
	cause := r.cause()
	hint, known := hints[cause]
	switch {
	case known:
	case cause == golden.CauseNoKey:
		hint = r.noKeyHint()
	case cause == causeClock:
		hint = r.clockHint()
	case cause == causeRegion:
		hint = r.regionHint()
	case cause == causeNoCredentials, cause == causeFork:
		hint = "no AWS credentials were found, so the request was not signed, and the bucket is not public" + forkHint()
	default:
		hint = golden.HintOn(cause)
	}
	return golden.Advice{Cause: cause, Hint: hint}
}

func (r *refusal) noKeyHint() string {
	switch r.code {
	case "NoSuchKey":
		return "the bucket has no such key: check bucket_path in the manifest, and the prefix in CONFORMANCE_BUCKET"
	case "NoSuchVersion":
		return "the bucket has the key, but not this version: check version_id in the manifest"
	}
	return "check bucket_path in the manifest, CONFORMANCE_BUCKET and the credentials"
}

// clockHint names the difference that the answer shows.
func (r *refusal) clockHint() string {
	skew := r.skew.Round(time.Second)
	switch {
	case skew > 0:
		return fmt.Sprintf("the clock of this machine is %v ahead of the server's: set it", skew)
	case skew < 0:
		return fmt.Sprintf("the clock of this machine is %v behind the server's: set it", -skew)
	}
	return "the clock of this machine differs from the server's: set it"
}

func (r *refusal) regionHint() string {
	switch r.region {
	case r.askedRegion:
		return "the server says that the bucket is in this region, and refuses it there: check AWS_ENDPOINT_URL"
	case "":
		return fmt.Sprintf("the bucket is not in region %s: set AWS_REGION to its own", r.askedRegion)
	}
	return fmt.Sprintf("the bucket is in region %s, not %s: set AWS_REGION=%s", clip(r.region), r.askedRegion, clip(r.region))
}

// credentialsError is a failure to get credentials.
type credentialsError struct {
	err     error
	cause   string // empty: those that are configured cannot be had
	subject string // that the identity token names; empty: not known
}

// Error leaves out what the layers of the SDK say of themselves.
func (e *credentialsError) Error() string {
	err := withoutOutput(e.err)
	text := strings.TrimPrefix(err.Error(), "failed to refresh cached credentials, ")
	var (
		operation *smithy.OperationError
		refused   smithy.APIError
		response  *smithyhttp.ResponseError
	)
	if errors.As(err, &operation) {
		text = operation.OperationName + ": "
		if errors.As(operation.Err, &response) && response.HTTPStatusCode() != 0 {
			text += fmt.Sprintf("HTTP status %d: ", response.HTTPStatusCode())
		}
		if errors.As(operation.Err, &refused) {
			text = strings.TrimRight(text+refused.ErrorCode()+": "+refused.ErrorMessage(), ": ")
		} else {
			text += operation.Err.Error()
		}
	}
	return "AWS credentials: " + text
}

func (e *credentialsError) Unwrap() error { return e.err }

// Advice says what to look at.
func (e *credentialsError) Advice() golden.Advice {
	switch e.cause {
	case causeNoCredentials:
		if fromFork() {
			return golden.Advice{Cause: causeFork, Hint: "unsigned requests are switched off" + forkHint()}
		}
		return golden.Advice{Cause: causeNoCredentials, Hint: "unsigned requests are switched off: configure AWS credentials, or a role, or allow unsigned requests"}
	case causeNoIdentity:
		return identityAdvice()
	case causeRole:
		return e.roleAdvice()
	}
	return golden.Advice{Cause: causeCredentials, Hint: "they are configured but could not be had: " +
		"check AWS_PROFILE, the role and the token, or unset them all to read a public bucket"}
}

func identityAdvice() golden.Advice {
	switch {
	case fromFork():
		return golden.Advice{Cause: causeFork, Hint: "GitHub gives none to pull requests from forks, whatever their permissions say: " +
			"let them use goldens that are public or in the repository"}
	case os.Getenv("GITHUB_ACTIONS") != "true":
		return golden.Advice{Cause: causeNoIdentity, Hint: "a role is assumed with the identity of a job of GitHub Actions: elsewhere use AWS_PROFILE, " +
			"or AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE"}
	case os.Getenv("ACTIONS_ID_TOKEN_REQUEST_URL") == "":
		return golden.Advice{Cause: causeNoIdentity, Hint: "give the job the permission id-token: write"}
	}
	return golden.Advice{Cause: causeNoIdentity, Hint: "the token service of GitHub did not answer as it should: run the job again"}
}

// roleAdvice is about what AWS said to an identity. Codes:
// https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
func (e *credentialsError) roleAdvice() golden.Advice {
	var refused smithy.APIError
	if !errors.As(e.err, &refused) {
		return golden.Advice{Cause: causeCredentials, Hint: "the security token service was not reached: check AWS_REGION, AWS_ENDPOINT_URL_STS and the network"}
	}
	hint := "check the role and its trust policy"
	switch refused.ErrorCode() {
	case "ExpiredTokenException", "ExpiredToken":
		hint = "the identity token of GitHub is some seconds old: check the clock of this machine"
	case "AccessDenied", "InvalidIdentityToken", "IDPCommunicationError", "ValidationError":
		hint = "check that the role exists, that its account has GitHub as an identity provider, and that its trust policy allows the audience " +
			identityAudience
		if e.subject != "" {
			hint += " and the subject " + e.subject
		}
	}
	return golden.Advice{Cause: causeRole, Hint: hint}
}

// forkHint says why there are no credentials, if that is why.
func forkHint() string {
	if fromFork() {
		return "; this is a pull request from a fork, which gets no credentials: let it use goldens that are public or in the repository"
	}
	return "; pull requests from forks get no credentials"
}
