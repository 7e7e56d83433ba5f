package main

import (
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/golden"
)

// storeFlags say where goldens are and how they are fetched.
type storeFlags struct {
	goldens, bucket, bundle string
	cache                   string
	offline                 bool
	maxSize                 int64
	timeout                 time.Duration // of a golden
	s3                      s3Flags
}

// s3Flags say how S3 is reached.
type s3Flags struct {
	golden.S3Options
	anonymous, pathStyle string
}

func (f *s3Flags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.anonymous, "anonymous", "auto", "do not sign S3 requests: auto (where there are no credentials), true, false")
	flags.StringVar(&f.Region, "region", "", "region of the bucket (default that of the environment, else where the bucket says it is)")
	flags.StringVar(&f.Endpoint, "endpoint-url", "", "URL of an S3 server other than AWS (default $AWS_ENDPOINT_URL_S3)")
	flags.StringVar(&f.pathStyle, "path-style", "auto", "put the bucket into the path of the URL: auto (with --endpoint-url), true, false")
	flags.StringVar(&f.Role, "role-to-assume", "", "ARN of an AWS role to assume with the identity that GitHub gives a job with id-token: write")
	flags.StringVar(&f.RoleSession, "role-session-name", "", "name of the session of that role (default vllm-vcr-$GITHUB_RUN_ID)")
}

// resolve reads the words of the flags.
func (f *s3Flags) resolve() (err error) {
	if f.Anonymous, err = golden.ParseSwitch(f.anonymous); err != nil {
		return fmt.Errorf("--anonymous %w", err)
	}
	if f.PathStyle, err = golden.ParseSwitch(f.pathStyle); err != nil {
		return fmt.Errorf("--path-style %w", err)
	}
	if f.Role != "" && f.Anonymous == golden.On {
		return fmt.Errorf("--role-to-assume and --anonymous true: want one of the two")
	}
	return f.Check()
}

func (f *storeFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.goldens, "goldens", "", "directory that bucket_path is relative to (default ./"+vcr.GoldensPath+", else those in the binary)")
	flags.StringVar(&f.bucket, "bucket", "", "bucket that bucket_path is a key in, s3://name/prefix or https://host/path (default $CONFORMANCE_BUCKET)")
	flags.StringVar(&f.bundle, "bundle", "", "file of golden bundle, which has the goldens, compat.toml and the manifest in it")
	flags.StringVar(&f.cache, "cache", "", "directory of the cache of goldens (default vllm-vcr/goldens in the user's cache directory)")
	flags.BoolVar(&f.offline, "offline", false, "use no network: a golden that is neither at hand nor in the cache is an error")
	flags.Int64Var(&f.maxSize, "max-golden-size", golden.DefaultMaxSize, "most bytes that a golden may have as it is stored")
	f.s3.addFlags(flags)
}

// resolve takes from the environment and the bundle what the flags leave open, and
// refuses what says nothing sensible together.
func (f *storeFlags) resolve(a *app, in *inputs) error {
	places := map[string]string{"--goldens": f.goldens, "--bucket": f.bucket, "--bundle": f.bundle}
	for _, pair := range [][2]string{{"--goldens", "--bucket"}, {"--goldens", "--bundle"}, {"--bucket", "--bundle"}} {
		if one, other := places[pair[0]], places[pair[1]]; one != "" && other != "" {
			return fmt.Errorf("%s %s and %s %s: want one of the two", pair[0], golden.Scrub(one), pair[1], golden.Scrub(other))
		}
	}
	if f.goldens == "" && f.bundle == "" {
		f.bucket = a.orEnv(f.bucket, "CONFORMANCE_BUCKET")
	}
	if err := golden.CheckBucket(f.bucket); err != nil {
		return fmt.Errorf("--bucket %s: %w", golden.Scrub(f.bucket), err)
	}
	if in.bundle = f.bundle; f.bundle == "" {
		in.manifest = a.orEnv(in.manifest, "CONFORMANCE_MANIFEST")
	}
	if f.maxSize < 1 {
		return fmt.Errorf("--max-golden-size %d: want at least 1", f.maxSize)
	}
	return f.s3.resolve()
}

// options are those of a store that finds goldens in the bucket, the bundle, the
// directory, the checkout that the command runs in, or the binary: the first of these
// that there is.
func (f *storeFlags) options(a *app) (conformance.StoreOptions, error) {
	dir := f.goldens
	if f.bucket == "" && f.bundle == "" && dir == "" && exists(vcr.GoldensPath) {
		dir = vcr.GoldensPath
	}
	files, err := fs.Sub(vcr.Files, vcr.GoldensPath)
	return conformance.StoreOptions{
		Bucket: f.bucket, Dir: dir, Files: files, Bundle: f.bundle, Cache: f.cache, Offline: f.offline,
		MaxSize: f.maxSize, Timeout: f.timeout, S3: f.s3.S3Options, Log: a.log,
	}, err
}

// openStore is the store of these flags.
func (a *app) openStore(f *storeFlags) (*conformance.RegisteredStore, error) {
	opt, err := f.options(a)
	if err != nil {
		return nil, err
	}
	return conformance.NewStore(opt), nil
}

// repeat are the flags that name the same goldens again, but for what is this machine's or this job's own: the
// cache and the role.
func (f *storeFlags) repeat() []string {
	var flags []string
	for _, flag := range []struct{ name, value, usual string }{
		{"--goldens", f.goldens, ""},
		{"--bucket", f.bucket, ""},
		{"--bundle", f.bundle, ""},
		{"--offline", strconv.FormatBool(f.offline), "false"},
		{"--max-golden-size", strconv.FormatInt(f.maxSize, 10), strconv.FormatInt(golden.DefaultMaxSize, 10)},
		{"--anonymous", f.s3.anonymous, "auto"},
		{"--region", f.s3.Region, ""},
		{"--endpoint-url", f.s3.Endpoint, ""},
		{"--path-style", f.s3.pathStyle, "auto"},
	} {
		switch {
		case flag.value == flag.usual:
		case flag.value == "true" && flag.name == "--offline":
			flags = append(flags, flag.name)
		default:
			flags = append(flags, flag.name, golden.Scrub(flag.value))
		}
	}
	return flags
}
