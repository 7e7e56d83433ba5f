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

// tapFlags are of no use to a recording that is derived.
var tapFlags = []string{
	"frontend-handshake", "engine-handshake", "data-address", "frames-out", "handshake-timeout", "queue-limit",
	"max-observed-bytes", "metrics-address", "until",
}

// outputFlags name the outputs of recordFlags.
var outputFlags = [3]string{"--trace-out", "--step-stats-out", "--frames-out"}

// check finds what is wrong with a command line before anybody connects.
func (f *recordFlags) check(flags *pflag.FlagSet) error {
	if f.outputs[0] == "" {
		return errors.New("--trace-out is missing: want a path or s3://bucket/key for the cassette")
	}
	if f.fromFrames != "" {
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
		{"--handshake-timeout", int64(f.cfg.HandshakeTimeout)},
		{"--queue-limit", f.cfg.QueueLimit},
		{"--max-observed-bytes", f.cfg.MaxObserved},
		{"--block-size", int64(f.cfg.Observe.BlockSize)},
	} {
		if limit.value < 0 {
			return fmt.Errorf("%s %s: want more than 0", limit.flag, flags.Lookup(limit.flag[2:]).Value)
		}
	}
	version := f.cfg.Observe.VLLMVersion
	if version != "" && !strings.HasPrefix(version, protocol.Nightly) && !lineName.MatchString(protocol.LineOf(version)) {
		return fmt.Errorf("--vllm-version %q: want a release such as v0.33.0, or nightly", version)
	}
	if err := f.checkAddresses(); err != nil {
		return err
	}
	if err := f.checkUntil(); err != nil {
		return err
	}
	return f.checkOutputs()
}

// lineName is a line that engines can be compared with.
var lineName = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)

func (f *recordFlags) checkAddresses() error {
	for _, address := range []struct{ flag, value string }{
		{"--frontend-handshake", f.cfg.Frontend}, {"--engine-handshake", f.cfg.Listen}, {"--data-address", f.cfg.Data},
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
	if f.cfg.Frontend == f.cfg.Listen {
		return fmt.Errorf("--frontend-handshake and --engine-handshake are both %s: the tap would dial itself", f.cfg.Listen)
	}
	if f.metrics != "" {
		if _, _, err := net.SplitHostPort(f.metrics); err != nil {
			return fmt.Errorf("--metrics-address %q: want HOST:PORT", f.metrics)
		}
	}
	return nil
}

// checkUntil refuses a file that would end the recording at once, or could never come up.
func (f *recordFlags) checkUntil() error {
	if f.until == "" {
		return nil
	}
	if _, err := os.Stat(f.until); err == nil {
		return fmt.Errorf("--until %s: it is there already, so nothing would be recorded; remove it", f.until)
	}
	if _, err := os.Stat(filepath.Dir(f.until)); err != nil {
		return fmt.Errorf("--until %s: there is no folder for it to come up in: %w", f.until, err)
	}
	return nil
}

// checkOutputs finds what is wrong with the outputs before anybody connects.
func (f *recordFlags) checkOutputs() error {
	var places []string
	for i, name := range f.outputs {
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
		if err := f.checkOutput(name); err != nil {
			return fmt.Errorf("%s %s: %w", outputFlags[i], name, err)
		}
	}
	return nil
}

func (f *recordFlags) checkOutput(name string) error {
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
	case info.Mode().IsRegular() && !f.overwrite:
		return errors.New("it exists already: move it away, or allow --overwrite")
	}
	return nil
}
