package golden

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
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
func newPartedStore(t *testing.T, f *faults) *Store {
	t.Helper()
	s := newStore(t)
	s.s3.maxPut, s.s3.minPart = 6<<20, 5<<20
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
			name: "a part is refused for good", seen: "HEAD begin part1 part2 part2 part2 part2 abort", fails: []string{"part 2: HTTP status 503", "[server-busy]"},
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
			name: "joined, not answered, and forgotten", seen: all + " join HEAD GET", existed: true,
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
			stored, _, err := openKey(t.Context(), s, key, span{})
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
			_, err = file.WriteAt([]byte("x"), 11<<20)
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

func TestPartSize(t *testing.T) {
	tests := []struct {
		name       string
		size, want int64
	}{
		{name: "just too large for one", size: maxPut + 1, want: minPart},
		{name: "as many parts as may be", size: maxParts * minPart, want: minPart},
		{name: "one byte more", size: maxParts*minPart + 1, want: minPart + 1},
		{name: "the largest object of S3", size: 50 << 40, want: (50<<40 + maxParts - 1) / maxParts},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := &publication{store: new(Store), result: Published{Size: test.size}}
			if got := p.partSize(); got != test.want || got*maxParts < test.size {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

func TestContentType(t *testing.T) {
	for key, want := range map[string]string{
		"a/b.jsonl.gz": "application/gzip", "a.jsonl": "application/x-ndjson", "a.gz/b": "application/octet-stream",
	} {
		if got := *contentType(key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
}

func TestRealS3ContentType(t *testing.T) {
	_, client := startS3(t)
	wantPublished(t, newStore(t), "s3://"+bucket+"/a.jsonl.gz", contentFile(t), false)
	head, err := client.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: ptr(bucket), Key: ptr("a.jsonl.gz")})
	if err != nil || *head.ContentType != "application/gzip" || head.ContentEncoding != nil && *head.ContentEncoding != "" {
		t.Errorf("stored as %+v, %v", head, err)
	}
}

// More than one request may carry, in little memory. It writes six gigabytes, so it wants to be asked for.
func TestRealS3PublishHuge(t *testing.T) {
	if os.Getenv("VLLM_VCR_HUGE") == "" {
		t.Skip("VLLM_VCR_HUGE is not set: it takes 6 GB of disk and a minute or two")
	}
	startS3(t)
	name := filepath.Join(t.TempDir(), "huge")
	const size = maxPut + 100<<20
	write(t, name, nil)
	if err := os.Truncate(name, size); err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	p, err := s.Publish(t.Context(), "s3://"+bucket+"/huge", name)
	if err != nil || p.Size != size || p.Existed {
		t.Fatalf("%+v, %v", p, err)
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	t.Logf("%d MB of the system", memory.Sys>>20)
	if memory.Sys > 128<<20 {
		t.Errorf("took %d MB", memory.Sys>>20)
	}
}
