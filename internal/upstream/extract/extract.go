package extract

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A Request names a release.
type Request struct {
	// Name is what a person names: the URL of a wheel, a folder, a wheel on disk, or a version in the index.
	Name string
	// Wheel is a file of the index that was chosen already, instead of Name.
	Wheel   *pypi.File
	Index   string // URL; "" is the index that pip uses
	Version string // of a folder that has none
	Yanked  bool   // a release that was withdrawn is wanted all the same
}

// A Result is what the sources of a release declare of its wire.
type Result struct {
	Profile *protocol.Profile // as far as it could be read
	// Gaps are what could not. A comparison with the profile must report them.
	Gaps       []Gap
	Downloaded int64 // bytes, the directory of the wheel included
}

// A Gap is a part of the wire that could not be read. A profile with gaps is not the whole wire of its release, so
// that no comparison with it can end in "nothing changed".
type Gap struct {
	protocol.Place        // without a module if none is concerned
	What           string `json:"what"` // "class EngineCoreRequest"
	Why            string `json:"why"`  // "it is declared under a condition"
}

// String returns "vllm/v1/engine/__init__.py:12: class X: why".
func (g Gap) String() string {
	place := ""
	switch {
	case g.Module != "" && g.At > 0:
		place = fmt.Sprintf("%s:%d: ", g.Module, g.At)
	case g.Module != "":
		place = g.Module + ": "
	}
	return place + g.What + ": " + g.Why
}

// maxTime limits finding and reading one release, downloads included, which takes a few seconds. A server that sends a
// byte now and then never stalls.
const maxTime = 5 * time.Minute

// Limited returns a context for finding and reading one release. Its cause is what took too long.
func Limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, maxTime, fmt.Errorf("the release could not be read within %v", maxTime))
}

// Read finds the release that a request names, and reads its wire profile, within the time of [Limited].
func Read(ctx context.Context, request Request, log *slog.Logger) (Result, error) {
	ctx, cancel := Limited(ctx)
	defer cancel()
	started := time.Now()
	release, err := open(ctx, &pypi.Index{URL: request.Index, Log: log}, request)
	if err != nil {
		return Result{}, err
	}
	defer release.close()
	if release.warning != "" {
		log.Warn(release.warning)
	}
	var result Result
	result.Profile, result.Gaps, err = extract(ctx, release)
	result.Downloaded = release.downloaded()
	if err == nil {
		log.Info("sources read", "release", result.Profile.Version, "bytes", result.Downloaded, "duration", time.Since(started))
	}
	return result, err
}

// An answer is what the script found.
type answer struct {
	Profile struct {
		protocol.Profile
		Metrics map[string]protocol.Metric `json:"metrics"`
		Nixl    *protocol.Boundary         `json:"nixl"`
	} `json:"profile"`
	Gaps            []Gap  `json:"gaps"`
	Version, Commit string // of vllm/_version.py
	Error           string
}

// extract reads the wire profile of a release from its Python sources. A profile with gaps must not be trusted as a
// whole. An error is about the source: a request that failed, a version that nothing names.
func extract(ctx context.Context, s source) (*protocol.Profile, []Gap, error) {
	text, err := runScript(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	return finish(s, text)
}

// finish makes a profile of what the script found.
func finish(s source, text []byte) (*protocol.Profile, []Gap, error) {
	var found answer
	if err := json.Unmarshal(safetext.JSON(text), &found); err != nil {
		return nil, nil, fmt.Errorf("%s: the result of the Python script cannot be read: %w", s.where(), err)
	}
	if found.Error != "" {
		return nil, nil, fmt.Errorf("%s: %s", s.where(), found.Error)
	}
	p := &found.Profile.Profile
	var err error
	if p.Version, err = versionOf(s, found.Version); err != nil {
		return nil, nil, err
	}
	p.Line = protocol.LineOf(p.Version)
	const commitDigits = 9
	commit := strings.TrimPrefix(found.Commit, "g")
	if len(commit) >= commitDigits && strings.Trim(commit, "0123456789abcdef") == "" {
		p.Commit = commit[:commitDigits]
	}
	for name, u := range p.Utilities {
		u.Result = resultKind(u.Signature)
		p.Utilities[name] = u
	}
	p.SetMetrics(found.Profile.Metrics)
	p.SetNixl(found.Profile.Nixl)
	slices.SortFunc(found.Gaps, func(a, b Gap) int {
		return cmp.Or(
			cmp.Compare(a.Module, b.Module), cmp.Compare(a.At, b.At),
			cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why),
		)
	})
	return p, slices.Compact(found.Gaps), nil
}

// versionOf returns the release that a profile is of. vllm/_version.py, which a built release has and which sets
// version, and the source must agree.
func versionOf(s source, version string) (string, error) {
	named, err := s.version()
	switch {
	case err != nil:
		return "", err
	case version == "":
		version = named
	case named != "" && !sameRelease(version, named):
		return "", fmt.Errorf("%s: it is of release %s, and its vllm/_version.py of %s: one of them is wrong", s.where(), named, version)
	}
	if version == "" {
		const why = "no vllm/_version.py and no dist-info names the release that it is of: give it with --vllm-version"
		return "", fmt.Errorf("%s: %s", s.where(), why)
	}
	// A build for other hardware adds its name: "0.33.0+cpu" is 0.33.0. What a development version adds names its
	// commit.
	if release, _, _ := strings.Cut(version, "+"); !strings.Contains(release, ".dev") {
		version = release
	}
	if protocol.LineOf(version) == version {
		return "", fmt.Errorf("%s: %q is not a version of vLLM: want one such as 0.33.0", s.where(), version)
	}
	return version, nil
}

// sameRelease compares versions without what a build adds to them, which is not the same everywhere.
func sameRelease(a, b string) bool {
	a, _, _ = strings.Cut(a, "+")
	b, _, _ = strings.Cut(b, "+")
	one, errOne := compat.ParseBuild(a)
	other, errOther := compat.ParseBuild(b)
	if errOne != nil || errOther != nil {
		return a == b
	}
	return one == other
}

// resultKind reduces what a method returns to what a frontend checks of the answer.
func resultKind(signature string) protocol.ResultKind {
	_, result := protocol.CutResult(signature)
	t := protocol.ParsePyType(result).Options()[0]
	argument := ""
	if len(t.Args) > 0 {
		argument = t.Args[0].String()
	}
	switch {
	case result == "", result == "None", strings.Contains(result, "Future"):
		return protocol.ResultNone
	case result == "bool":
		return protocol.ResultBool
	case result == "str":
		return protocol.ResultStr
	case t.Name == "set" && argument == "int":
		return protocol.ResultInts
	case t.Name == "tuple" && argument == "SupportedTask":
		return protocol.ResultStrings
	case t.Name == "list" && argument != "":
		return protocol.ResultList
	}
	return protocol.ResultAny
}
