package golden

import (
	"context"
	"errors"
	"regexp"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

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

// learn tells whether it is news that the bucket is there.
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
var expecting = regexp.MustCompile(`expecting ['"]([^'"]+)['"]`)

// regionIn finds the region of a bucket in an answer, or "". It becomes a part of the host's name that the next request
// goes to, so it must not be anything else.
func regionIn(header, message string) string {
	if header == "" {
		if found := expecting.FindStringSubmatch(message); found != nil {
			header = found[1]
		}
	}
	if !regionPattern.MatchString(header) {
		return ""
	}
	return header
}

// follow remembers where a bucket is that is not where it was looked for, and tells whether that is known now. A region
// that was given and is wrong is worth a warning: failing for it would help nobody, as the golden has its digest.
func (c *s3Client) follow(ctx context.Context, bucket string, r *refusal) bool {
	if r.region == "" {
		r.region = c.regionOf(ctx, bucket)
	}
	if r.region == "" || r.region == r.askedRegion {
		return false
	}
	switch {
	case !c.regions.learn(bucket, r.region):
	case c.regions.named:
		c.log.Warn("the bucket is in another region than is set, and is asked there", "bucket", clip(printable(bucket)),
			"region", r.region, "set", r.askedRegion)
	default:
		c.log.Debug("the bucket is in another region", "bucket", clip(printable(bucket)), "region", r.region)
	}
	return true
}

// regionOf asks where a bucket is. S3 tells everybody, so the request is not signed: for a signature the region would
// have to be known.
func (c *s3Client) regionOf(ctx context.Context, bucket string) string {
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
