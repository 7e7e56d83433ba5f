package s3store

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/golden"
)

// maxPut is the largest object that S3 takes in one request: 5 GB
// (https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html). A golden has at most [golden.DefaultMaxSize].
const maxPut = 5 << 30

// An upload makes an object of a file.
type upload struct {
	*client
	golden.Upload
	bucket, key string
	created     golden.Created
}

// Create uploads a file, in several tries if that may help. The request has If-None-Match and the SHA-256 of what it sends, so the
// server refuses other bytes and never overwrites an object. An object that exists already is compared with the file.
func (s *store) Create(ctx context.Context, bucket, key string, file golden.Upload) (golden.Created, error) {
	if file.Size > maxPut {
		return golden.Created{}, fmt.Errorf("it has %d bytes, and S3 takes at most %d in one request: upload it with another tool", file.Size, int64(maxPut))
	}
	c, err := s.connect(ctx)
	if err != nil {
		return golden.Created{}, err
	}
	u := &upload{client: c, Upload: file, bucket: bucket, key: key}
	err = u.run(ctx)
	var refused *refusal
	if errors.As(err, &refused) {
		refused.writing = true
	}
	return u.created, err
}

func (u *upload) run(ctx context.Context) error {
	for {
		u.created.Tries++
		err := u.put(ctx)
		if err == nil {
			return nil
		}
		if statusOf(err) == http.StatusPreconditionFailed { // there is an object of this name already
			return u.compare(ctx)
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
	wait := u.Backoff(try)
	u.Log.Warn("golden not published, trying again", "golden", u.Shown, "try", try, "wait", wait.Round(time.Millisecond), "error", golden.Reason(err))
	return retry.Pause(ctx, wait)
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
