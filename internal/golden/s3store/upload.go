package s3store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"path"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	awsretry "github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	managertypes "github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/golden"
)

const (
	// maxPut is the largest object that S3 takes in one request: 5 GB
	// (https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html).
	maxPut       = 5 << 30
	abortTimeout = 30 * time.Second
)

// An upload makes an object of a file.
type upload struct {
	*client
	golden.Upload
	bucket, key string
	inParts     bool
	partSize    int64 // bytes; 0: the default of the SDK
	created     golden.Created
}

// Create uploads a file, in several tries if that may help: in one request up to 5 GB, and in parts above. The requests have
// If-None-Match and the SHA-256 of what they send, so the server refuses other bytes and never overwrites an object. An object
// that exists already is compared with the file.
func (s *store) Create(ctx context.Context, bucket, key string, file golden.Upload) (golden.Created, error) {
	c, err := s.connect(ctx)
	if err != nil {
		return golden.Created{}, err
	}
	u := &upload{
		client: c, Upload: file, bucket: bucket, key: key, inParts: file.Size > cmp.Or(s.maxPut, maxPut),
		partSize: s.minPart,
	}
	err = u.run(ctx)
	var refused *refusal
	if errors.As(err, &refused) {
		refused.writing = true
	}
	return u.created, err
}

func (u *upload) run(ctx context.Context) error {
	step := u.put
	if u.inParts {
		step = u.putParts
		// An upload in parts is refused only at its end, so an object that exists is compared before. Credentials that may
		// not read may still write, and an answer to HEAD has no message that names another cause.
		head, err := u.head(ctx)
		if status := statusOf(err); err == nil {
			return u.compareWith(ctx, head)
		} else if status == 0 || status >= http.StatusInternalServerError {
			return err
		}
	}
	for {
		u.created.Tries++
		err := step(ctx)
		switch status := statusOf(err); {
		case err == nil:
			return nil
		case status == http.StatusPreconditionFailed: // there is an object of this name already
			return u.compare(ctx)
		case u.inParts && status != http.StatusConflict: // the SDK has tried each request again
			return err
		}
		if err := u.again(ctx, u.created.Tries, err); err != nil {
			return err
		}
	}
}

// statusOf is that of the answer that an error is about, or 0.
func statusOf(err error) int {
	var refused *refusal
	if errors.As(err, &refused) {
		return refused.Status
	}
	return 0
}

// again waits before the next try, or returns err if there is to be none. After a conflict, which is another upload of the same
// key, a try may succeed.
func (u *upload) again(ctx context.Context, try int, err error) error {
	if try == retry.Tries || ctx.Err() != nil || !golden.Temporary(err) && statusOf(err) != http.StatusConflict {
		return err
	}
	return retry.Pause(ctx, u.wait(try, err))
}

// wait logs that a request failed, and returns how long to wait before the next try.
func (u *upload) wait(try int, err error) time.Duration {
	wait := u.Backoff(try)
	u.Log.Warn("golden not published, trying again", "golden", u.Shown, "try", try, "wait", wait.Round(time.Millisecond), "error", golden.Reason(err))
	return wait
}

// put uploads the file in one request, unless there is an object already.
func (u *upload) put(ctx context.Context) error {
	f, err := u.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	sum, err := hex.DecodeString(u.SHA256)
	if err != nil {
		return err
	}
	return u.call(ctx, u.bucket, func(in func(*s3.Options)) error {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		_, err := u.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &u.bucket, Key: &u.key, Body: f, ContentLength: &u.Size, ContentType: aws.String(contentType(u.key)),
			ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum)), IfNoneMatch: aws.String("*"),
		}, in)
		return err
	})
}

// contentType keeps servers between a bucket and its readers from taking a golden for text to compress or to convert.
func contentType(key string) string {
	switch path.Ext(key) {
	case ".gz":
		return "application/gzip"
	case ".jsonl":
		return "application/x-ndjson"
	}
	return "application/octet-stream"
}

// compare compares the object that is there already with the file: by what the server says of it, and where that does not
// decide, by its bytes.
func (u *upload) compare(ctx context.Context) error {
	head, err := u.head(ctx)
	if err != nil {
		return fmt.Errorf("an object of this name exists already, and cannot be compared: %w", err)
	}
	return u.compareWith(ctx, head)
}

func (u *upload) compareWith(ctx context.Context, head *s3.HeadObjectOutput) error {
	if size := aws.ToInt64(head.ContentLength); size != u.Size {
		return u.OtherBytes(size, "")
	}
	digest, ok := wholeDigest(head)
	if !ok {
		body, err := u.client.open(ctx, u.bucket, u.key, golden.Span{})
		if err == nil {
			defer body.Close()
			h := sha256.New()
			_, err = io.Copy(h, body)
			digest = hex.EncodeToString(h.Sum(nil))
		}
		if err != nil {
			return fmt.Errorf("an object of this name and size exists already, and cannot be compared: %w", err)
		}
	}
	if digest != u.SHA256 {
		return u.OtherBytes(u.Size, digest)
	}
	u.created.Existed = true
	return nil
}

func (u *upload) head(ctx context.Context) (head *s3.HeadObjectOutput, err error) {
	input := &s3.HeadObjectInput{Bucket: &u.bucket, Key: &u.key, ChecksumMode: types.ChecksumModeEnabled}
	err = u.call(ctx, u.bucket, func(in func(*s3.Options)) (err error) {
		head, err = u.HeadObject(ctx, input, in)
		return err
	})
	return head, err
}

// wholeDigest is the SHA-256 of an object, if the server has it. That of an upload in parts is of something else.
func wholeDigest(head *s3.HeadObjectOutput) (string, bool) {
	sum, err := base64.StdEncoding.DecodeString(aws.ToString(head.ChecksumSHA256))
	if err != nil || len(sum) == 0 || head.ChecksumType == types.ChecksumTypeComposite {
		return "", false
	}
	return hex.EncodeToString(sum), true
}

// putParts uploads the file in as many requests as it needs, each with the SHA-256 of its part. It becomes an object at the end,
// or leaves nothing.
func (u *upload) putParts(ctx context.Context) error {
	f, err := u.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	used, err := u.signable(ctx)
	if err != nil {
		return err
	}
	region := u.regions.of(u.bucket)
	manager := transfermanager.New(s3.New(u.Options(), func(o *s3.Options) {
		o.Region, o.Retryer = region, u.partsRetryer(used, region)
	}), func(o *transfermanager.Options) {
		o.PartSizeBytes, o.MultipartUploadThreshold = u.partSize, u.partSize
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.Concurrency, o.FailTimeout = 1, abortTimeout
	})
	_, err = manager.UploadObject(ctx, &transfermanager.UploadObjectInput{
		Bucket: &u.bucket, Key: &u.key, Body: &hashed{f, sha256.New(), u.SHA256}, ContentLength: &u.Size,
		ContentType: aws.String(contentType(u.key)), ChecksumAlgorithm: managertypes.ChecksumAlgorithmSha256, IfNoneMatch: aws.String("*"),
	})
	switch refused := u.refused(err, used, region); {
	case refused == nil:
		return err
	case refused.code == "NoSuchUpload": // a request whose answer was lost made the object of the parts
		return u.compare(ctx)
	default:
		return refused
	}
}

// partsRetryer repeats the requests of an upload in parts as long as that may help.
func (u *upload) partsRetryer(used aws.Credentials, region string) aws.Retryer {
	return awsretry.NewStandard(func(o *awsretry.StandardOptions) {
		o.MaxAttempts, o.RateLimiter = retry.Tries, ratelimit.None
		o.Backoff = awsretry.BackoffDelayerFunc(func(try int, err error) (time.Duration, error) {
			if refused := u.refused(err, used, region); refused != nil {
				err = refused
			}
			return u.wait(try, err), nil
		})
		o.Retryables = append(o.Retryables, awsretry.IsErrorRetryableFunc(func(err error) aws.Ternary {
			if golden.Temporary(err) {
				return aws.TrueTernary
			}
			return aws.UnknownTernary
		}))
	})
}

// A hashed file returns an error at its end if it is not the file of which the digest is known.
type hashed struct {
	io.Reader
	sum  hash.Hash
	want string // SHA-256
}

func (h *hashed) Read(b []byte) (int, error) {
	n, err := h.Reader.Read(b)
	h.sum.Write(b[:n])
	if err == io.EOF && hex.EncodeToString(h.sum.Sum(nil)) != h.want {
		err = errors.New("the file was changed while it was uploaded")
	}
	return n, err
}
