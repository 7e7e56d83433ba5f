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
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
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
	if p.result.Size > maxPut {
		return fmt.Errorf("%d bytes are more than the %d that one upload may have", p.result.Size, int64(maxPut))
	}
	client, err := p.store.s3Client(ctx)
	if err != nil {
		return err
	}
	o := object{client, bucket, key}
	for {
		p.tries++
		err := p.put(ctx, o)
		var refused *refusal
		switch {
		case err == nil:
			return nil
		case errors.As(err, &refused) && refused.status == http.StatusPreconditionFailed:
			return p.compareObject(ctx, o)
		}
		if err := p.again(ctx, err); err != nil {
			return err
		}
	}
}

// put uploads the file once. If it was ended from outside, the error is the cause.
func (p *publication) put(ctx context.Context, o object) error {
	f, err := p.open()
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := cmp.Or(max(p.store.Stall, 0), defaultStall)
	timer := time.AfterFunc(stall, func() { cancel(fmt.Errorf("%w (%v)", errStalled, stall)) })
	defer timer.Stop()

	err = o.create(ctx, &watchedFile{f, func() { timer.Reset(stall) }}, p.result)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// A watchedFile calls alive whenever a part of it is taken. It can be rewound, which signing needs.
type watchedFile struct {
	*os.File
	alive func()
}

func (f *watchedFile) Read(b []byte) (int, error) {
	f.alive()
	return f.File.Read(b)
}

// WriteTo keeps readers from going around Read.
func (f *watchedFile) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{f})
}

// create stores the body, unless there is an object already.
func (o object) create(ctx context.Context, body io.ReadSeeker, p Published) error {
	if err := o.signable(ctx); err != nil {
		return err
	}
	sum, err := hex.DecodeString(p.SHA256)
	if err != nil {
		return err
	}
	_, err = o.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &o.bucket, Key: &o.key, Body: body, ContentLength: &p.Size,
		ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum)),
		IfNoneMatch:    aws.String("*"),
	})
	if err != nil {
		return o.refused(err)
	}
	return nil
}

// signable tells an error of the credentials from one of the bucket, as open does.
func (o object) signable(ctx context.Context) error {
	if o.credentials == nil {
		return nil
	}
	if _, err := o.credentials.Retrieve(ctx); err != nil {
		return &credentialsError{err}
	}
	return nil
}

// compareObject compares the object that is there already with the file: by what the server says of it, and where that
// does not tell, by its bytes.
func (p *publication) compareObject(ctx context.Context, o object) error {
	head, err := o.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &o.bucket, Key: &o.key, ChecksumMode: types.ChecksumModeEnabled})
	if err != nil {
		return fmt.Errorf("there is an object already, and it cannot be compared: %w", o.refused(err))
	}
	if size := aws.ToInt64(head.ContentLength); size != p.result.Size {
		return p.otherBytes(size, "")
	}
	digest, ok := wholeDigest(head)
	if !ok {
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
