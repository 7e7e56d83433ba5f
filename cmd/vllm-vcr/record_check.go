package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/recorder"
)

// tapOptions are of no use to a recording that is derived.
var tapFlags = []string{
	"frontend-handshake", "engine-handshake", "data-address", "frames-out", "handshake-timeout", "queue-limit",
	"max-observed-bytes", "metrics-address", "until",
}

// outputFlags name the outputs of recordFlags.
var outputFlags = [3]string{"--trace-out", "--step-stats-out", "--frames-out"}

// check finds what is wrong with a command line before anybody connects.
func (opts *recordOptions) check(flags *pflag.FlagSet) error {
	if opts.outputs[0] == "" {
		return errors.New("--trace-out is missing: want a path or s3://bucket/key for the cassette")
	}
	if opts.fromFrames != "" {
		for _, name := range tapFlags {
			if flags.Changed(name) {
				return fmt.Errorf("--%s is for tapping, and --from-frames taps nothing: leave one of them out", name)
			}
		}
	}
	for _, limit := range []struct {
		flag  string
		value int64
	}{
		{"--handshake-timeout", int64(opts.cfg.HandshakeTimeout)},
		{"--queue-limit", opts.cfg.QueueLimit},
		{"--max-observed-bytes", opts.cfg.MaxObserved},
		{"--block-size", int64(opts.cfg.Observe.BlockSize)},
	} {
		if limit.value < 0 {
			return fmt.Errorf("%s %s: want more than 0", limit.flag, flags.Lookup(limit.flag[2:]).Value)
		}
	}
	version := opts.cfg.Observe.VLLMVersion
	if version != "" && !strings.HasPrefix(version, protocol.Nightly) && !lineName.MatchString(protocol.LineOf(version)) {
		return fmt.Errorf("--vllm-version %q: want a release such as v0.33.0, or nightly", version)
	}
	if err := opts.checkAddresses(); err != nil {
		return err
	}
	if err := opts.checkUntil(); err != nil {
		return err
	}
	return opts.checkOutputs()
}

// lineName is a line that engines can be compared with.
var lineName = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)

func (opts *recordOptions) checkAddresses() error {
	for _, address := range []struct{ flag, value string }{
		{"--frontend-handshake", opts.cfg.Frontend}, {"--engine-handshake", opts.cfg.Listen}, {"--data-address", opts.cfg.Data},
	} {
		if address.flag == "--data-address" && address.value == "" {
			continue
		}
		scheme, rest, _ := strings.Cut(address.value, "://")
		_, _, err := net.SplitHostPort(rest)
		if rest == "" || scheme != "ipc" && (scheme != "tcp" || err != nil) {
			return fmt.Errorf("%s %q: want tcp://HOST:PORT or ipc://PATH", address.flag, address.value)
		}
	}
	if opts.cfg.Frontend == opts.cfg.Listen {
		return fmt.Errorf("--frontend-handshake and --engine-handshake are both %s: the tap would dial itself", opts.cfg.Listen)
	}
	if opts.metrics != "" {
		if _, _, err := net.SplitHostPort(opts.metrics); err != nil {
			return fmt.Errorf("--metrics-address %q: want HOST:PORT", opts.metrics)
		}
	}
	return nil
}

// checkUntil refuses a file that would end the recording at once, or could never come up.
func (opts *recordOptions) checkUntil() error {
	if opts.until == "" {
		return nil
	}
	if _, err := os.Stat(opts.until); err == nil {
		return fmt.Errorf("--until %s: it is there already, so nothing would be recorded; remove it", opts.until)
	}
	if _, err := os.Stat(filepath.Dir(opts.until)); err != nil {
		return fmt.Errorf("--until %s: there is no folder for it to come up in: %w", opts.until, err)
	}
	return nil
}

// checkOutputs finds what is wrong with the outputs before anybody connects.
func (opts *recordOptions) checkOutputs() error {
	var places []string
	for i, name := range opts.outputs {
		place := name
		if !strings.Contains(name, "://") {
			place = filepath.Clean(name)
		}
		places = append(places, place)
		if name == "" {
			continue
		}
		if j := slices.Index(places, place); j < i {
			return fmt.Errorf("%s and %s are both %s", outputFlags[j], outputFlags[i], name)
		}
		if err := opts.checkOutput(name); err != nil {
			return fmt.Errorf("%s %s: %w", outputFlags[i], name, err)
		}
	}
	return nil
}

func (opts *recordOptions) checkOutput(name string) error {
	scheme, rest, remote := strings.Cut(name, "://")
	if remote {
		bucket, key, _ := strings.Cut(rest, "/")
		switch {
		case scheme != "s3":
			return fmt.Errorf("%s is not something to write to: want a path or s3://bucket/key", scheme)
		case bucket == "" || key == "" || strings.HasSuffix(key, "/"):
			return errors.New("want s3://bucket/key")
		case strings.Contains(path.Dir(rest), "{rank}"):
			return errors.New("{rank} may stand behind the last slash only")
		}
		return nil
	}
	name = recorder.RankPath(name, 0)
	if _, err := os.Stat(filepath.Dir(name)); err != nil {
		return fmt.Errorf("there is no folder to write it to: %w", err)
	}
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil
	case info.IsDir():
		return errors.New("it is a folder, want a file")
	case info.Mode().IsRegular() && !opts.overwrite:
		return errors.New("it exists already: move it away, or allow --overwrite")
	}
	return nil
}
