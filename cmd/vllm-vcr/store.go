package main

import (
	"cmp"
	"fmt"
	"io/fs"

	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/golden/s3store"
)

// storeOptions are the flags of where goldens are and how they are fetched.
type storeOptions struct {
	conformance.StoreOptions
	s3 s3Options
}

// s3Options are the flags of how S3 is reached.
type s3Options struct {
	s3store.Options
	anonymous, pathStyle string
}

func (opts *s3Options) addFlags(flags *pflag.FlagSet) {
	oneOf(flags, &opts.anonymous, "anonymous", "auto", "send unsigned S3 requests: auto (if there are no credentials), true or false", "auto", "true", "false")
	flags.StringVar(&opts.Region, "region", "", "`REGION` of the bucket (default the one in the environment, else the one that S3 reports)")
	flags.StringVar(&opts.Endpoint, "endpoint-url", "", "`URL` of an S3 server other than AWS (default $AWS_ENDPOINT_URL_S3)")
	oneOf(flags, &opts.pathStyle, "path-style", "auto", "put the bucket name into the path of the URL: auto (only with --endpoint-url), true or false", "auto", "true", "false")
	flags.StringVar(&opts.Role, "role-to-assume", "", "`ARN` of an AWS role to assume with the OIDC identity of a GitHub job; the job needs the permission id-token: write")
	flags.StringVar(&opts.RoleSession, "role-session-name", "", "session `NAME` for --role-to-assume (default vllm-vcr-$GITHUB_RUN_ID)")
	grouped(flags, "S3")
}

// resolve reads the words of the flags.
func (opts *s3Options) resolve() error {
	opts.Anonymous, _ = s3store.ParseSwitch(opts.anonymous) // the choices are checked
	opts.PathStyle, _ = s3store.ParseSwitch(opts.pathStyle)
	if opts.Role != "" && opts.Anonymous == s3store.On {
		return fmt.Errorf("--role-to-assume and --anonymous true: give only one of them")
	}
	return opts.Check()
}

func (opts *storeOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&opts.Dir, "goldens", "", "`FOLDER` of the goldens, in which bucket_path of the manifest is a path (default ./"+vcr.GoldensPath+", else the goldens in the binary)")
	flags.StringVar(&opts.Bucket, "bucket", "", "bucket of the goldens, in which bucket_path of the manifest is a key: `s3://NAME/PREFIX` or https://HOST/PATH (default $CONFORMANCE_BUCKET)")
	flags.StringVar(&opts.Bundle, "bundle", "", "`FILE` with goldens, compat.toml and manifest, written by golden bundle")
	flags.StringVar(&opts.Cache, "cache-dir", "", "`FOLDER` for downloaded goldens (default vllm-vcr/goldens in the user's cache directory)")
	flags.BoolVar(&opts.Offline, "offline", false, "do not use the network: a golden that is neither on this machine nor in the cache is an error")
	flags.Int64Var(&opts.MaxSize, "max-golden-size", golden.DefaultMaxSize, "maximum size of a golden file in `BYTES`; a larger one is an error")
	above0(flags, "max-golden-size")
	exclusive(flags, "goldens", "bucket", "bundle")
	grouped(flags, "Where the goldens are")
	opts.s3.addFlags(flags)
}

// resolve takes from the environment and the bundle what the flags leave open.
func (opts *storeOptions) resolve(env *environment, in *inputs) error {
	if opts.Dir == "" && opts.Bundle == "" {
		opts.Bucket = cmp.Or(opts.Bucket, env.getenv("CONFORMANCE_BUCKET"))
	}
	if err := golden.CheckBucket(opts.Bucket); err != nil {
		return fmt.Errorf("--bucket %s: %w", golden.Scrub(opts.Bucket), err)
	}
	if in.bundle = opts.Bundle; opts.Bundle == "" {
		in.manifest = cmp.Or(in.manifest, env.getenv("CONFORMANCE_MANIFEST"))
	}
	return opts.s3.resolve()
}

// openStore is a store that finds goldens in the bucket, the bundle, the directory, the checkout that the command runs in, or the
// binary: the first of these that there is.
func openStore(env *environment, opts *storeOptions) (*conformance.RegisteredStore, error) {
	opt := opts.StoreOptions
	if opt.Bucket == "" && opt.Bundle == "" && opt.Dir == "" && exists(vcr.GoldensPath) {
		opt.Dir = vcr.GoldensPath
	}
	opt.S3, opt.Log = opts.s3.Options, env.log
	var err error
	opt.Files, err = fs.Sub(vcr.Files, vcr.GoldensPath)
	return conformance.NewStore(opt), err
}

// storeFlags name the same goldens again, but for what is this machine's or this job's own: the cache and the role.
var storeFlags = []string{"goldens", "bucket", "bundle", "offline", "max-golden-size", "anonymous", "region", "endpoint-url", "path-style"}
