package golden

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// keep puts data into the cache of the store.
func keep(tb testing.TB, s *Store, data []byte) {
	tb.Helper()
	write(tb, filepath.Join(s.Cache, entryName(digest(data))), data)
}

// BenchmarkCached is what a run pays for a golden that it has: reading and hashing it.
func BenchmarkCached(b *testing.B) {
	for _, size := range []int{50_000, 5_000_000} {
		data := bytes.Repeat([]byte("x"), size)
		s := &Store{Cache: b.TempDir()}
		keep(b, s, data)
		b.Run(map[int]string{50_000: "50kB", 5_000_000: "5MB"}[size], func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Fetch(b.Context(), Object{Location: "s3://bucket/key", SHA256: digest(data), Size: int64(size)}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPull is what a run pays for 30 goldens of 5 MB that it has not, from a real S3 server on this machine, beside
// what curl takes for the same objects in the same run: vs-curl is how many times as long.
func BenchmarkPull(b *testing.B) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		b.Skip("no curl here")
	}
	server, client := startS3(b)
	const policy = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::goldens/*"}]}`
	if _, err := client.PutBucketPolicy(b.Context(), &s3.PutBucketPolicyInput{Bucket: ptr(bucket), Policy: ptr(policy)}); err != nil {
		b.Fatal(err)
	}
	var objects []Object
	arguments := []string{"--silent", "--show-error", "--fail", "--parallel"}
	for i := range 30 {
		data := noise(5_000_000 + i)
		key := fmt.Sprintf("golden-%d", i)
		put(b, client, key, data)
		objects = append(objects, Object{Location: "s3://" + bucket + "/" + key, SHA256: digest(data), Size: int64(len(data))})
		arguments = append(arguments, "--output", key, server.Endpoint+"/"+bucket+"/"+key)
	}
	var ours, theirs time.Duration
	for b.Loop() {
		ours += pullAll(b, objects)
		theirs += run(b, curl, arguments...)
	}
	n := float64(b.N)
	b.ReportMetric(float64(ours.Milliseconds())/n, "pull-ms/op")
	b.ReportMetric(float64(theirs.Milliseconds())/n, "curl-ms/op")
	b.ReportMetric(ours.Seconds()/theirs.Seconds(), "vs-curl")
}

// pullAll pulls objects into a new cache, and tells how long that took.
func pullAll(b *testing.B, objects []Object) time.Duration {
	dir, err := os.MkdirTemp(b.TempDir(), "")
	if err != nil {
		b.Fatal(err)
	}
	s := &Store{Cache: dir}
	start := time.Now()
	for _, p := range s.Pull(b.Context(), objects) {
		if p.Err != nil || p.Cached {
			b.Fatal(p.Cached, p.Err)
		}
	}
	took := time.Since(start)
	os.RemoveAll(dir)
	return took
}

// run runs a command in a new directory, and tells how long that took.
func run(b *testing.B, name string, arguments ...string) time.Duration {
	dir, err := os.MkdirTemp(b.TempDir(), "")
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(name, arguments...)
	cmd.Dir = dir
	start := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(start)
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	os.RemoveAll(dir)
	return took
}
