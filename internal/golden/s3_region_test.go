package golden

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/vllm-vcr/conformance/internal/testenv"
)

// signedFor is the region of a request's signature.
func signedFor(r *http.Request) string {
	_, scope, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=AKID/")
	if parts := strings.Split(scope, "/"); len(parts) > 1 {
		return parts[1]
	}
	return "none"
}

func TestS3FollowsTheBucket(t *testing.T) {
	malformed := func(message string) step { return s3Error(400, "AuthorizationHeaderMalformed", message) }
	tests := []struct {
		name   string
		region string // that is set
		steps  []step
		asked  string // regions of the signatures
		warns  bool
		fails  string
	}{
		{name: "header", steps: []step{inRegion("eu-west-1", status(301)), serve(content)}, asked: "us-east-1 eu-west-1 eu-west-1"},
		{
			name: "message", steps: []step{malformed("the region 'us-east-1' is wrong; expecting 'eu-west-1'"), serve(content)},
			asked: "us-east-1 eu-west-1 eu-west-1",
		},
		{
			name: "asked for", steps: []step{status(301), inRegion("eu-west-1", status(403)), serve(content)},
			asked: "us-east-1 none eu-west-1 eu-west-1",
		},
		{
			name: "asked for in vain", steps: []step{malformed("no"), status(403)}, asked: "us-east-1 none",
			fails: "not in region us-east-1: set AWS_REGION to its own [wrong-region]",
		},
		{name: "denied", steps: []step{inRegion("eu-west-1", status(403)), serve(content)}, asked: "us-east-1 eu-west-1 eu-west-1"},
		{
			name: "set and wrong", region: "ap-south-1", steps: []step{inRegion("eu-west-1", status(301)), serve(content)},
			asked: "ap-south-1 eu-west-1 eu-west-1", warns: true,
		},
		{name: "set and right", region: "eu-west-1", steps: []step{serve(content)}, asked: "eu-west-1 eu-west-1"},
		{
			name: "hostile", steps: []step{inRegion("evil.test/x?", status(301)), inRegion("evil.test#", status(403))},
			asked: "us-east-1 none", fails: "not in region us-east-1",
		},
		{
			name: "hostile message", steps: []step{malformed("expecting 'evil.test/x'"), status(403)},
			asked: "us-east-1 none", fails: "not in region us-east-1",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake, s := newFakeS3(t, test.steps...)
			s.S3.Region = test.region
			out := logTo(s)
			if test.fails == "" {
				wantKey(t, s, "a")
				wantKey(t, s, "b") // where the first one was found
			} else {
				_, err := fetchContent(t, s, "s3://"+bucket+"/a")
				wantFetchError(t, err, test.fails)
			}
			var asked []string
			for _, r := range fake.requests {
				asked = append(asked, signedFor(r))
			}
			if got := strings.Join(asked, " "); got != test.asked {
				t.Errorf("asked in %s, want %s", got, test.asked)
			}
			if got := strings.Count(out.String(), "level=WARN"); (got == 1) != test.warns || got > 1 {
				t.Errorf("%d warnings: %s", got, out)
			}
		})
	}
}

// Each bucket has a region of its own.
func TestS3RegionsOfBuckets(t *testing.T) {
	fake, s := newFakeS3(t, inRegion("eu-west-1", status(301)), serve(content), serve(content))
	wantKey(t, s, "a")
	if _, err := fetchContent(t, s, "s3://other/a"); err != nil {
		t.Fatal(err)
	}
	if got := signedFor(fake.requests[2]); got != defaultRegion {
		t.Errorf("another bucket is looked for in %s", got)
	}
}

func TestRealS3RegionThatIsWrong(t *testing.T) {
	server, client := startS3(t)
	put(t, client, "key", content)
	setenv(t, map[string]string{"AWS_REGION": "eu-west-1"})
	s := newStore(t)
	out := logTo(s)
	wantContent(t, s, "s3://"+bucket+"/key")
	wantPublished(t, s, "s3://"+bucket+"/new", contentFile(t), false)
	if got := out.String(); strings.Count(got, "in another region than is set") != 1 || !strings.Contains(got, "region=us-east-1 set=eu-west-1") {
		t.Errorf("not warned once of the region: %s", got)
	}
	// The option is stronger than the environment.
	s = newStore(t)
	s.S3 = S3Options{Region: testenv.S3Region, Endpoint: server.Endpoint}
	out = logTo(s)
	wantKey(t, s, "key")
	if strings.Contains(out.String(), "another region") {
		t.Errorf("followed for no reason: %s", out)
	}
	// Unsigned requests name no region, so none is wrong.
	s = newStore(t)
	s.S3 = S3Options{Region: "eu-west-1", Anonymous: On}
	_, err := fetchContent(t, s, "s3://"+bucket+"/key")
	wantFetchError(t, err, "403", "[no-credentials]")
}

// A client that speaks to S3 itself says where the bucket is by HEAD: the shape of what the tests above make up.
func TestRealS3TellsTheRegionToAnybody(t *testing.T) {
	_, client := startS3(t)
	if _, err := client.HeadBucket(t.Context(), &s3.HeadBucketInput{Bucket: ptr(bucket)}); err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	c, err := s.s3Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := c.regionOf(t.Context(), bucket); got != testenv.S3Region {
		t.Errorf("the bucket is in %q, want %s", got, testenv.S3Region)
	}
}

func TestNamesRegion(t *testing.T) {
	profile := filepath.Join(t.TempDir(), "config")
	write(t, profile, []byte("[profile ci]\nregion = eu-west-1\n[profile other]\n"))
	tests := []struct {
		name   string
		env    map[string]string
		region string
		want   bool
	}{
		{name: "nobody", region: defaultRegion},
		{name: "environment", env: map[string]string{"AWS_REGION": "eu-west-2"}, region: "eu-west-2", want: true},
		{name: "environment's default", env: map[string]string{"AWS_DEFAULT_REGION": "eu-west-2"}, region: "eu-west-2", want: true},
		{
			name: "environment before its default", region: "eu-west-2", want: true,
			env: map[string]string{"AWS_REGION": "eu-west-2", "AWS_DEFAULT_REGION": "eu-west-3"},
		},
		{name: "profile", env: map[string]string{"AWS_CONFIG_FILE": profile, "AWS_PROFILE": "ci"}, region: "eu-west-1", want: true},
		{name: "profile without", env: map[string]string{"AWS_CONFIG_FILE": profile, "AWS_PROFILE": "other"}, region: defaultRegion},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			withoutAWS(t)
			setenv(t, test.env)
			cfg, err := newStore(t).awsConfig(t.Context())
			if err != nil || cfg.Region != test.region || namesRegion(cfg) != test.want {
				t.Errorf("region %q, named %t, %v", cfg.Region, namesRegion(cfg), err)
			}
		})
	}
}

// Many requests at once find the region, and say so once.
func TestRealS3RegionThatIsWrongAtOnce(t *testing.T) {
	_, client := startS3(t)
	put(t, client, "key", content)
	setenv(t, map[string]string{"AWS_REGION": "eu-west-1"})
	s := newStore(t)
	out := logTo(s)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			if data, _, err := openKey(t.Context(), s, "key", span{}); err != nil || len(data) != len(content) {
				t.Errorf("got %d bytes, %v", len(data), err)
			}
		})
	}
	group.Wait()
	if got := strings.Count(out.String(), "in another region"); got != 1 {
		t.Errorf("said %d times: %s", got, out)
	}
}
