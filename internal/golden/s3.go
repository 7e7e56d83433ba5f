package golden

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// defaultRegion is where a bucket is looked for first, unless a region is given.
const defaultRegion = "us-east-1"

// roleTimeout is how long to look for the role of an EC2 machine, which is the last place where
// credentials are looked for. Elsewhere nobody answers there.
const roleTimeout = 2 * time.Second

// s3Cache holds the client of a [Store] once there is one.
type s3Cache struct {
	mu     sync.Mutex
	client *s3Client

	maxPut, minPart int64 // for tests; 0: the constants
}

// An s3Client makes requests about objects.
type s3Client struct {
	*s3.Client
	credentials aws.CredentialsProvider // nil: requests are not signed
	regions     bucketRegions
	renewing    sync.Mutex
	log         *slog.Logger
}

func (s *Store) openS3(bucket, key string) func(context.Context, span) (*body, error) {
	return func(ctx context.Context, part span) (*body, error) {
		client, err := s.s3Client(ctx)
		if err != nil {
			return nil, err
		}
		return client.open(ctx, bucket, key, part)
	}
}

// s3Client makes the client at the first use, as looking for credentials may take seconds.
func (s *Store) s3Client(ctx context.Context) (*s3Client, error) {
	s.s3.mu.Lock()
	defer s.s3.mu.Unlock()
	if s.s3.client != nil {
		return s.s3.client, nil
	}
	if err := s.S3.Check(); err != nil {
		return nil, err
	}
	cfg, err := s.awsConfig(ctx)
	if err != nil {
		return nil, err
	}
	provider, err := s.credentials(ctx, cfg)
	if err != nil {
		return nil, err
	}
	client := s3.NewFromConfig(cfg, s.s3Options(provider))
	if err := validEndpoint(aws.ToString(client.Options().BaseEndpoint)); err != nil {
		return nil, err
	}
	s.s3.client = &s3Client{
		Client: client, credentials: provider, log: s.log(),
		regions: bucketRegions{first: cfg.Region, named: s.S3.Region != "" || namesRegion(cfg)},
	}
	return s.s3.client, nil
}

// awsConfig is what the environment and the profile say.
func (s *Store) awsConfig(ctx context.Context) (aws.Config, error) {
	options := []func(*config.LoadOptions) error{config.WithDefaultRegion(defaultRegion), config.WithLogger(logging.Nop{})}
	if s.S3.Region != "" {
		options = append(options, config.WithRegion(s.S3.Region))
	}
	if s.S3.Anonymous == On || s.S3.Role != "" {
		options = append(options, config.WithCredentialsProvider(aws.AnonymousCredentials{}))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return cfg, &credentialsError{err: err}
	}
	if s.HTTP != nil {
		cfg.HTTPClient = s.HTTP
	}
	cfg.HTTPClient = notRedirected(cfg.HTTPClient)
	return cfg, nil
}

// namesRegion tells whether the environment or the profile names a region.
func namesRegion(cfg aws.Config) bool {
	for _, source := range cfg.ConfigSources {
		switch c := source.(type) {
		case config.EnvConfig:
			if c.Region != "" {
				return true
			}
		case config.SharedConfig:
			if c.Region != "" {
				return true
			}
		}
	}
	return false
}

// credentials returns what signs requests, or nil if nothing does.
func (s *Store) credentials(ctx context.Context, cfg aws.Config) (aws.CredentialsProvider, error) {
	switch {
	case s.S3.Role != "":
		return s.roleCredentials(cfg), nil
	case s.S3.Anonymous == On:
		return nil, nil
	case s.hasCredentials(ctx, cfg.Credentials):
		return cfg.Credentials, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case s.S3.Anonymous == Off:
		return nil, &credentialsError{err: errors.New("none were found"), cause: causeNoCredentials}
	}
	return nil, nil
}

// hasCredentials tells whether there are any. The role of an EC2 machine is the one source that the
// SDK only assumes to be there, for want of all others: so it is asked for, in limited time.
func (s *Store) hasCredentials(ctx context.Context, provider aws.CredentialsProvider) bool {
	if !aws.IsCredentialsProvider(provider, (*ec2rolecreds.Provider)(nil)) {
		return provider != nil
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.roleTimeout, roleTimeout))
	defer cancel()
	start := time.Now()
	_, err := provider.Retrieve(ctx)
	if err != nil {
		s.log().Debug("no AWS credentials, requests are not signed", "duration", time.Since(start).Round(time.Millisecond))
	}
	return err == nil
}

func (s *Store) s3Options(provider aws.CredentialsProvider) func(*s3.Options) {
	return func(o *s3.Options) {
		o.Credentials = provider
		if provider == nil {
			o.Credentials = aws.AnonymousCredentials{}
		}
		if s.S3.Endpoint != "" {
			o.BaseEndpoint = &s.S3.Endpoint
		}
		// By now it is also that of the environment or of the profile.
		o.UsePathStyle = s.S3.PathStyle.or(o.BaseEndpoint != nil)
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		// The SDK repeats requests but not broken bodies; download repeats both.
		o.Retryer = aws.NopRetryer{}
		o.RetryMaxAttempts = 0
	}
}

// validEndpoint finds the forgotten scheme, of which the SDK speaks in riddles.
func validEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	where, err := url.Parse(endpoint)
	if err != nil || where.Scheme != "http" && where.Scheme != "https" || where.Host == "" {
		return fmt.Errorf("the S3 endpoint %q is not an URL such as https://s3.example.org", clip(printable(scrub(endpoint))))
	}
	return nil
}

// open asks for an object from an offset on.
func (c *s3Client) open(ctx context.Context, bucket, key string, part span) (*body, error) {
	input := &s3.GetObjectInput{Bucket: &bucket, Key: &key}
	if part.offset > 0 {
		input.Range = aws.String(fmt.Sprintf("bytes=%d-", part.offset))
	}
	if part.etag != "" {
		input.IfMatch = &part.etag
	}
	if part.version != "" {
		input.VersionId = &part.version
	}
	var object *s3.GetObjectOutput
	err := c.call(ctx, bucket, func(in func(*s3.Options)) (err error) {
		object, err = c.GetObject(ctx, input, in)
		return err
	})
	if err != nil {
		return nil, err
	}
	return bodyOf(object)
}

func bodyOf(object *s3.GetObjectOutput) (*body, error) {
	b := &body{
		ReadCloser: object.Body, size: -1, etag: aws.ToString(object.ETag),
		modified: aws.ToTime(object.LastModified), version: aws.ToString(object.VersionId),
	}
	if object.ContentLength != nil {
		b.size = *object.ContentLength
	}
	if object.ContentRange == nil {
		return b, nil
	}
	var err error
	if b.offset, b.size, err = parseContentRange(*object.ContentRange); err != nil {
		object.Body.Close()
		return nil, err
	}
	return b, nil
}

// parseContentRange reads "bytes 10-19/20", or "bytes 10-19/*", of which the size is -1.
func parseContentRange(text string) (offset, size int64, err error) {
	span, total, ok := strings.Cut(strings.TrimPrefix(text, "bytes "), "/")
	first, _, okSpan := strings.Cut(span, "-")
	offset, err = strconv.ParseInt(first, 10, 64)
	if !ok || !okSpan || err != nil || offset < 0 {
		return 0, 0, fmt.Errorf("the server sent a range that it does not tell: Content-Range %q", clip(printable(text)))
	}
	if size, err = strconv.ParseInt(total, 10, 64); err != nil || size < 0 {
		size = -1
	}
	return offset, size, nil
}

// call makes a request about a bucket, in the region where the bucket is as far as that is known. From a refusal it
// learns each thing once, and repeats the request: where the bucket is, what time it is, that the credentials have
// expired.
func (c *s3Client) call(ctx context.Context, bucket string, request func(in func(*s3.Options)) error) error {
	learned := make(map[string]bool)
	for {
		used, err := c.signable(ctx)
		if err != nil {
			return err
		}
		region := c.regions.of(bucket)
		if err = request(func(o *s3.Options) { o.Region = region }); err == nil {
			return nil
		}
		refused := c.refused(err, used, region)
		if refused == nil {
			return err
		}
		cause := refused.cause()
		if learned[cause] || !c.learn(ctx, bucket, used, refused) {
			return refused
		}
		learned[cause] = true
	}
}

// learn tells whether a request that was refused is worth repeating, now that the client knows why.
func (c *s3Client) learn(ctx context.Context, bucket string, used aws.Credentials, r *refusal) bool {
	switch r.cause() {
	case causeRegion:
		return c.follow(ctx, bucket, r)
	case causeClock:
		return c.setClock(r)
	case causeExpired, causeUnknownKey:
		return c.renew(ctx, used, r)
	}
	return false
}

// signable returns what requests are signed with, which is nothing if they are not. It tells an error of the credentials
// from one of the bucket: asked by the request itself, the error of the provider, which has a cache, would look like the
// bucket's, as both are of the same types.
func (c *s3Client) signable(ctx context.Context) (aws.Credentials, error) {
	if c.credentials == nil {
		return aws.Credentials{}, nil
	}
	own, err := c.credentials.Retrieve(ctx)
	if err == nil {
		return own, nil
	}
	if ctx.Err() != nil {
		return own, context.Cause(ctx)
	}
	var known *credentialsError
	if errors.As(err, &known) {
		return own, known
	}
	return own, &credentialsError{err: err}
}

// refused takes out of an SDK's error what the server said, or returns nil if it said nothing.
func (c *s3Client) refused(err error, used aws.Credentials, region string) *refusal {
	var response *smithyhttp.ResponseError
	// Without a status there was no answer: the SDK makes a response up.
	if !errors.As(err, &response) || response.HTTPStatusCode() == 0 {
		return nil
	}
	header := response.Response.Header
	r := &refusal{status: response.HTTPStatusCode(), s3: true, anonymous: c.credentials == nil, askedRegion: region}
	var api smithy.APIError
	if errors.As(err, &api) {
		r.code, r.message = without(used, api.ErrorCode()), without(used, api.ErrorMessage())
	}
	r.region = regionIn(header.Get("X-Amz-Bucket-Region"), r.message)
	if server, err := smithyhttp.ParseTime(header.Get("Date")); err == nil {
		r.skew = time.Since(server)
	}
	r.retryAfter = retry.After(header)
	return r
}

// without takes credentials out of what a server says.
func without(used aws.Credentials, text string) string {
	for _, secret := range []string{used.AccessKeyID, used.SecretAccessKey, used.SessionToken} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "…")
		}
	}
	return text
}

// setClock repeats a request that was signed at a wrong time: the SDK has read the server's time in the answer, and goes
// by that from now on.
func (c *s3Client) setClock(r *refusal) bool {
	if r.skew == 0 {
		return false
	}
	c.log.Warn("the clock of this machine is wrong, requests are signed with the time of the S3 server",
		"skew", r.skew.Round(time.Second))
	return true
}

// renew asks for other credentials than those that were used, and tells whether there are. Of many requests that are
// refused at the same time, one does so.
func (c *s3Client) renew(ctx context.Context, used aws.Credentials, r *refusal) bool {
	cache, ok := c.credentials.(*aws.CredentialsCache)
	if !ok {
		return false
	}
	c.renewing.Lock()
	defer c.renewing.Unlock()
	if now, err := cache.Retrieve(ctx); err == nil && !same(now, used) {
		return true
	}
	cache.Invalidate()
	now, err := cache.Retrieve(ctx)
	if err == nil && same(now, used) {
		return false
	}
	c.log.Info("the AWS credentials were refused, and were asked for anew", "error", reason(r))
	return true // an error of the provider is told by the next request
}

func same(a, b aws.Credentials) bool {
	return a.AccessKeyID == b.AccessKeyID && a.SessionToken == b.SessionToken
}
