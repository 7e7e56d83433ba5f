package golden

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
)

// hint says what to look at after a failure, or nothing.
func hint(err error) string {
	var (
		refused     *refusal
		credentials *credentialsError
		dns         *net.DNSError
	)
	switch {
	case errors.As(err, &refused) && refused.s3:
		return refused.s3Hint()
	case errors.As(err, &refused):
		return refused.webHint()
	case errors.As(err, &credentials):
		return "they are configured but could not be had: check AWS_PROFILE, the role and the token, or unset them all to read a public bucket"
	case errors.As(err, &dns):
		return "check the name of the host or bucket, AWS_REGION, AWS_ENDPOINT_URL and the network"
	case errors.Is(err, fs.ErrNotExist):
		return "check bucket_path in the manifest, the directory of goldens and CONFORMANCE_BUCKET"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errStalled):
		return "check the network and the proxy"
	}
	return ""
}

// s3Hint goes by the code, as the same status means several things. Codes:
// https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
func (r *refusal) s3Hint() string {
	switch r.code {
	case "NoSuchBucket":
		return "there is no such bucket: check CONFORMANCE_BUCKET and AWS_ENDPOINT_URL"
	case "NoSuchKey":
		return "the bucket has no such key: check bucket_path in the manifest, and the prefix in CONFORMANCE_BUCKET"
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "RequestTimeTooSkewed":
		return "the AWS credentials are wrong or have expired, or the clock is off"
	}
	switch {
	case r.isElsewhere():
		return r.regionHint()
	case r.status == http.StatusForbidden && r.anonymous:
		return "no AWS credentials were found, so the request was not signed, and the bucket is not public; pull requests from forks get no credentials"
	case r.status == http.StatusForbidden:
		return "the credentials may not read this key, or there is no such key: S3 tells the two apart only to those who may list the bucket"
	case r.status == http.StatusNotFound:
		return "check bucket_path in the manifest, CONFORMANCE_BUCKET and the credentials"
	}
	return ""
}

// isElsewhere tells whether the bucket is in another region than the one asked.
func (r *refusal) isElsewhere() bool {
	switch r.code {
	case "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException":
		return true
	}
	return r.status == http.StatusMovedPermanently || r.region != "" && r.region != r.askedRegion
}

func (r *refusal) regionHint() string {
	if r.region == "" {
		return fmt.Sprintf("the bucket is not in region %s: set AWS_REGION to its own", r.askedRegion)
	}
	return fmt.Sprintf("the bucket is in region %s, not %s: set AWS_REGION=%s", clip(r.region), r.askedRegion, clip(r.region))
}

func (r *refusal) webHint() string {
	switch r.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return "the server wants credentials, but https locations are read without: make the golden public, or put it into a bucket"
	case http.StatusNotFound, http.StatusGone:
		return "check the location in the manifest"
	}
	return ""
}
