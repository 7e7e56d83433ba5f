package s3store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/golden"
)

const (
	// maxPut is what S3 takes in one request: 5 GB
	// (https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html).
	maxPut   = 5 << 30
	minPart  = 64 << 20 // bytes
	maxParts = 10_000   // of an upload (https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html)
	// joinTimeout is how long a server may take to make one object of the parts.
	joinTimeout  = 10 * time.Minute
	abortTimeout = 30 * time.Second
)

// An upload makes an object of a file.
type upload struct {
	*client
	golden.Upload
	bucket, key string
	inParts     bool
	partSize    int64 // bytes
	created     golden.Created
}

// Create uploads a file, in several tries if that may help: in one request up to 5 GB, which is the most that S3 takes, and in
// parts above. It goes with If-None-Match and its SHA-256, so the server refuses other bytes than were hashed, and never
// overwrites. Where there is an object, it is compared.
func (s *store) Create(ctx context.Context, bucket, key string, file golden.Upload) (golden.Created, error) {
	c, err := s.connect(ctx)
	if err != nil {
		return golden.Created{}, err
	}
	u := &upload{
		client: c, Upload: file, bucket: bucket, key: key, inParts: file.Size > cmp.Or(s.maxPut, maxPut),
		partSize: partSize(cmp.Or(s.minPart, minPart), file.Size),
	}
	err = u.run(ctx)
	var refused *refusal
	if errors.As(err, &refused) {
		refused.writing = true
	}
	return u.created, err
}

// partSize is at least the least, and such that there are not too many parts.
func partSize(least, size int64) int64 { return max(least, (size+maxParts-1)/maxParts) }

func (u *upload) run(ctx context.Context) error {
	step := u.put
	if u.inParts {
		step = u.putParts
		// An upload in parts is refused only at its end, so what is there already is compared before. Those who may not
		// read may still write, and a HEAD cannot say what else is wrong.
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
		switch {
		case err == nil:
			return nil
		case statusOf(err) == http.StatusPreconditionFailed: // there is an object of this name already
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

// again waits before the next try, or returns err if there is to be none. A conflict, which is another upload of the same key
// under way, says nothing about this one.
func (u *upload) again(ctx context.Context, try int, err error) error {
	var final *finalError
	if try == retry.Tries || ctx.Err() != nil || errors.As(err, &final) || !golden.Temporary(err) && statusOf(err) != http.StatusConflict {
		return err
	}
	wait := u.Backoff(try)
	u.Log.Warn("golden not published, trying again", "golden", u.Shown, "try", try, "wait", wait.Round(time.Millisecond), "error", golden.Reason(err))
	return retry.Pause(ctx, wait)
}

// guarded runs a step of an upload, until nothing moves for too long. If it was ended from outside, the error is the cause.
func (u *upload) guarded(ctx context.Context, step func(ctx context.Context, alive func()) error) error {
	ctx, alive, stop := retry.Watch(ctx, u.Stall)
	defer stop()
	err := step(ctx, alive)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// watched calls alive whenever a part of it is taken. It can be rewound, which signing and repeating need.
type watched struct {
	io.ReadSeeker
	alive func()
}

func (w *watched) Read(b []byte) (int, error) {
	w.alive()
	return w.ReadSeeker.Read(b)
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
	return u.guarded(ctx, func(ctx context.Context, alive func()) error {
		body := &watched{f, alive}
		return u.call(ctx, u.bucket, func(in func(*s3.Options)) error {
			if _, err := body.Seek(0, io.SeekStart); err != nil {
				return err
			}
			_, err := u.PutObject(ctx, &s3.PutObjectInput{
				Bucket: &u.bucket, Key: &u.key, Body: body, ContentLength: &u.Size, ContentType: aws.String(contentType(u.key)),
				ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum)), IfNoneMatch: aws.String("*"),
			}, in)
			return err
		})
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

// putParts uploads the file in as many requests as it needs. It becomes an object at the end, or leaves nothing.
func (u *upload) putParts(ctx context.Context) error {
	f, err := u.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	var id string
	err = u.persist(ctx, func(ctx context.Context, _ func()) error {
		return u.call(ctx, u.bucket, func(in func(*s3.Options)) error {
			begun, err := u.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
				Bucket: &u.bucket, Key: &u.key, ContentType: aws.String(contentType(u.key)), ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
			}, in)
			if err == nil {
				id = aws.ToString(begun.UploadId)
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	parts, err := u.sendParts(ctx, id, f)
	if err == nil {
		err = u.join(ctx, id, parts)
	}
	if err != nil {
		u.abort(ctx, id)
	}
	return err
}

// persist repeats a step of an upload in parts if that may help.
func (u *upload) persist(ctx context.Context, step func(ctx context.Context, alive func()) error) error {
	for try := 1; ; try++ {
		err := u.guarded(ctx, step)
		if err == nil {
			return nil
		}
		if err := u.again(ctx, try, err); err != nil {
			return &finalError{err}
		}
	}
}

// finalError is one for which everything was tried already.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

// sendParts uploads the parts, one after the other, and makes sure that they are the file that was hashed.
func (u *upload) sendParts(ctx context.Context, id string, f *os.File) ([]types.CompletedPart, error) {
	var parts []types.CompletedPart
	all := sha256.New()
	for offset := int64(0); offset < u.Size; offset += u.partSize {
		number := int32(len(parts) + 1)
		part, err := u.sendPart(ctx, id, number, io.NewSectionReader(f, offset, min(u.partSize, u.Size-offset)), all)
		if err != nil {
			return nil, fmt.Errorf("part %d: %w", number, err)
		}
		parts = append(parts, part)
	}
	if hex.EncodeToString(all.Sum(nil)) != u.SHA256 {
		return nil, errors.New("the file was changed while it was uploaded")
	}
	return parts, nil
}

func (u *upload) sendPart(ctx context.Context, id string, number int32, content *io.SectionReader, all io.Writer) (types.CompletedPart, error) {
	one := sha256.New()
	if _, err := io.Copy(io.MultiWriter(one, all), content); err != nil {
		return types.CompletedPart{}, err
	}
	part := types.CompletedPart{PartNumber: &number, ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(one.Sum(nil)))}
	err := u.persist(ctx, func(ctx context.Context, alive func()) error {
		return u.call(ctx, u.bucket, func(in func(*s3.Options)) error {
			if _, err := content.Seek(0, io.SeekStart); err != nil {
				return err
			}
			sent, err := u.UploadPart(ctx, &s3.UploadPartInput{
				Bucket: &u.bucket, Key: &u.key, UploadId: &id, PartNumber: &number, Body: &watched{content, alive},
				ContentLength: aws.Int64(content.Size()), ChecksumSHA256: part.ChecksumSHA256,
			}, in)
			if err == nil {
				part.ETag = sent.ETag
			}
			return err
		})
	})
	return part, err
}

// join makes the parts an object, unless there is one already.
func (u *upload) join(ctx context.Context, id string, parts []types.CompletedPart) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	for try := 1; ; try++ {
		err := u.call(ctx, u.bucket, func(in func(*s3.Options)) error {
			_, err := u.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
				Bucket: &u.bucket, Key: &u.key, UploadId: &id, IfNoneMatch: aws.String("*"),
				MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
			}, in)
			return err
		})
		var refused *refusal
		switch status := statusOf(err); {
		case err == nil, status == http.StatusConflict, status == http.StatusPreconditionFailed:
			return err
		case try > 1 && errors.As(err, &refused) && refused.code == "NoSuchUpload": // joined by a request whose answer was lost
			return u.compare(ctx)
		}
		if err := u.again(ctx, try, err); err != nil {
			return &finalError{err}
		}
	}
}

// abort frees the parts, which nobody would see but on the owner's bill. Its failure matters less than that of the upload.
func (u *upload) abort(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	err := u.call(ctx, u.bucket, func(in func(*s3.Options)) error {
		_, err := u.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &u.bucket, Key: &u.key, UploadId: &id}, in)
		return err
	})
	if err != nil {
		u.Log.Warn("the parts of an upload that failed are still in the bucket", "bucket", shown(u.bucket), "error", golden.Reason(err))
	}
}
