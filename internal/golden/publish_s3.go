package golden

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// maxPut is what S3 takes in one request: 5 GB
// (https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html).
const maxPut = 5 << 30

// object is the object of a bucket that a file becomes.
type object struct {
	*s3Client
	bucket, key string
}

// toS3 publishes to a bucket, in several tries if that may help.
func (p *publication) toS3(ctx context.Context, bucket, key string) error {
	if err := p.measure(); err != nil {
		return err
	}
	client, err := p.store.s3Client(ctx)
	if err != nil {
		return err
	}
	o := object{client, bucket, key}
	upload := p.put
	if p.result.Size > cmp.Or(p.store.s3.maxPut, maxPut) {
		upload = p.putParts
		if there, err := p.isThere(ctx, o); there || err != nil {
			return err
		}
	}
	for {
		p.tries++
		err := upload(ctx, o)
		switch {
		case err == nil:
			return nil
		case isTaken(err):
			return p.compareObject(ctx, o)
		}
		if err := p.again(ctx, p.tries, err); err != nil {
			return err
		}
	}
}

// isTaken tells whether there is an object of this name already.
func isTaken(err error) bool {
	var refused *refusal
	return errors.As(err, &refused) && refused.status == http.StatusPreconditionFailed
}

// put uploads the file in one request.
func (p *publication) put(ctx context.Context, o object) error {
	f, err := p.open()
	if err != nil {
		return err
	}
	defer f.Close()
	return p.guarded(ctx, func(ctx context.Context, alive func()) error {
		return o.create(ctx, &watched{f, alive}, p.result)
	})
}

// guarded runs a step of an upload, until nothing moves for too long. If it was ended from outside, the error is the cause.
func (p *publication) guarded(ctx context.Context, step func(ctx context.Context, alive func()) error) error {
	ctx, alive, stop := retry.Watch(ctx, p.store.Stall)
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

// create stores the body, unless there is an object already.
func (o object) create(ctx context.Context, body io.ReadSeeker, p Published) error {
	sum, err := checksum(p.SHA256)
	if err != nil {
		return err
	}
	return o.call(ctx, o.bucket, func(in func(*s3.Options)) error {
		if _, err := body.Seek(0, io.SeekStart); err != nil {
			return err
		}
		_, err := o.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &o.bucket, Key: &o.key, Body: body, ContentLength: &p.Size, ContentType: contentType(o.key),
			ChecksumSHA256: &sum, IfNoneMatch: aws.String("*"),
		}, in)
		return err
	})
}

// checksum writes a digest as S3 does.
func checksum(digest string) (string, error) {
	sum, err := hex.DecodeString(digest)
	return base64.StdEncoding.EncodeToString(sum), err
}

// contentType keeps servers between a bucket and its readers from taking a golden for text to compress or to convert.
func contentType(key string) *string {
	switch path.Ext(key) {
	case ".gz":
		return aws.String("application/gzip")
	case ".jsonl":
		return aws.String("application/x-ndjson")
	}
	return aws.String("application/octet-stream")
}

// compareObject compares the object that is there already with the file: by what the server says of it, and where that
// does not tell, by its bytes.
func (p *publication) compareObject(ctx context.Context, o object) error {
	head, err := o.head(ctx)
	if err != nil {
		return fmt.Errorf("there is an object already, and it cannot be compared: %w", err)
	}
	return p.compareWith(ctx, o, head)
}

func (p *publication) compareWith(ctx context.Context, o object, head *s3.HeadObjectOutput) error {
	if size := aws.ToInt64(head.ContentLength); size != p.result.Size {
		return p.otherBytes(size, "")
	}
	digest, ok := wholeDigest(head)
	if !ok {
		var err error
		if digest, err = o.digest(ctx); err != nil {
			return fmt.Errorf("there is an object of the same size already, and it cannot be compared: %w", err)
		}
	}
	if digest != p.result.SHA256 {
		return p.otherBytes(p.result.Size, digest)
	}
	p.result.Existed = true
	return nil
}

func (o object) head(ctx context.Context) (head *s3.HeadObjectOutput, err error) {
	input := &s3.HeadObjectInput{Bucket: &o.bucket, Key: &o.key, ChecksumMode: types.ChecksumModeEnabled}
	err = o.call(ctx, o.bucket, func(in func(*s3.Options)) (err error) {
		head, err = o.HeadObject(ctx, input, in)
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

// digest reads the object.
func (o object) digest(ctx context.Context) (string, error) {
	body, err := o.open(ctx, o.bucket, o.key, span{})
	if err != nil {
		return "", err
	}
	defer body.Close()
	digest, _, err := digestOf(body)
	return digest, err
}
