package golden

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/aws/smithy-go"
	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// Causes of failures, as words that an error shows in brackets, and that can be searched for.
const (
	causeNoCredentials = "no-credentials"      // none were found
	causeFork          = "fork-pull-request"   // none were found, as GitHub gives none to pull requests from forks
	causeNoIdentity    = "no-identity"         // GitHub does not tell the job who it is
	causeRole          = "role-refused"        // AWS does not give the role
	causeCredentials   = "credentials-not-had" // they are configured, but cannot be had
	causeDenied        = "access-denied"       // or there is no such key
	causeExpired       = "credentials-expired"
	causeUnknownKey    = "unknown-access-key"
	causeSignature     = "wrong-signature" // of the secret key
	causeClock         = "clock-skew"
	causeRegion        = "wrong-region"
	causeNoBucket      = "no-bucket"
	causeNoKey         = "no-key" // or version, or file
	causeArchived      = "archived"
	causeBusy          = "server-busy"
	causeServer        = "server-error"
	causeChanged       = "object-changed"    // while it was read
	causeAuthority     = "unknown-authority" // of a certificate
	causeCertificate   = "wrong-certificate"
	causeProxy         = "proxy"
	causeNoHost        = "no-host"
	causeNetwork       = "network"
	causeWeb           = "web-credentials"       // an https location that wants some
	causeExists        = "exists"                // and is something else
	causeRedirect      = "redirect"              // that is not followed
	causeNoCondition   = "no-conditional-writes" // a store that cannot be published to
)

// advice is what can be said about a failure beside its text. Both parts may be empty.
type advice struct{ cause, hint string }

func (a advice) String() string {
	var text string
	if a.hint != "" {
		text = ": " + a.hint
	}
	if a.cause != "" {
		text += " [" + a.cause + "]"
	}
	return text
}

// adviceOn says what to look at after a failure.
func adviceOn(err error) advice {
	var (
		refused     *refusal
		credentials *credentialsError
	)
	switch {
	case errors.As(err, &credentials):
		return credentials.advice()
	case errors.As(err, &refused) && refused.s3:
		return refused.s3Advice()
	case errors.As(err, &refused):
		return refused.webAdvice()
	case errors.As(err, new(*redirectError)):
		return advice{causeRedirect, "name the place itself in the manifest"}
	case errors.Is(err, fs.ErrNotExist):
		return advice{causeNoKey, "check bucket_path in the manifest, the directory of goldens and CONFORMANCE_BUCKET"}
	}
	return networkAdvice(err)
}

// networkAdvice is about a server that could not be talked to.
func networkAdvice(err error) advice {
	var (
		dns       *net.DNSError
		op        *net.OpError
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		host      x509.HostnameError
		rejected  *tls.CertificateVerificationError
	)
	switch {
	case errors.As(err, new(*proxyError)), errors.As(err, &op) && op.Op == "proxyconnect",
		strings.Contains(err.Error(), "Proxy Authentication Required"): // of a client that was given
		return advice{causeProxy, "the proxy that HTTPS_PROXY or HTTP_PROXY names does not serve: correct it, or except the host in NO_PROXY"}
	case errors.As(err, &authority):
		return advice{causeAuthority, "the certificate of the server, or of a proxy before it, is of an authority that is not known here: " +
			"put the file of the authority into SSL_CERT_FILE, or for S3 into AWS_CA_BUNDLE"}
	case errors.As(err, &host):
		return advice{causeCertificate, "the certificate is of another host: check the endpoint, and whether the bucket belongs into the path"}
	case errors.As(err, &invalid), errors.As(err, &rejected):
		return advice{causeCertificate, "the certificate of the server does not hold: check the clock of this machine, and the server"}
	case errors.As(err, &dns):
		return advice{causeNoHost, "check the name of the host or bucket, AWS_REGION, AWS_ENDPOINT_URL and the network" +
			"; a server that knows no bucket in the host's name wants it in the path"}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, retry.ErrStalled):
		return advice{causeNetwork, "check the network and the proxy"}
	}
	return advice{}
}

func (e *credentialsError) advice() advice {
	switch e.cause {
	case causeNoCredentials:
		if fromFork() {
			return advice{causeFork, "unsigned requests are switched off" + forkHint()}
		}
		return advice{causeNoCredentials, "unsigned requests are switched off: configure AWS credentials, or a role, or allow unsigned requests"}
	case causeNoIdentity:
		return identityAdvice()
	case causeRole:
		return e.roleAdvice()
	}
	return advice{causeCredentials, "they are configured but could not be had: " +
		"check AWS_PROFILE, the role and the token, or unset them all to read a public bucket"}
}

func identityAdvice() advice {
	switch {
	case fromFork():
		return advice{causeFork, "GitHub gives none to pull requests from forks, whatever their permissions say: " +
			"let them use goldens that are public or in the repository"}
	case os.Getenv("GITHUB_ACTIONS") != "true":
		return advice{causeNoIdentity, "a role is assumed with the identity of a job of GitHub Actions: elsewhere use AWS_PROFILE, " +
			"or AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE"}
	case os.Getenv("ACTIONS_ID_TOKEN_REQUEST_URL") == "":
		return advice{causeNoIdentity, "give the job the permission id-token: write"}
	}
	return advice{causeNoIdentity, "the token service of GitHub did not answer as it should: run the job again"}
}

// roleAdvice is about what AWS said to an identity. Codes:
// https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
func (e *credentialsError) roleAdvice() advice {
	var api smithy.APIError
	if !errors.As(e.err, &api) {
		return advice{causeCredentials, "the security token service was not reached: check AWS_REGION, AWS_ENDPOINT_URL_STS and the network"}
	}
	switch api.ErrorCode() {
	case "ExpiredTokenException", "ExpiredToken":
		return advice{causeRole, "the identity token of GitHub is some seconds old: check the clock of this machine"}
	case "AccessDenied", "InvalidIdentityToken", "IDPCommunicationError", "ValidationError":
		hint := "check that the role exists, that its account has GitHub as an identity provider, and that its trust policy allows the audience " +
			identityAudience
		if e.subject != "" {
			hint += " and the subject " + e.subject
		}
		return advice{causeRole, hint}
	}
	return advice{causeRole, "check the role and its trust policy"}
}

// forkHint says why there are no credentials, if that is why.
func forkHint() string {
	if fromFork() {
		return "; this is a pull request from a fork, which gets no credentials: let it use goldens that are public or in the repository"
	}
	return "; pull requests from forks get no credentials"
}

// cause goes by the code, as the same status means several things. Codes:
// https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
func (r *refusal) cause() string {
	switch r.code {
	case "NoSuchBucket", "InvalidBucketName":
		return causeNoBucket
	case "NoSuchKey", "NoSuchVersion":
		return causeNoKey
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
		return causeBusy
	}
	return r.causeByStatus()
}

func (r *refusal) causeByStatus() string {
	switch {
	case r.isElsewhere():
		return causeRegion
	case r.status >= http.StatusMultipleChoices && r.status < http.StatusBadRequest:
		return causeRedirect
	case r.status == http.StatusForbidden && r.anonymous && fromFork():
		return causeFork
	case r.status == http.StatusForbidden && r.anonymous:
		return causeNoCredentials
	case r.status == http.StatusForbidden:
		return causeDenied
	case r.status == http.StatusNotFound:
		return causeNoKey
	case r.status == http.StatusPreconditionFailed, r.status == http.StatusRequestedRangeNotSatisfiable:
		return causeChanged
	case r.status == http.StatusProxyAuthRequired:
		return causeProxy
	case r.status == http.StatusServiceUnavailable, r.status == http.StatusTooManyRequests:
		return causeBusy
	case r.status >= http.StatusInternalServerError:
		return causeServer
	}
	return ""
}

func (r *refusal) s3Advice() advice {
	cause := r.cause()
	if hint, ok := s3Hints[cause]; ok {
		return advice{cause, hint}
	}
	switch cause {
	case causeNoKey:
		return advice{cause, r.noKeyHint()}
	case causeClock:
		return advice{cause, r.clockHint()}
	case causeRegion:
		return advice{cause, r.regionHint()}
	case causeNoCredentials, causeFork:
		return advice{cause, "no AWS credentials were found, so the request was not signed, and the bucket is not public" + forkHint()}
	}
	return advice{cause: cause}
}

// s3Hints are those that need nothing but the cause.
var s3Hints = map[string]string{
	causeNoBucket: "there is no such bucket: check CONFORMANCE_BUCKET and AWS_ENDPOINT_URL",
	causeExpired:  "the AWS credentials have expired, and there are no newer ones: get them anew, or let the run assume the role itself, which renews them",
	causeUnknownKey: "the AWS credentials are wrong: nobody has this access key, or it was deleted, or it is of another server: " +
		"check AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL",
	causeSignature: "the AWS credentials are wrong: the secret does not belong to the access key; check AWS_SECRET_ACCESS_KEY for blanks and missing " +
		"characters, and whether a proxy changes requests",
	causeDenied:   "the credentials may not read this key, or there is no such key: S3 tells the two apart only to those who may list the bucket",
	causeArchived: "the object is archived: restore it, or keep goldens in a storage class that is read at once",
	causeBusy:     "the server has too many requests: try later, or keep the cache between runs",
	causeServer:   "the server has a fault of its own: try later, or name a mirror",
	causeChanged:  "the object was replaced while it was read",
	causeRedirect: "the server sends us elsewhere, which is not followed, as requests are signed for this server alone: check AWS_ENDPOINT_URL",
	causeProxy:    "the proxy wants credentials: put them into HTTPS_PROXY, or except the host in NO_PROXY",
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

// clockHint tells the difference that the answer shows.
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

// isElsewhere tells whether the bucket is in another region than the one asked.
func (r *refusal) isElsewhere() bool {
	switch r.code {
	case "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException":
		return true
	}
	return r.s3 && (r.status == http.StatusMovedPermanently || r.region != "" && r.region != r.askedRegion)
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

func (r *refusal) webAdvice() advice {
	cause := r.cause()
	switch {
	case r.status == http.StatusUnauthorized, r.status == http.StatusForbidden:
		return advice{causeWeb, "the server wants credentials, but https locations are read without: make the golden public, or put it into a bucket"}
	case r.status == http.StatusNotFound, r.status == http.StatusGone:
		return advice{causeNoKey, "check the location in the manifest"}
	case cause == causeBusy, cause == causeServer, cause == causeChanged, cause == causeProxy:
		return advice{cause, s3Hints[cause]}
	}
	return advice{}
}
