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
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
)

// DefaultURL is the index that is asked when nobody names another.
const DefaultURL = "https://pypi.org/simple"

// An Index is a package index. Its zero value is the one that pip or uv would ask.
type Index struct {
	// URL is the base of the simple index, http or https, and may have credentials. Empty means that of $PIP_INDEX_URL,
	// $UV_DEFAULT_INDEX or $UV_INDEX_URL, else [DefaultURL].
	URL string
	// HTTP sends the requests; nil is a client that follows no redirect from https to http.
	HTTP *http.Client
	// Log is told of requests and further tries; nil logs nothing.
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
	Reason   string    // why it was yanked, in the words of its publisher; "" if the index does not tell
	Uploaded time.Time // of its first file; zero if the index does not tell
	Files    []File    // wheels and source archives, by name
}

// Line is the line of the release, such as "0.34".
func (r Release) Line() string { return r.build().Line() }

// IsRelease reports whether a version was released so: [Index.Releases] returns no others.
func (r Release) IsRelease() bool { return r.build().IsRelease() }

// IsCandidate reports whether it is a release candidate, or a local build of one.
func (r Release) IsCandidate() bool { return r.build().IsCandidate() }

// IsDevelopment reports whether it is a development build, such as a nightly one.
func (r Release) IsDevelopment() bool { return r.build().IsDevelopment() }

// Variant is which of several builds of the same source it is, such as "cpu" or "cu130"; "" for the usual one.
func (r Release) Variant() string { return r.build().Variant() }

// build is the version, which an index has read from a build; of another text it is 0.0.0.
func (r Release) build() compat.Build {
	b, _ := compat.ParseBuild(r.Version)
	return b
}

// A File is one file of a release.
type File struct {
	Name   string
	URL    string // absolute; may have a query
	SHA256 string // 64 lowercase hexadecimal digits; "" if the index does not tell
	Size   int64  // bytes; 0 if the index does not tell, as one that speaks HTML
	Yanked bool
	Reason string // why it was yanked; "" if the index does not tell
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
	if text == "" {
		text = DefaultURL
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%s is not the URL of an index: want https://HOST/simple", from)
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
		url: page, header: http.Header{"Accept": {accepted}}, want: http.StatusOK, limit: maxPage, check: isPage,
	})
	var refused *statusError
	if errors.As(err, &refused) && refused.status == http.StatusNotFound {
		err = fmt.Errorf("package index %s has no project %q: is it the base of a simple index?", shown(base), project)
	}
	if err != nil {
		return nil, nil, err
	}
	files, err := readPage(got)
	if err != nil {
		return nil, nil, fmt.Errorf("package index %s: %w", shown(page), err)
	}
	releases, err := group(files, got.url, base, normalName(project))
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
		return nil, nothingOf(project, files)
	}
	return sorted(byBuild), nil
}

// nothingOf says what a page has instead of files of a project.
func nothingOf(project string, files []pageFile) error {
	for _, f := range files {
		if isArchive(f.Filename) {
			return fmt.Errorf("none of its %d files is of a version of %s: one is %q", len(files), project, f.Filename)
		}
	}
	return fmt.Errorf("none of its %d links is to a wheel or a source archive: is it a page to sign in at, "+
		"or none of an index?", len(files))
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

func sorted(byBuild map[compat.Build]*Release) []Release {
	var releases []Release
	for _, b := range slices.SortedFunc(maps.Keys(byBuild), compat.Build.Compare) {
		r := *byBuild[b]
		slices.SortFunc(r.Files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
		releases = append(releases, r)
	}
	return releases
}
