package s3store

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/golden"
)

// defaultRegion is where a bucket is looked for first, unless a region is given.
const defaultRegion = "us-east-1"

// roleTimeout is how long to look for the role of an EC2 machine, which is the last place where
// credentials are looked for. Elsewhere nobody answers there.
const roleTimeout = 2 * time.Second

// A store is the S3 of one [golden.Store].
type store struct {
	opt Options
	golden.Transport

	mu     sync.Mutex
	client *client // nil: not made yet

	roleTimeout     time.Duration // for tests; 0: the constant
	maxPut, minPart int64         // for tests; 0: the constants
}

// Connect returns the S3 of a store of goldens. It makes no request: credentials are looked for at the first use.
func (o Options) Connect(t golden.Transport) golden.ObjectStore { return &store{opt: o, Transport: t} }

// A client makes requests about objects.
type client struct {
	golden.Transport
	settings
	web       *http.Client
	endpoint  string // URL of the server; "": AWS
	pathStyle bool
	provider  *provider // nil: requests are not signed
	regions   bucketRegions
	renewing  sync.Mutex
	clock     atomic.Int64 // nanoseconds that are added to our time in signatures
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
	set, err := readSettings(s.opt.Region)
	if err != nil {
		return nil, &credentialsError{err: err}
	}
	web, err := s.newWeb(set)
	if err != nil {
		return nil, &credentialsError{err: err}
	}
	provider, err := s.credentials(ctx, set, web)
	if err != nil {
		return nil, err
	}
	endpoint := cmp.Or(s.opt.Endpoint, set.endpoint("s3"))
	if err := validEndpoint(endpoint); err != nil {
		return nil, err
	}
	s.client = &client{
		Transport: s.Transport, settings: set, web: web, endpoint: endpoint, provider: provider,
		pathStyle: s.opt.PathStyle == On || s.opt.PathStyle == Auto && endpoint != "",
		regions:   bucketRegions{first: set.region, named: set.named},
	}
	return s.client, nil
}

// newWeb is the client for all requests but those to the machine itself. It follows no redirect: what is signed, or shows
// who we are, is for one server.
func (s *store) newWeb(set settings) (*http.Client, error) {
	if s.HTTP != nil {
		return notRedirected(s.HTTP), nil
	}
	bundle := set.either("AWS_CA_BUNDLE", "ca_bundle")
	known, ok := golden.DefaultHTTP().Transport.(*http.Transport)
	if !ok {
		return notRedirected(golden.DefaultHTTP()), nil
	}
	own := known.Clone()
	own.MaxIdleConnsPerHost = 10
	if bundle != "" {
		text, err := os.ReadFile(bundle)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, errors.New(bundle + ", which AWS_CA_BUNDLE names, has no certificate in PEM")
		}
		if own.TLSClientConfig == nil {
			own.TLSClientConfig = &tls.Config{}
		}
		own.TLSClientConfig.RootCAs = pool
	}
	return notRedirected(&http.Client{Transport: own}), nil
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
	op := operation{method: http.MethodGet, key: key, query: url.Values{}, header: http.Header{}}
	if part.Offset > 0 {
		op.header.Set("Range", fmt.Sprintf("bytes=%d-", part.Offset))
	}
	if part.ETag != "" {
		op.header.Set("If-Match", part.ETag)
	}
	if part.Version != "" {
		op.query.Set("versionId", part.Version)
	}
	object, err := c.call(ctx, bucket, op)
	if err != nil {
		return nil, err
	}
	b := &golden.Body{
		ReadCloser: object.Body, Size: object.ContentLength, ETag: object.Header.Get("Etag"), Version: object.Header.Get("X-Amz-Version-Id"),
	}
	if modified, err := http.ParseTime(object.Header.Get("Last-Modified")); err == nil {
		b.Modified = modified
	}
	if here := object.Header.Get("Content-Range"); here != "" {
		if b.Offset, b.Size, err = golden.ParseContentRange(here); err != nil {
			object.Body.Close()
			return nil, err
		}
	}
	return b, nil
}

// call makes a request about a bucket, in the region where the bucket is as far as that is known. From a refusal it
// learns each thing once, and repeats the request: where the bucket is, what time it is, that the credentials have
// expired.
func (c *client) call(ctx context.Context, bucket string, op operation) (*http.Response, error) {
	learned := make(map[string]bool)
	for {
		used, err := c.signable(ctx)
		if err != nil {
			return nil, err
		}
		answer, err := c.send(ctx, bucket, c.regions.of(bucket), used, op)
		var refused *refusal
		if !errors.As(err, &refused) {
			return answer, err
		}
		cause := refused.cause()
		if learned[cause] || !c.learn(ctx, bucket, used, refused) {
			return nil, refused
		}
		learned[cause] = true
	}
}

// ask makes a request whose answer is short, and reads it. S3 can begin an answer with status 200, and end it with an error.
func (c *client) ask(ctx context.Context, bucket string, op operation) (http.Header, []byte, error) {
	answer, err := c.call(ctx, bucket, op)
	if err != nil {
		return nil, nil, err
	}
	text, err := readAnswer(answer)
	var s said
	if err == nil && len(text) > 0 && xml.Unmarshal(text, &s) == nil && s.XMLName.Local == "Error" {
		err = &refusal{
			Refusal: golden.Refusal{Status: http.StatusInternalServerError}, anonymous: c.provider == nil,
			code: shown(s.Code), message: shown(s.Message),
		}
	}
	return answer.Header, text, err
}

// learn reports whether a request that was refused is worth repeating, now that the client knows why.
func (c *client) learn(ctx context.Context, bucket string, used keys, r *refusal) bool {
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
func (c *client) signable(ctx context.Context) (keys, error) {
	if c.provider == nil {
		return keys{}, nil
	}
	own, err := c.provider.retrieve(ctx)
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

// refused is what the server answered instead of what was requested.
func (c *client) refused(answer *http.Response, used keys, region string) *refusal {
	r := &refusal{
		Refusal:   golden.Refusal{Status: answer.StatusCode, RetryAfter: retry.After(answer.Header)},
		anonymous: c.provider == nil, askedRegion: region,
	}
	var s said
	if text, err := readAnswer(answer); err == nil && xml.Unmarshal(text, &s) == nil {
		r.code, r.message = used.without(cmp.Or(s.Code, s.Error.Code)), used.without(cmp.Or(s.Message, s.Error.Message))
	}
	r.region = regionIn(answer.Header.Get("X-Amz-Bucket-Region"), r.message)
	if server, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		r.skew = time.Since(server)
	}
	return r
}

// setClock has a request repeated that was signed at a wrong time: from now on, signatures have the server's.
func (c *client) setClock(r *refusal) bool {
	if r.skew == 0 {
		return false
	}
	c.clock.Store(int64(-r.skew))
	c.Log.Warn("the clock of this machine is wrong, requests are signed with the time of the S3 server",
		"skew", r.skew.Round(time.Second))
	return true
}

// renew requests other credentials than those that were used, and reports whether there are. Of many requests that are
// refused at the same time, one does so.
func (c *client) renew(ctx context.Context, used keys, r *refusal) bool {
	if c.provider == nil {
		return false
	}
	c.renewing.Lock()
	defer c.renewing.Unlock()
	if now, err := c.provider.retrieve(ctx); err == nil && !now.same(used) {
		return true
	}
	c.provider.forget()
	now, err := c.provider.retrieve(ctx)
	if err == nil && now.same(used) {
		return false
	}
	c.Log.Info("the AWS credentials were refused, so new ones were requested", "error", golden.Reason(r))
	return true // the next request returns an error of the provider
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
// that was given and is wrong is worth a warning: failing for it would help nobody, as the golden has its digest.
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
	answer, err := c.send(ctx, bucket, c.regions.of(bucket), keys{}, operation{method: http.MethodHead})
	var refused *refusal
	if errors.As(err, &refused) {
		return refused.region
	} else if err != nil {
		return ""
	}
	answer.Body.Close()
	return regionIn(answer.Header.Get("X-Amz-Bucket-Region"), "")
}
