package golden

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
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

const (
	minPart  = 64 << 20 // bytes
	maxParts = 10_000   // of an upload (https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html)
	// joinTimeout is how long a server may take to make one object of the parts.
	joinTimeout  = 10 * time.Minute
	abortTimeout = 30 * time.Second
)

// isThere compares with what is there already, as an upload in parts is refused only at its end.
func (p *publication) isThere(ctx context.Context, o object) (bool, error) {
	head, err := o.head(ctx)
	var refused *refusal
	if errors.As(err, &refused) && refused.status < http.StatusInternalServerError {
		return false, nil // those who may not read may still write; and a HEAD cannot say what else is wrong
	}
	if err != nil {
		return false, err
	}
	return true, p.compareWith(ctx, o, head)
}

// parted is an upload in parts that has begun.
type parted struct {
	object
	id   string
	file *os.File
	size int64     // of a part but the last, in bytes
	all  hash.Hash // of the parts so far
}

// putParts uploads the file in as many requests as it needs. It becomes an object at the end, or leaves nothing.
func (p *publication) putParts(ctx context.Context, o object) error {
	f, err := p.open()
	if err != nil {
		return err
	}
	defer f.Close()
	u := parted{object: o, file: f, size: p.partSize(), all: sha256.New()}
	if u.id, err = p.begin(ctx, o); err != nil {
		return err
	}
	parts, err := p.sendAll(ctx, u)
	if err == nil {
		err = p.join(ctx, u, parts)
	}
	if err != nil {
		u.abort(ctx)
	}
	return err
}

// partSize is such that there are not too many parts.
func (p *publication) partSize() int64 {
	return max(cmp.Or(p.store.s3.minPart, minPart), (p.result.Size+maxParts-1)/maxParts)
}

// persist repeats a step of an upload in parts if that may help.
func (p *publication) persist(ctx context.Context, step func(ctx context.Context, alive func()) error) error {
	for try := 1; ; try++ {
		err := p.guarded(ctx, step)
		if err == nil {
			return nil
		}
		if err := p.again(ctx, try, err); err != nil {
			return &finalError{err}
		}
	}
}

// finalError is one for which everything was tried already.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

func (p *publication) begin(ctx context.Context, o object) (id string, err error) {
	err = p.persist(ctx, func(ctx context.Context, _ func()) error {
		return o.call(ctx, o.bucket, func(in func(*s3.Options)) error {
			begun, err := o.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
				Bucket: &o.bucket, Key: &o.key, ContentType: contentType(o.key), ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
			}, in)
			if err == nil {
				id = aws.ToString(begun.UploadId)
			}
			return err
		})
	})
	return id, err
}

// sendAll uploads the parts, one after the other, and makes sure that they are the file that was hashed.
func (p *publication) sendAll(ctx context.Context, u parted) ([]types.CompletedPart, error) {
	var parts []types.CompletedPart
	for offset := int64(0); offset < p.result.Size; offset += u.size {
		number := int32(len(parts) + 1)
		part, err := p.send(ctx, u, number, io.NewSectionReader(u.file, offset, min(u.size, p.result.Size-offset)))
		if err != nil {
			return nil, fmt.Errorf("part %d: %w", number, err)
		}
		parts = append(parts, part)
	}
	if hex.EncodeToString(u.all.Sum(nil)) != p.result.SHA256 {
		return nil, errors.New("the file was changed while it was uploaded")
	}
	return parts, nil
}

func (p *publication) send(ctx context.Context, u parted, number int32, content *io.SectionReader) (types.CompletedPart, error) {
	one := sha256.New()
	if _, err := io.Copy(io.MultiWriter(one, u.all), content); err != nil {
		return types.CompletedPart{}, err
	}
	part := types.CompletedPart{PartNumber: &number, ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(one.Sum(nil)))}
	err := p.persist(ctx, func(ctx context.Context, alive func()) error {
		return u.call(ctx, u.bucket, func(in func(*s3.Options)) error {
			if _, err := content.Seek(0, io.SeekStart); err != nil {
				return err
			}
			sent, err := u.UploadPart(ctx, &s3.UploadPartInput{
				Bucket: &u.bucket, Key: &u.key, UploadId: &u.id, PartNumber: &number, Body: &watched{content, alive},
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
func (p *publication) join(ctx context.Context, u parted, parts []types.CompletedPart) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	for try := 1; ; try++ {
		err := u.call(ctx, u.bucket, func(in func(*s3.Options)) error {
			_, err := u.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
				Bucket: &u.bucket, Key: &u.key, UploadId: &u.id, IfNoneMatch: aws.String("*"),
				MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
			}, in)
			return err
		})
		switch {
		case err == nil, isConflict(err), isTaken(err):
			return err
		case try > 1 && isJoined(err): // by a request whose answer was lost
			return p.compareObject(ctx, u.object)
		}
		if err := p.again(ctx, try, err); err != nil {
			return &finalError{err}
		}
	}
}

// isJoined tells whether the upload is over.
func isJoined(err error) bool {
	var refused *refusal
	return errors.As(err, &refused) && refused.code == "NoSuchUpload"
}

// abort frees the parts, which nobody would see but the owner's bill. What it comes to is of no more interest than why.
func (u parted) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	err := u.call(ctx, u.bucket, func(in func(*s3.Options)) error {
		_, err := u.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &u.bucket, Key: &u.key, UploadId: &u.id}, in)
		return err
	})
	if err != nil {
		u.log.Warn("the parts of an upload that failed are still in the bucket", "bucket", clip(printable(u.bucket)), "error", reason(err))
	}
}
