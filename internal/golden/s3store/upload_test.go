package s3store

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestPublishTooMuch refuses what S3 would, before anything is sent.
func TestPublishTooMuch(t *testing.T) {
	_, err := (&store{}).Create(t.Context(), "bucket", "key", golden.Upload{Size: maxPut + 1})
	require.ErrorContains(t, err, "it has 5368709121 bytes, and S3 takes at most 5368709120 in one request")
}

func TestContentType(t *testing.T) {
	for key, want := range map[string]string{
		"a/b.jsonl.gz": "application/gzip", "a.jsonl": "application/x-ndjson", "a.gz/b": "application/octet-stream",
	} {
		require.Equal(t, contentType(key), want, "%s", key)
	}
}

// stored answers as a server does that has an object, with or without its checksum.
func stored(body []byte, checksum string) step {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		if checksum != "" {
			w.Header().Set("X-Amz-Checksum-Sha256", checksum)
		}
		w.Write(body) // not for HEAD
	}
}

// base64Of is the checksum as S3 writes it.
func base64Of(data []byte) string {
	sum := sha256.Sum256(data)
	return base64.StdEncoding.EncodeToString(sum[:])
}

func taken(w http.ResponseWriter, r *http.Request) {
	s3Error(http.StatusPreconditionFailed, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")(w, r)
}

// accept is a server that stores what it is sent.
func accept(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }

// hold takes the body and does not answer until the client has gone.
func hold(_ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func TestPublishToS3(t *testing.T) {
	other := append([]byte("x"), content[1:]...)
	conflict := s3Error(409, "ConditionalRequestConflict", "a conflicting operation is under way")
	const composite = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=-3"
	tests := []struct {
		name    string
		steps   []step
		asked   string // methods
		existed bool
		fails   []string
		is      error
	}{
		{name: "at once", steps: []step{accept}, asked: "PUT"},
		{name: "another upload at the same time", steps: []step{conflict, conflict, accept}, asked: "PUT PUT PUT"},
		{name: "overloaded", steps: []step{s3Error(503, "SlowDown", "slow"), status(500), drop, accept}, asked: "PUT PUT PUT PUT"},
		{name: "there, by checksum", steps: []step{taken, stored(content, base64Of(content))}, asked: "PUT HEAD", existed: true},
		{name: "there, by bytes", steps: []step{taken, stored(content, "")}, asked: "PUT HEAD GET", existed: true},
		{name: "there, uploaded in parts", steps: []step{taken, stored(content, composite)}, asked: "PUT HEAD GET", existed: true},
		{name: "stored, but not answered", steps: []step{drop, taken, stored(content, base64Of(content))}, asked: "PUT PUT HEAD", existed: true},
		{
			name: "other size", steps: []step{taken, stored(content[1:], base64Of(content))}, asked: "PUT HEAD",
			fails: []string{"already exists with other bytes: 3499 of them, not 3500", "nothing is ever overwritten"}, is: fs.ErrExist,
		},
		{
			name: "other bytes, by checksum", steps: []step{taken, stored(other, base64Of(other))}, asked: "PUT HEAD",
			fails: []string{"sha256 is " + digest(other) + ", not " + digest(content)}, is: fs.ErrExist,
		},
		{
			name: "other bytes, by bytes", steps: []step{taken, stored(other, "")}, asked: "PUT HEAD GET",
			fails: []string{"sha256 is " + digest(other)}, is: fs.ErrExist,
		},
		{
			name: "cannot be compared", steps: []step{taken, status(403)}, asked: "PUT HEAD",
			fails: []string{"already, and cannot be compared: HTTP status 403 Forbidden", "may not write this key, or not read it"},
		},
		{name: "overloaded for good", steps: []step{status(503)}, asked: "PUT PUT PUT PUT", fails: []string{"503 Service Unavailable (4 tries)"}},
		{name: "conflict for good", steps: []step{conflict}, asked: "PUT PUT PUT PUT", fails: []string{"409 Conflict: ConditionalRequestConflict"}},
		{name: "no condition", steps: []step{s3Error(501, "NotImplemented", "no")}, asked: "PUT", fails: []string{"does not know If-None-Match"}},
		{
			name: "denied", steps: []step{s3Error(403, "AccessDenied", "User: arn:aws:sts::123456789012:role/x may not\n::error::")}, asked: "PUT",
			fails: []string{"arn:aws:sts::…:role/x may not ::error::", "may not write this key"},
		},
		{name: "elsewhere", steps: []step{inRegion("eu-west-1", s3Error(301, "PermanentRedirect", "no")), accept}, asked: "PUT PUT"},
		{
			name: "elsewhere, and refused there too", steps: []step{inRegion("eu-west-1", s3Error(301, "PermanentRedirect", "no"))}, asked: "PUT PUT",
			fails: []string{"refuses it there", "[wrong-region]"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake, s := newFakeS3(t, test.steps...)
			if len(test.fails) == 0 {
				wantPublished(t, s, "s3://bucket/dir/key", contentFile(t), test.existed)
			} else {
				_, err := s.Publish(t.Context(), "s3://bucket/dir/key", contentFile(t))
				wantPublishError(t, err, append(test.fails, "publish to s3://bucket/dir/key: ")...)
				require.True(t, test.is == nil || errors.Is(err, test.is), "%v is not %v", err, test.is)
			}
			var methods []string
			for _, r := range fake.Requests {
				methods = append(methods, r.Method)
			}
			require.Equal(t, strings.Join(methods, " "), test.asked, "asked")
			put := fake.Requests[0].Header
			require.True(t, put.Get("If-None-Match") == "*" && put.Get("X-Amz-Checksum-Sha256") == base64Of(content), "uploaded with %v", put)
		})
	}
}

func TestPublishStalls(t *testing.T) {
	_, s := newFakeS3(t, hold, accept)
	s.Stall = patience
	wantPublished(t, s, "s3://bucket/key", contentFile(t), false)
}

func TestRealS3Publish(t *testing.T) {
	server, client := startS3(t)
	file := contentFile(t)
	const location = "s3://goldens/conformance/v0.33.0/H200/Qwen/Qwen3-8B/a b+c%20d-ü.jsonl.gz"
	s := newStore(t)
	wantPublished(t, s, location, file, false)
	wantPublished(t, s, location, file, true)
	wantContent(t, s, location)

	other := filepath.Join(t.TempDir(), "other")
	write(t, other, append([]byte("x"), content[1:]...))
	_, err := s.Publish(t.Context(), location, other)
	wantPublishError(t, err, "already exists with other bytes: their sha256 is "+digest(content))
	write(t, other, content[1:])
	_, err = s.Publish(t.Context(), location, other)
	wantPublishError(t, err, "already exists with other bytes: 3500 of them, not 3499")
	wantContent(t, newStore(t), location)

	// Stored by somebody who sent no checksum.
	put(t, client, "plain", content)
	wantPublished(t, s, "s3://goldens/plain", file, true)
	write(t, filepath.Join(server.Dir, bucket, "plain"), append([]byte("x"), content[1:]...))
	_, err = s.Publish(t.Context(), "s3://goldens/plain", file)
	wantPublishError(t, err, "already exists with other bytes: their sha256 is ")

	for _, name := range []string{"AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"} {
		t.Setenv(name, "")
	}
	_, err = newStore(t).Publish(t.Context(), "s3://goldens/new", file)
	if failed := wantPublishError(t, err, "no AWS credentials were found"); failed.Status != http.StatusForbidden || failed.Tries != 1 {
		t.Errorf("status %d after %d tries", failed.Status, failed.Tries)
	}
}

func TestRealS3PublishRefusals(t *testing.T) {
	server, _ := startS3(t)
	_, err := newStore(t).Publish(t.Context(), "s3://none-such/key", contentFile(t))
	wantPublishError(t, err, "NoSuchBucket", "check the location")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
	_, err = newStore(t).Publish(t.Context(), "s3://goldens/key", contentFile(t))
	wantPublishError(t, err, "SignatureDoesNotMatch", "credentials are wrong")
	setenv(t, server.Env())
	server.Stop()
	_, err = newStore(t).Publish(t.Context(), "s3://goldens/key", contentFile(t))
	wantPublishError(t, err, "connection refused (4 tries)")
}

// Of many uploads at once, one creates the object; the others find it.
func TestRealS3PublishAtOnce(t *testing.T) {
	startS3(t)
	s, file := newStore(t), contentFile(t)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := s.Publish(t.Context(), "s3://goldens/key", file); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	wantContent(t, s, "s3://goldens/key")
}
