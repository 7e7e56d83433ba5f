package s3store

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/golden"
)

// Options says how S3 is reached where the environment does not, or not well. Its zero value leaves all to the environment.
type Options struct {
	// Endpoint is the URL of the S3 server, instead of AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL and the profile.
	Endpoint string
	// Region is that of the bucket, instead of AWS_REGION, AWS_DEFAULT_REGION and the profile. A bucket that says that
	// it is elsewhere is followed, with a warning if a region was given.
	Region string
	// PathStyle puts the bucket into the path of the URL, not into its host. Auto: where there is an endpoint.
	PathStyle Switch
	// Anonymous sends requests that are not signed, and looks for no credentials. Auto: where there are none. Off: that
	// there are none is an error.
	Anonymous Switch
	// Role is the ARN of a role to assume with the identity that GitHub gives to a job with the permission
	// "id-token: write". It is requested anew whenever the credentials are about to expire.
	Role string
	// RoleSession names the session of the role; by default vllm-vcr-$GITHUB_RUN_ID.
	RoleSession string
}

// A Switch is a setting with an automatic value.
type Switch int

// What a Switch says. Auto is the zero value.
const (
	Auto Switch = iota
	On
	Off
)

// ParseSwitch reads auto, true or false; the empty text is auto.
func ParseSwitch(text string) (Switch, error) {
	switch text {
	case "", "auto":
		return Auto, nil
	case "true":
		return On, nil
	case "false":
		return Off, nil
	}
	return Auto, fmt.Errorf("%q is not one of auto, true and false", clip(text))
}

// String returns auto, true or false.
func (s Switch) String() string {
	switch s {
	case On:
		return "true"
	case Off:
		return "false"
	}
	return "auto"
}

var (
	rolePattern    = lazyregexp.New(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+$`)
	sessionPattern = lazyregexp.New(`^[\w+=,.@-]{2,64}$`)
	regionPattern  = lazyregexp.New(`^[a-z0-9-]{1,40}$`)
)

// Check finds options that cannot be right, without a request.
func (o Options) Check() error {
	if err := validEndpoint(o.Endpoint); err != nil {
		return err
	}
	switch {
	case o.Region != "" && !regionPattern().MatchString(o.Region):
		return fmt.Errorf("the S3 region %q is not one such as eu-west-1", clip(o.Region))
	case o.Role == "" && o.RoleSession != "":
		return errors.New("there is a name for the session of a role, but no role")
	case o.Role == "":
		return nil
	case o.Anonymous == On:
		return errors.New("a role cannot be assumed for requests that are not signed: choose one of the two")
	case !rolePattern().MatchString(o.Role):
		return fmt.Errorf("the role %q is not an ARN such as arn:aws:iam::ACCOUNT:role/NAME", shown(o.Role))
	case o.RoleSession != "" && !sessionPattern().MatchString(o.RoleSession):
		return fmt.Errorf("the name %q of a session is not 2 to 64 letters, digits and +=,.@-_", clip(o.RoleSession))
	}
	return nil
}

// validEndpoint finds a missing scheme.
func validEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	where, err := url.Parse(endpoint)
	if err != nil || where.Scheme != "http" && where.Scheme != "https" || where.Host == "" {
		return fmt.Errorf("the S3 endpoint %q is not a URL such as https://s3.example.org", shown(endpoint))
	}
	return nil
}

// clip shortens text of others that a message quotes.
func clip(text string) string { return safetext.Clip(text, 80) }

// shown makes text of others fit for a message: one short line without secrets.
func shown(text string) string { return clip(safetext.Line(golden.Scrub(text))) }
