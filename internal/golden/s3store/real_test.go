package s3store

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

const bucket = "goldens"

// startS3 starts a real server with a bucket, and points the environment at it.
func startS3(t testing.TB) (*testenv.S3Server, *s3.Client) {
	t.Helper()
	return startS3With(t, testenv.S3Config{})
}

func startS3With(t testing.TB, config testenv.S3Config) (*testenv.S3Server, *s3.Client) {
	t.Helper()
	withoutAWS(t)
	server := testenv.S3With(t, config)
	setenv(t, server.Env())
	client := s3.New(s3.Options{
		UsePathStyle: true, BaseEndpoint: ptr(server.Endpoint), Region: testenv.S3Region,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: testenv.S3AccessKey, SecretAccessKey: testenv.S3SecretKey}, nil
		}),
	})
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: ptr(bucket)}); err != nil {
		t.Fatal(err)
	}
	return server, client
}

func ptr[T any](v T) *T { return &v }

func put(t testing.TB, client *s3.Client, key string, data []byte) {
	t.Helper()
	_, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: ptr(bucket), Key: &key, Body: bytes.NewReader(data)})
	require.NoError(t, err)
}

// Every golden of this repository, by its manifest, from a bucket with a prefix.
func TestRealS3ServesTheGoldens(t *testing.T) {
	_, client := startS3(t)
	root := filepath.Join("..", "..", "..")
	registry, findings := manifest.Load(filepath.Join(root, "conformance", "manifest.toml"))
	for _, finding := range findings {
		t.Log(finding)
	}
	if len(registry.Goldens) == 0 {
		t.Fatal("no goldens in the manifest")
	}
	s := newStore(t)
	s.Bucket = "s3://" + bucket + "/ci/"
	for _, g := range registry.Goldens {
		want, err := os.ReadFile(filepath.Join(root, "testdata", "goldens", filepath.FromSlash(g.BucketPath)))
		require.NoError(t, err)
		put(t, client, "ci/"+g.BucketPath, want)
		for range 2 { // the second from the cache
			got, err := s.Fetch(t.Context(), golden.Object{Location: g.Location(s.Bucket, ""), SHA256: g.SHA256, Size: g.Size})
			require.True(t, err == nil && bytes.Equal(got, want), "%s: got %d bytes, %v; want %d", g.BucketPath, len(got), err, len(want))
		}
	}
}

func TestRealS3Keys(t *testing.T) {
	server, client := startS3(t)
	keys := []string{"a", "a b+c%20d.jsonl", "ünï/码.jsonl.gz", "deep/er/é&=;,@!$'()*~.jsonl", "conformance/v0.33.0/H200/Qwen/Qwen3-8B/s7.jsonl.gz"}
	for _, key := range keys {
		put(t, client, key, content)
		s := newStore(t)
		s.S3.Endpoint = server.Endpoint
		wantContent(t, s, "S3://"+bucket+"/"+key)
	}
}

func TestRealS3ContentEncoding(t *testing.T) {
	_, client := startS3(t)
	_, err := client.PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: ptr(bucket), Key: ptr("a"), Body: bytes.NewReader(content), ContentEncoding: ptr("gzip"),
	})
	require.NoError(t, err)
	wantContent(t, newStore(t), "s3://"+bucket+"/a")
}

func TestRealS3Refusals(t *testing.T) {
	_, client := startS3(t)
	put(t, client, "key", content)
	none := map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
	tests := []struct {
		name, location string
		env            map[string]string
		status         int
		want           []string
	}{
		{name: "no key", location: "s3://goldens/none", status: 404, want: []string{"NoSuchKey", "no such key: check bucket_path", "[no-key]"}},
		{name: "no bucket", location: "s3://none-such/key", status: 404, want: []string{"NoSuchBucket", "no such bucket: check CONFORMANCE_BUCKET", "[no-bucket]"}},
		{
			name: "wrong secret", location: "s3://goldens/key", env: map[string]string{"AWS_SECRET_ACCESS_KEY": "topsecret"},
			status: 403, want: []string{"SignatureDoesNotMatch", "credentials are wrong", "[wrong-signature]"},
		},
		{
			name: "unknown user", location: "s3://goldens/key", env: map[string]string{"AWS_ACCESS_KEY_ID": "nobody"},
			status: 404, want: []string{"XAdminUserNotFound", "nobody has this access key", "[unknown-access-key]"},
		},
		{name: "not public", location: "s3://goldens/key", env: none, status: 403, want: []string{"AccessDenied", "no AWS credentials were found", "forks", "[no-credentials]"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			setenv(t, test.env)
			s := newStore(t)
			_, err := fetchContent(t, s, test.location)
			failed := wantFetchError(t, err, append(test.want, "golden "+test.location+": HTTP status ")...)
			require.True(t, failed.Status == test.status && failed.Tries == 1, "status %d after %d tries, want %d after 1", failed.Status, failed.Tries, test.status)
		})
	}
}

func TestRealS3PublicBucketNeedsNoCredentials(t *testing.T) {
	_, client := startS3(t)
	put(t, client, "key", content)
	const policy = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::goldens/*"}]}`
	_, err := client.PutBucketPolicy(t.Context(), &s3.PutBucketPolicyInput{Bucket: ptr(bucket), Policy: ptr(policy)})
	require.NoError(t, err)
	setenv(t, map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""})
	wantContent(t, newStore(t), "s3://"+bucket+"/key")
}
