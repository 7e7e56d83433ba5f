package golden

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// defaultRegion is that of the bucket, unless the environment names one.
const defaultRegion = "us-east-1"

// roleTimeout is how long to look for the role of an EC2 machine, which is the last place where
// credentials are looked for. Elsewhere nobody answers there.
const roleTimeout = 2 * time.Second

// s3Cache holds the client of a [Store] once there is one.
type s3Cache struct {
	mu     sync.Mutex
	client *s3Client
}

// An s3Client reads objects.
type s3Client struct {
	*s3.Client
	credentials aws.CredentialsProvider // nil: requests are not signed
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
	cfg, err := config.LoadDefaultConfig(ctx, config.WithDefaultRegion(defaultRegion), config.WithLogger(logging.Nop{}))
	if err != nil {
		return nil, &credentialsError{err}
	}
	provider := cfg.Credentials
	if !s.hasCredentials(ctx, provider) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		provider = nil
	}
	s.s3.client = &s3Client{s3.NewFromConfig(cfg, s.s3Options(provider)), provider}
	return s.s3.client, nil
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
		if provider == nil {
			o.Credentials = aws.AnonymousCredentials{}
		}
		if s.HTTP != nil {
			o.HTTPClient = s.HTTP
		}
		if s.Endpoint != "" {
			o.BaseEndpoint = &s.Endpoint
		}
		// By now it is also that of the environment or of the profile.
		o.UsePathStyle = o.BaseEndpoint != nil
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		// The SDK repeats requests but not broken bodies; download repeats both.
		o.Retryer = aws.NopRetryer{}
		o.RetryMaxAttempts = 0
	}
}

func (c *s3Client) open(ctx context.Context, bucket, key string, _ span) (*body, error) {
	if c.credentials != nil {
		// The provider has a cache. Asked by the request itself, its error would look like the
		// bucket's: both are of the same types.
		if _, err := c.credentials.Retrieve(ctx); err != nil {
			return nil, &credentialsError{err}
		}
	}
	object, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		return nil, c.refused(err)
	}
	return &body{ReadCloser: object.Body, size: aws.ToInt64(object.ContentLength), etag: aws.ToString(object.ETag)}, nil
}

// refused takes out of an SDK's error what the server said, if it said anything.
func (c *s3Client) refused(err error) error {
	var response *smithyhttp.ResponseError
	// Without a status there was no answer: the SDK makes a response up.
	if !errors.As(err, &response) || response.HTTPStatusCode() == 0 {
		return err
	}
	r := &refusal{status: response.HTTPStatusCode(), s3: true, anonymous: c.credentials == nil}
	r.askedRegion = c.Options().Region
	r.region = response.Response.Header.Get("X-Amz-Bucket-Region")
	var api smithy.APIError
	if errors.As(err, &api) {
		r.code, r.message = api.ErrorCode(), api.ErrorMessage()
	}
	return r
}
