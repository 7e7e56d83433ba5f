package pypi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"os"
	"regexp"
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

// A Release is a version of a project, and the files that were published of it.
type Release struct {
	Version  string    // as [compat.Version] writes it: "0.33.0", "0.33.0rc1", "0.25.1.post1"
	Yanked   bool      // every file of it was withdrawn
	Uploaded time.Time // of its first file; zero if the index does not tell
	Files    []File    // wheels and source archives, by name
}

// A File is one file of a release.
type File struct {
	Name   string
	URL    string // absolute; may have a query
	SHA256 string // 64 lowercase hexadecimal digits; "" if the index does not tell
	Size   int64  // bytes; 0 if the index does not tell
	Yanked bool
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

const (
	jsonType = "application/vnd.pypi.simple.v1+json"
	maxPage  = 64 << 20 // bytes
)

// Releases returns the releases of a project by version, ascending. What has no version of a release of vLLM, such as a
// development build, is left out, as [compat.ParseVersion] refuses it.
func (x *Index) Releases(ctx context.Context, project string) ([]Release, error) {
	base, err := x.base()
	if err != nil {
		return nil, err
	}
	page := base.JoinPath(normalName(project), "/")
	got, err := x.get(ctx, request{
		url: page, header: http.Header{"Accept": {jsonType}}, want: http.StatusOK, limit: maxPage, check: isJSON,
	})
	var refused *statusError
	if errors.As(err, &refused) && refused.status == http.StatusNotFound {
		err = fmt.Errorf("package index %s has no project %q: is it the base of a simple index?", shown(base), project)
	}
	if err != nil {
		return nil, err
	}
	releases, err := readPage(got.url, base, normalName(project), got.body)
	if err != nil {
		return nil, fmt.Errorf("package index %s: %w", shown(page), err)
	}
	return releases, nil
}

func isJSON(response *http.Response) error {
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if err != nil || kind != jsonType && kind != "application/json" {
		return fmt.Errorf("it answers %q where %s was asked: want an index that speaks PEP 691",
			response.Header.Get("Content-Type"), jsonType)
	}
	return nil
}

// pageFile is a file on the page of a project (PEP 691, PEP 700).
type pageFile struct {
	Filename   string            `json:"filename"`
	URL        string            `json:"url"`
	Hashes     map[string]string `json:"hashes"`
	Size       int64             `json:"size"`
	UploadTime time.Time         `json:"upload-time"`
	Yanked     any               `json:"yanked"` // a boolean, or the reason
}

func readPage(at, base *url.URL, project string, body []byte) ([]Release, error) {
	var page struct {
		Meta struct {
			Version string `json:"api-version"`
		} `json:"meta"`
		Files []pageFile `json:"files"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, brokenJSON(err, len(body))
	}
	if !strings.HasPrefix(page.Meta.Version, "1.") {
		return nil, fmt.Errorf("its api-version is %q: want 1.x of PEP 691", page.Meta.Version)
	}
	byVersion := map[compat.Version]*Release{}
	for _, f := range page.Files {
		version, err := versionOf(project, f.Filename)
		if err != nil {
			continue
		}
		file, err := f.file(at, base)
		if err != nil {
			return nil, err
		}
		r := byVersion[version]
		if r == nil {
			r = &Release{Version: version.String(), Yanked: true, Uploaded: f.UploadTime}
			byVersion[version] = r
		}
		r.add(file, f.UploadTime)
	}
	if len(byVersion) == 0 {
		return nil, fmt.Errorf("none of its %d files is of a release of %s", len(page.Files), project)
	}
	return sorted(byVersion), nil
}

// brokenJSON says where an answer of so many bytes stops making sense.
func brokenJSON(err error, size int) error {
	var syntax *json.SyntaxError
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &syntax) && syntax.Offset >= int64(size) {
		return fmt.Errorf("its answer ends in the middle, after %d bytes", size)
	}
	return fmt.Errorf("its answer cannot be read: %w", err)
}

func (f pageFile) file(at, base *url.URL) (File, error) {
	u, err := at.Parse(f.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return File{}, fmt.Errorf("the URL of %q is of no use: want http or https", f.Filename)
	}
	if u.User == nil && u.Host == base.Host && u.Scheme == base.Scheme {
		u.User = base.User
	}
	file := File{Name: f.Filename, URL: u.String(), Size: max(f.Size, 0), SHA256: strings.ToLower(f.Hashes["sha256"])}
	if !digestPattern.MatchString(file.SHA256) {
		file.SHA256 = ""
	}
	switch why := f.Yanked.(type) {
	case bool:
		file.Yanked = why
	case string:
		file.Yanked = why != ""
	}
	return file, nil
}

var digestPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (r *Release) add(f File, uploaded time.Time) {
	r.Files = append(r.Files, f)
	r.Yanked = r.Yanked && f.Yanked
	if uploaded.Before(r.Uploaded) {
		r.Uploaded = uploaded
	}
}

func sorted(byVersion map[compat.Version]*Release) []Release {
	var versions []compat.Version
	for v := range byVersion {
		versions = append(versions, v)
	}
	slices.SortFunc(versions, compat.Version.Compare)
	var releases []Release
	for _, v := range versions {
		r := *byVersion[v]
		slices.SortFunc(r.Files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
		releases = append(releases, r)
	}
	return releases
}
