package s3store

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/vllm-vcr/conformance/internal/golden"
)

// faults stands between a store and a real server.
type faults struct {
	before func(*http.Request) *http.Response        // nil: passed on
	after  func(*http.Request, *http.Response) error // nil: as answered
	seen   []string                                  // what was asked for
}

// step names a request of an upload in parts.
func stepOf(r *http.Request) string {
	query := r.URL.Query()
	switch {
	case query.Has("uploads"):
		return "begin"
	case query.Has("partNumber"):
		return "part" + query.Get("partNumber")
	case r.Method == http.MethodPost:
		return "join"
	case r.Method == http.MethodDelete:
		return "abort"
	}
	return r.Method
}

func (f *faults) RoundTrip(r *http.Request) (*http.Response, error) {
	f.seen = append(f.seen, stepOf(r))
	if f.before != nil {
		if answer := f.before(r); answer != nil {
			return answer, nil
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && f.after != nil {
		if err := f.after(r, resp); err != nil {
			resp.Body.Close()
			return nil, err
		}
	}
	return resp, err
}

// once gives what next gives for the first request of a step.
func once(step string, next func(*http.Request) *http.Response) func(*http.Request) *http.Response {
	done := false
	return func(r *http.Request) *http.Response {
		if done || stepOf(r) != step {
			return nil
		}
		done = true
		return next(r)
	}
}

func answer(status int, code string) func(*http.Request) *http.Response {
	return func(r *http.Request) *http.Response {
		body := fmt.Sprintf(`<?xml version="1.0"?><Error><Code>%s</Code><Message>no</Message></Error>`, code)
		return &http.Response{
			StatusCode: status, Status: http.StatusText(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
			Header: http.Header{"Content-Type": {"application/xml"}}, Body: io.NopCloser(strings.NewReader(body)),
		}
	}
}

// largeFile has three parts of the least size that S3 takes.
func largeFile(t *testing.T) (string, []byte) {
	t.Helper()
	data := make([]byte, 12<<20)
	rand.Read(data)
	name := filepath.Join(t.TempDir(), "large.jsonl.gz")
	write(t, name, data)
	return name, data
}

// newPartedStore uploads in parts what is larger than 6 MiB.
func newPartedStore(t *testing.T, f *faults) *goldenStore {
	t.Helper()
	s := newStore(t)
	s.maxPut, s.minPart = 6<<20, 5<<20
	s.HTTP = &http.Client{Transport: f}
	return s
}

// wantNoParts makes sure that no parts are left in the bucket, which nobody sees but whoever pays.
func wantNoParts(t *testing.T, client *s3.Client) {
	t.Helper()
	left, err := client.ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: ptr(bucket)})
	if err != nil || len(left.Uploads) > 0 {
		t.Errorf("%d uploads are left, %v", len(left.Uploads), err)
	}
}

func TestRealS3PublishInParts(t *testing.T) {
	_, client := startS3(t)
	name, data := largeFile(t)
	putOf := func(key string, data []byte) func(*http.Request) *http.Response {
		return func(*http.Request) *http.Response { put(t, client, key, data); return nil }
	}
	const all = "HEAD begin part1 part2 part3 join"
	tests := []struct {
		name    string
		there   []byte // before
		before  func(key string) func(*http.Request) *http.Response
		after   func(*http.Request, *http.Response) error
		seen    string
		existed bool
		fails   []string
		exists  bool // the error is fs.ErrExist
	}{
		{name: "new", seen: all},
		{name: "there", there: data, seen: "HEAD GET", existed: true},
		{name: "other bytes there", there: bytes.Repeat([]byte("x"), len(data)), seen: "HEAD GET", fails: []string{"already exists with other bytes", "[exists]"}, exists: true},
		{name: "other size there", there: data[1:], seen: "HEAD", fails: []string{"already exists with other bytes"}, exists: true},
		{
			name: "a part is refused", seen: "HEAD begin part1 part2 part2 part3 join",
			before: func(string) func(*http.Request) *http.Response { return once("part2", answer(503, "SlowDown")) },
		},
		{
			name: "a part is refused for good", seen: "HEAD begin part1 part2 part2 part2 part2 abort", fails: []string{"HTTP status 503", "[server-busy]"},
			before: func(string) func(*http.Request) *http.Response {
				return func(r *http.Request) *http.Response {
					if stepOf(r) != "part2" {
						return nil
					}
					return answer(503, "SlowDown")(r)
				}
			},
		},
		{
			name: "beginning is refused", seen: "HEAD begin begin part1 part2 part3 join",
			before: func(string) func(*http.Request) *http.Response { return once("begin", answer(500, "InternalError")) },
		},
		{
			name: "conflict", seen: all + " abort begin part1 part2 part3 join",
			before: func(string) func(*http.Request) *http.Response {
				return once("join", answer(409, "ConditionalRequestConflict"))
			},
		},
		{
			name: "somebody else was faster", seen: all + " abort HEAD GET", existed: true,
			before: func(key string) func(*http.Request) *http.Response { return once("join", putOf(key, data)) },
		},
		{
			name: "something else was faster", seen: all + " abort HEAD", fails: []string{"already exists with other bytes"}, exists: true,
			before: func(key string) func(*http.Request) *http.Response { return once("join", putOf(key, content)) },
		},
		{
			name: "may not be looked at", seen: all,
			before: func(string) func(*http.Request) *http.Response { return once("HEAD", answer(403, "AccessDenied")) },
		},
		{
			name: "joined, but not answered", seen: all + " join",
			after: func(r *http.Request, _ *http.Response) error {
				if stepOf(r) == "join" {
					return errors.New("connection lost")
				}
				return nil
			},
		},
		{
			name: "joined, not answered, and forgotten", seen: all + " join abort HEAD GET", existed: true,
			before: func(string) func(*http.Request) *http.Response {
				joins := 0
				return func(r *http.Request) *http.Response {
					if stepOf(r) == "join" {
						joins++
					}
					if joins != 2 || stepOf(r) != "join" {
						return nil
					}
					return answer(404, "NoSuchUpload")(r)
				}
			},
			after: func(r *http.Request, _ *http.Response) error {
				if stepOf(r) == "join" {
					return errors.New("connection lost")
				}
				return nil
			},
		},
	}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			key := fmt.Sprintf("large-%d.jsonl.gz", i)
			if test.there != nil {
				put(t, client, key, test.there)
			}
			f := &faults{}
			if test.before != nil {
				f.before = test.before(key)
			}
			if lost := test.after; lost != nil {
				f.after = func(r *http.Request, resp *http.Response) error {
					err := lost(r, resp)
					if err != nil {
						f.after = nil
					}
					return err
				}
			}
			s := newPartedStore(t, f)
			p, err := s.Publish(t.Context(), "s3://"+bucket+"/"+key, name)
			if got := strings.Join(f.seen, " "); got != test.seen {
				t.Errorf("asked for %s, want %s", got, test.seen)
			}
			wantNoParts(t, client)
			if len(test.fails) > 0 {
				wantPublishError(t, err, test.fails...)
				if errors.Is(err, fs.ErrExist) != test.exists {
					t.Errorf("fs.ErrExist is not %t: %v", test.exists, err)
				}
				return
			}
			if err != nil || p.Existed != test.existed || p.SHA256 != digest(data) || p.Size != int64(len(data)) {
				t.Fatalf("got %+v, %v", p, err)
			}
			stored, _, err := openKey(t.Context(), s, key, golden.Span{})
			if err != nil || !bytes.Equal(stored, data) {
				t.Errorf("stored are %d bytes, %v", len(stored), err)
			}
		})
	}
}

// What is stored is what was hashed, even if the file does not stand still.
func TestRealS3PublishOfAFileThatChanges(t *testing.T) {
	_, client := startS3(t)
	name, _ := largeFile(t)
	s := newPartedStore(t, &faults{before: once("begin", func(*http.Request) *http.Response {
		file, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err == nil {
			_, err = file.WriteAt([]byte("other bytes than the random ones"), 11<<20)
		}
		if err := errors.Join(err, file.Close()); err != nil {
			t.Error(err)
		}
		return nil
	})})
	_, err := s.Publish(t.Context(), "s3://"+bucket+"/key", name)
	wantPublishError(t, err, "the file was changed while it was uploaded")
	wantNoParts(t, client)
	if _, err := client.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: ptr(bucket), Key: ptr("key")}); err == nil {
		t.Error("it was stored")
	}
}

func TestContentType(t *testing.T) {
	for key, want := range map[string]string{
		"a/b.jsonl.gz": "application/gzip", "a.jsonl": "application/x-ndjson", "a.gz/b": "application/octet-stream",
	} {
		if got := contentType(key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
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
				if test.is != nil && !errors.Is(err, test.is) {
					t.Errorf("%v is not %v", err, test.is)
				}
			}
			var methods []string
			for _, r := range fake.Requests {
				methods = append(methods, r.Method)
			}
			if got := strings.Join(methods, " "); got != test.asked {
				t.Errorf("asked %s, want %s", got, test.asked)
			}
			put := fake.Requests[0].Header
			if put.Get("If-None-Match") != "*" || put.Get("X-Amz-Checksum-Sha256") != base64Of(content) {
				t.Errorf("uploaded with %v", put)
			}
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
