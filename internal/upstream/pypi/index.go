package pypi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// DefaultURL is the default index.
const DefaultURL = "https://pypi.org/simple"

// An Index is a package index. Its zero value is the one that pip or uv would ask.
type Index struct {
	// URL is the base of the simple index: https, or http on this machine. It may have credentials. Empty means that of
	// $PIP_INDEX_URL, $UV_DEFAULT_INDEX or $UV_INDEX_URL, else [DefaultURL].
	URL string
	// HTTP sends the requests; nil is a client that follows no redirect to http,
	// but from http on this machine to another there.
	HTTP *http.Client
	// Log gets requests and further tries; nil logs nothing.
	Log *slog.Logger
	// Backoff is the wait before another try, the first being 1; nil is a random one of up to 0.5, 1 and 2 seconds.
	Backoff func(try int) time.Duration
	// Stall is how long a server may send nothing; default 30 seconds.
	Stall time.Duration
}

// A Release is a version of a project, or a build of one, and the files that were published of it.
type Release struct {
	Version  string    // as [compat.Build] writes it: "0.33.0", "0.33.0rc1", "0.25.1.post1", "0.34.0.dev123+g1a2b3c4d5"
	Yanked   bool      // every file of it was withdrawn
	Reason   string    // why it was yanked, in the words of its publisher; "" if the index does not say
	Uploaded time.Time // of its first file; zero if the index does not say
	Files    []File    // wheels and source archives, by name
}

// IsRelease reports whether a version was released so: [Index.Releases] returns no others.
func (r Release) IsRelease() bool { return r.build().IsRelease() }

// IsCandidate reports whether it is a release candidate, or a local build of one.
func (r Release) IsCandidate() bool { return r.build().IsCandidate() }

// Variant is which of several builds of the same source it is, such as "cpu" or "cu130"; "" for the default one.
func (r Release) Variant() string { return r.build().Variant() }

// build is the version, which an index has read from a build; of another text it is 0.0.0.
func (r Release) build() compat.Build {
	b, _ := compat.ParseBuild(r.Version)
	return b
}

// Find returns a release or a build by its version.
func Find(releases []Release, build compat.Build) (Release, error) {
	for _, r := range releases {
		if b, err := compat.ParseBuild(r.Version); err == nil && b == build {
			return r, nil
		}
	}
	newest := ""
	if len(releases) > 0 {
		newest = ", whose newest is " + releases[len(releases)-1].Version
	}
	return Release{}, fmt.Errorf("release %s is not among the %d of the index%s", build, len(releases), newest)
}

// A File is one file of a release.
type File struct {
	Name   string
	URL    string // absolute; may have a query
	SHA256 string // 64 lowercase hexadecimal digits; "" if the index does not say
	Size   int64  // bytes; 0 if the index does not say, as in HTML
	Yanked bool
	Reason string // why it was yanked; "" if the index does not say
}

// base is the URL of the index.
func (x *Index) base() (*url.URL, error) {
	text, from := x.URL, "the package index"
	for _, name := range []string{"PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"} {
		if text == "" {
			if text = os.Getenv(name); text != "" {
				from = "$" + name
			}
		}
	}
	text = cmp.Or(text, DefaultURL)
	u, err := url.Parse(text)
	if err != nil || errors.Is(checkURL(u), errNoURL) {
		return nil, fmt.Errorf("%s is not the URL of an index: want https://HOST/simple", from)
	}
	if err := checkURL(u); err != nil {
		return nil, fmt.Errorf("%s cannot be asked: %w", from, err)
	}
	return u, nil
}

// Where is the URL of the index as it can be shown: without credentials and query.
func (x *Index) Where() string {
	u, err := x.base()
	if err != nil {
		return "(unusable URL)"
	}
	return shown(u)
}

const maxPage = 64 << 20 // bytes

// Releases returns the releases of a project by version, ascending. What has no version of a release of vLLM, such as a
// development build, is left out, as [compat.ParseVersion] refuses it.
func (x *Index) Releases(ctx context.Context, project string) ([]Release, error) {
	all, page, err := x.all(ctx, project)
	if err != nil {
		return nil, err
	}
	releases := slices.DeleteFunc(slices.Clone(all), func(r Release) bool { return !r.IsRelease() })
	if len(releases) == 0 {
		return nil, fmt.Errorf("package index %s: it has no release of %s, but development or local builds only: "+
			"the newest is %s", shown(page), project, all[len(all)-1].Version)
	}
	return releases, nil
}

// ReleasesAndBuilds returns the releases of a project and its development and local builds, by version, ascending:
// builds lie before or behind what they are builds of, as PEP 440 has it.
func (x *Index) ReleasesAndBuilds(ctx context.Context, project string) ([]Release, error) {
	all, _, err := x.all(ctx, project)
	return all, err
}

// all returns what the page of a project has, of which there is something, and the URL of the page.
func (x *Index) all(ctx context.Context, project string) ([]Release, *url.URL, error) {
	base, err := x.base()
	if err != nil {
		return nil, nil, err
	}
	page := base.JoinPath(normalName(project), "/")
	got, err := x.get(ctx, request{
		url: page, header: http.Header{"Accept": {accepted}}, want: http.StatusOK, limit: maxPage, check: checkPage,
	})
	var refused *statusError
	if errors.As(err, &refused) && refused.status == http.StatusNotFound {
		err = fmt.Errorf("package index %s has no project %q: is it the base of a simple index?", shown(base), project)
	}
	if err != nil {
		return nil, nil, err
	}
	files, err := pageReader(got.header)(got)
	var releases []Release
	if err == nil {
		releases, err = group(files, got.url, base, normalName(project))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("package index %s: %w", shown(page), err)
	}
	return releases, page, nil
}

// group puts the files of a page together by version, ascending. Those of no version, or of another project, are left
// out.
func group(files []pageFile, at, base *url.URL, project string) ([]Release, error) {
	byBuild := map[compat.Build]*Release{}
	for _, f := range files {
		build, err := buildOf(project, f.Filename)
		if err != nil {
			continue
		}
		file, err := f.file(at, base)
		if err != nil {
			return nil, err
		}
		r := byBuild[build]
		if r == nil {
			r = &Release{Version: build.String(), Yanked: true, Uploaded: f.UploadTime}
			byBuild[build] = r
		}
		r.add(file, f.UploadTime)
	}
	if len(byBuild) == 0 {
		for _, f := range files {
			if _, isWheel := parseWheelName(f.Filename); isWheel || sourceStem(f.Filename) != "" {
				return nil, fmt.Errorf("none of its %d files is of a version of %s: one is %q", len(files), project, f.Filename)
			}
		}
		return nil, fmt.Errorf("none of its %d links is to a wheel or a source archive: is it a login page, "+
			"or none of an index?", len(files))
	}
	var releases []Release
	for _, b := range slices.SortedFunc(maps.Keys(byBuild), compat.Build.Compare) {
		r := *byBuild[b]
		slices.SortFunc(r.Files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
		releases = append(releases, r)
	}
	return releases, nil
}

func (r *Release) add(f File, uploaded time.Time) {
	r.Files = append(r.Files, f)
	r.Yanked = r.Yanked && f.Yanked
	r.Reason = cmp.Or(r.Reason, f.Reason)
	if !r.Yanked {
		r.Reason = ""
	}
	if uploaded.Before(r.Uploaded) {
		r.Uploaded = uploaded
	}
}

var separators = lazyregexp.New(`[-_.]+`)

// normalName returns the name of a project as an index spells it (PEP 503).
func normalName(project string) string {
	return strings.ToLower(separators().ReplaceAllString(project, "-"))
}

// A wheelName is the name of a wheel, taken apart: vllm-0.23.0-2-cp38-abi3-manylinux_2_28_x86_64.whl.
type wheelName struct {
	project, version string
	build            int // 0 without one; a file of a higher one replaces the others
	platforms        []string
}

func parseWheelName(name string) (w wheelName, ok bool) {
	stem, isWheel := strings.CutSuffix(name, ".whl")
	parts := strings.Split(stem, "-")
	if !isWheel || len(parts) != 5 && len(parts) != 6 {
		return w, false
	}
	w = wheelName{project: parts[0], version: parts[1], platforms: strings.Split(parts[len(parts)-1], ".")}
	if len(parts) == 6 {
		digits := len(parts[2]) - len(strings.TrimLeft(parts[2], "0123456789"))
		var err error
		if w.build, err = strconv.Atoi(parts[2][:digits]); err != nil {
			return w, false
		}
	}
	return w, true
}

// Version is the version in the name of a wheel; "" if the name has none.
func (f File) Version() string {
	w, ok := parseWheelName(f.Name)
	build, err := compat.ParseBuild(w.version)
	if !ok || err != nil {
		return ""
	}
	return build.String()
}

// sourceStem returns the name of a source archive without its ending; "" for any other file.
func sourceStem(name string) string {
	for _, suffix := range []string{".tar.gz", ".zip"} {
		if stem, is := strings.CutSuffix(name, suffix); is {
			return stem
		}
	}
	return ""
}

// buildOf returns what a file of a project is a build of.
func buildOf(project, name string) (compat.Build, error) {
	if w, ok := parseWheelName(name); ok && normalName(w.project) == project {
		return compat.ParseBuild(w.version)
	}
	stem := sourceStem(name)
	if dash := strings.LastIndex(stem, "-"); dash > 0 && normalName(stem[:dash]) == project {
		return compat.ParseBuild(stem[dash+1:])
	}
	return compat.Build{}, fmt.Errorf("%q is not a file of a version of %s", name, project)
}

// machines are the names that wheels have for what Go calls the architecture.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// Machine is the name that wheels have for what Go calls an architecture, such as "x86_64"; "" without one.
func Machine(goarch string) string { return machines[goarch] }

// Wheel returns the wheel of the release for a system and an architecture, as Go names them; of several builds the last
// one. A wheel that was yanked is none.
func (r Release) Wheel(goos, goarch string) (File, error) {
	machine := machines[goarch]
	if goos != "linux" || machine == "" {
		return File{}, fmt.Errorf("release %s: there are wheels for linux on amd64 and arm64, not for %s on %s",
			r.Version, goos, goarch)
	}
	return r.choose("linux on "+goarch, func(platform string) bool {
		isLinux := strings.HasPrefix(platform, "manylinux") || strings.HasPrefix(platform, "linux_")
		return isLinux && strings.HasSuffix(platform, "_"+machine)
	})
}

// choose returns the last build of the wheels for a platform.
func (r Release) choose(what string, fits func(platform string) bool) (File, error) {
	var best File
	build, yanked, reason := -1, false, ""
	var names []string
	for _, f := range r.Files {
		names = append(names, f.Name)
		w, ok := parseWheelName(f.Name)
		switch {
		case !ok || !slices.ContainsFunc(w.platforms, fits):
		case f.Yanked:
			yanked, reason = true, cmp.Or(reason, f.Reason)
		case w.build > build:
			best, build = f, w.build
		}
	}
	switch {
	case build >= 0:
		return best, nil
	case yanked && reason != "":
		return File{}, fmt.Errorf("release %s was yanked from the index (wheel for %s): %q", r.Version, what, reason)
	case yanked:
		return File{}, fmt.Errorf("release %s was yanked from the index (wheel for %s)", r.Version, what)
	}
	return File{}, fmt.Errorf("release %s has no wheel for %s: it has %q", r.Version, what, names)
}
