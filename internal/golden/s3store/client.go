package s3store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/golden"
)

// defaultRegion is where a bucket is looked for first, unless a region is given.
const defaultRegion = "us-east-1"

// roleTimeout is how long to look for the role of an EC2 machine, which is the last place where
// credentials are looked for. Elsewhere nothing answers there.
const roleTimeout = 2 * time.Second

// A store is the S3 of one [golden.Store].
type store struct {
	opt Options
	golden.Transport

	mu     sync.Mutex
	client *client // nil: not made yet

	roleTimeout time.Duration // for tests; 0: the constant
}

// Connect returns the S3 of a store of goldens. It makes no request: credentials are looked for at the first use.
func (o Options) Connect(t golden.Transport) golden.ObjectStore { return &store{opt: o, Transport: t} }

// A client makes requests about objects.
type client struct {
	*s3.Client
	golden.Transport
	credentials *aws.CredentialsCache // nil: requests are not signed
	regions     bucketRegions
	renewing    sync.Mutex
}

// connect makes the client at the first use, as looking for credentials may take seconds.
func (s *store) connect(ctx context.Context) (*client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		return s.client, nil
	}
	if err := s.opt.Check(); err != nil {
		return nil, err
	}
	cfg, err := s.load(ctx)
	if err != nil {
		return nil, err
	}
	provider, err := s.credentials(ctx, cfg)
	if err != nil {
		return nil, err
	}
	region := cmp.Or(cfg.Region, defaultRegion)
	made := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.Region = region
		o.Credentials = aws.AnonymousCredentials{}
		if provider != nil {
			o.Credentials = provider
		}
		if s.opt.Endpoint != "" {
			o.BaseEndpoint = &s.opt.Endpoint
		}
		o.UsePathStyle = s.opt.PathStyle == On || s.opt.PathStyle == Auto && aws.ToString(o.BaseEndpoint) != ""
		// The ARN of an access point has the region, as a bucket that is elsewhere has.
		o.UseARNRegion = true
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		// The SDK repeats requests but not broken bodies; golden.Store repeats both.
		o.Retryer = aws.NopRetryer{}
		o.HTTPClient = newWebClient(o.HTTPClient, s.Stall)
	})
	if err := validEndpoint(aws.ToString(made.Options().BaseEndpoint)); err != nil {
		return nil, err
	}
	s.client = &client{
		Client: made, Transport: s.Transport, credentials: provider,
		regions: bucketRegions{first: region, named: cfg.Region != ""},
	}
	return s.client, nil
}

func notRedirected(client *http.Client) *http.Client {
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own
}

const maxAnswer = 1 << 20 // bytes of an answer that is not an object

// A webClient sends the requests about objects. It follows no redirect, as a signed request is for one server. It limits the answers
// that the SDK reads whole, and ends an upload whose bytes are not taken.
type webClient struct {
	*http.Client
	stall time.Duration // 0: the default of package retry
}

// newWebClient returns a client with the transport that the configuration made.
func newWebClient(known s3.HTTPClient, stall time.Duration) webClient {
	switch known := known.(type) {
	case *http.Client:
		return webClient{known, stall}
	case *awshttp.BuildableClient:
		return webClient{notRedirected(&http.Client{Transport: known.GetTransport()}), stall}
	}
	panic(fmt.Sprintf("the SDK made an HTTP client of the type %T", known))
}

// Do sends a request.
func (w webClient) Do(r *http.Request) (*http.Response, error) {
	stop := func() {}
	if r.Method == http.MethodPut && r.Body != nil {
		var ctx context.Context
		var alive func()
		ctx, alive, stop = retry.Watch(r.Context(), w.stall)
		r = r.WithContext(ctx)
		r.Body = &body{r.Body, r.Body, alive, func() {}}
	}
	answer, err := w.Client.Do(r)
	if err != nil {
		defer stop()
		if r.Context().Err() != nil {
			err = context.Cause(r.Context())
		}
		return nil, err
	}
	object := r.Method == http.MethodGet && answer.StatusCode < http.StatusMultipleChoices && !r.URL.Query().Has("session")
	read := io.Reader(answer.Body)
	if !object {
		read = io.LimitReader(read, maxAnswer)
	}
	answer.Body = &body{read, answer.Body, func() {}, stop}
	return answer, nil
}

// A body calls functions when it is read and closed.
type body struct {
	io.Reader
	io.Closer
	onRead, onClose func()
}

func (b *body) Read(p []byte) (int, error) {
	b.onRead()
	return b.Reader.Read(p)
}

func (b *body) Close() error {
	defer b.onClose()
	return b.Closer.Close()
}

// Open requests an object from an offset on.
func (s *store) Open(ctx context.Context, bucket, key string, part golden.Span) (*golden.Body, error) {
	c, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	return c.open(ctx, bucket, key, part)
}

func (c *client) open(ctx context.Context, bucket, key string, part golden.Span) (*golden.Body, error) {
	input := &s3.GetObjectInput{Bucket: &bucket, Key: &key}
	if part.Offset > 0 {
		input.Range = aws.String(fmt.Sprintf("bytes=%d-", part.Offset))
	}
	if part.ETag != "" {
		input.IfMatch = &part.ETag
	}
	if part.Version != "" {
		input.VersionId = &part.Version
	}
	var object *s3.GetObjectOutput
	err := c.call(ctx, bucket, func(in func(*s3.Options)) (err error) {
		object, err = c.GetObject(ctx, input, in)
		return err
	})
	if err != nil {
		return nil, err
	}
	b := &golden.Body{
		ReadCloser: object.Body, Size: -1, ETag: aws.ToString(object.ETag),
		Modified: aws.ToTime(object.LastModified), Version: aws.ToString(object.VersionId),
	}
	if object.ContentLength != nil {
		b.Size = *object.ContentLength
	}
	if object.ContentRange != nil {
		if b.Offset, b.Size, err = golden.ParseContentRange(*object.ContentRange); err != nil {
			object.Body.Close()
			return nil, err
		}
	}
	return b, nil
}

// call makes a request about a bucket, in the region where the bucket is as far as that is known. From a refusal it
// learns each thing once, and repeats the request: where the bucket is, what time it is, that the credentials have
// expired.
func (c *client) call(ctx context.Context, bucket string, request func(in func(*s3.Options)) error) error {
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

// learn reports whether a request that was refused is worth repeating, now that the client knows why.
func (c *client) learn(ctx context.Context, bucket string, used aws.Credentials, r *refusal) bool {
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

// signable returns what requests are signed with, which is nothing if they are not. It distinguishes an error of the credentials
// from one of the bucket: in the request itself, the error of the provider, which has a cache, would look like the
// bucket's, as both are of the same types.
func (c *client) signable(ctx context.Context) (aws.Credentials, error) {
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
func (c *client) refused(err error, used aws.Credentials, region string) *refusal {
	var response *smithyhttp.ResponseError
	// Without a status there was no answer: the SDK makes a response up.
	if !errors.As(err, &response) || response.HTTPStatusCode() == 0 {
		return nil
	}
	header := response.Response.Header
	r := &refusal{
		Refusal:   golden.Refusal{Status: response.HTTPStatusCode(), RetryAfter: retry.After(header)},
		anonymous: c.credentials == nil, askedRegion: region,
	}
	var api smithy.APIError
	// To an answer without a word of its own the SDK gives those of the status.
	if errors.As(err, &api) && api.ErrorMessage() != http.StatusText(r.Status) {
		r.code, r.message = without(used, api.ErrorCode()), without(used, api.ErrorMessage())
	}
	r.region = regionIn(header.Get("X-Amz-Bucket-Region"), r.message)
	if server, err := smithyhttp.ParseTime(header.Get("Date")); err == nil {
		r.skew = time.Since(server)
	}
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
func (c *client) setClock(r *refusal) bool {
	if r.skew == 0 {
		return false
	}
	c.Log.Warn("the clock of this machine is wrong, requests are signed with the time of the S3 server",
		"skew", r.skew.Round(time.Second))
	return true
}

// renew requests other credentials than those that were used, and reports whether there are. Of many requests that are
// refused at the same time, one does so.
func (c *client) renew(ctx context.Context, used aws.Credentials, r *refusal) bool {
	if c.credentials == nil {
		return false
	}
	c.renewing.Lock()
	defer c.renewing.Unlock()
	if now, err := c.credentials.Retrieve(ctx); err == nil && !same(now, used) {
		return true
	}
	c.credentials.Invalidate()
	now, err := c.credentials.Retrieve(ctx)
	if err == nil && same(now, used) {
		return false
	}
	c.Log.Info("the AWS credentials were refused, so new ones were requested", "error", golden.Reason(r))
	return true // the next request returns an error of the provider
}

func same(a, b aws.Credentials) bool {
	return a.AccessKeyID == b.AccessKeyID && a.SessionToken == b.SessionToken
}

// bucketRegions knows where buckets are.
type bucketRegions struct {
	first string // where a bucket is looked for first
	named bool   // that was given, and is not the default

	mu    sync.Mutex
	found map[string]string // by bucket
}

func (b *bucketRegions) of(bucket string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if region, ok := b.found[bucket]; ok {
		return region
	}
	return b.first
}

// learn reports whether it is news that the bucket is there.
func (b *bucketRegions) learn(bucket, region string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.found[bucket] == region {
		return false
	}
	if b.found == nil {
		b.found = make(map[string]string)
	}
	b.found[bucket] = region
	return true
}

// expecting is how a server names a bucket's region that does not name it in the header.
var expecting = lazyregexp.New(`expecting ['"]([^'"]+)['"]`)

// regionIn finds the region of a bucket in an answer, or "". It becomes a part of the host's name that the next request
// goes to, so it must not be anything else.
func regionIn(header, message string) string {
	if header == "" {
		if found := expecting().FindStringSubmatch(message); found != nil {
			header = found[1]
		}
	}
	if !regionPattern().MatchString(header) {
		return ""
	}
	return header
}

// follow remembers where a bucket is that is not where it was looked for, and reports whether that is known now. A region
// that was given and is wrong is worth a warning: failing for it would not help, as the golden has its digest.
func (c *client) follow(ctx context.Context, bucket string, r *refusal) bool {
	if r.region == "" {
		r.region = c.regionOf(ctx, bucket)
	}
	if r.region == "" || r.region == r.askedRegion {
		return false
	}
	switch {
	case !c.regions.learn(bucket, r.region):
	case c.regions.named:
		c.Log.Warn("the bucket is in another region than configured; requests go to its own region", "bucket", shown(bucket),
			"region", r.region, "set", r.askedRegion)
	default:
		c.Log.Debug("the bucket is in another region", "bucket", shown(bucket), "region", r.region)
	}
	return true
}

// regionOf finds out where a bucket is. S3 answers everybody, so the request is not signed: for a signature the region would
// have to be known.
func (c *client) regionOf(ctx context.Context, bucket string) string {
	head, err := c.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &bucket}, func(o *s3.Options) {
		o.Credentials = nil
	})
	if err == nil {
		return regionIn(aws.ToString(head.BucketRegion), "")
	}
	var response *smithyhttp.ResponseError
	if errors.As(err, &response) && response.Response != nil {
		return regionIn(response.Response.Header.Get("X-Amz-Bucket-Region"), "")
	}
	return ""
}
