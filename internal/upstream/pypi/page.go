package pypi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// The forms of a page, of which that with sizes and times is preferred.
const (
	jsonType = "application/vnd.pypi.simple.v1+json"
	htmlType = "application/vnd.pypi.simple.v1+html"
	accepted = jsonType + ", " + htmlType + ";q=0.2, text/html;q=0.1"
)

// pageReader returns what reads an answer, by its media type; nil for what is not a page.
func pageReader(header http.Header) func(*answer) ([]pageFile, error) {
	kind, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	switch kind {
	case jsonType, "application/json":
		return readJSON
	case htmlType, "text/html":
		return readHTML
	}
	return nil
}

func checkPage(response *http.Response) error {
	if pageReader(response.Header) == nil {
		return fmt.Errorf("its answer is %q, and %s or HTML was requested: give an index that supports PEP 691 or PEP 503",
			response.Header.Get("Content-Type"), jsonType)
	}
	return nil
}

// pageFile is a file on the page of a project (PEP 691, PEP 700), or a link on it (PEP 503).
type pageFile struct {
	Filename   string            `json:"filename"`
	URL        string            `json:"url"` // may be relative to the page
	Hashes     map[string]string `json:"hashes"`
	Size       int64             `json:"size"`
	UploadTime time.Time         `json:"upload-time"`
	Yanked     any               `json:"yanked"` // a boolean, or the reason
}

func readJSON(got *answer) ([]pageFile, error) {
	var page struct {
		Meta struct {
			Version string `json:"api-version"`
		} `json:"meta"`
		Files []pageFile `json:"files"`
	}
	if err := json.Unmarshal(got.body, &page); err != nil {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &syntax) && syntax.Offset >= int64(len(got.body)):
			return nil, endsEarly(got)
		case errors.As(err, &kind):
			return nil, fmt.Errorf("its answer is not a page of a project: it has a JSON %s at byte %d", kind.Value, kind.Offset)
		}
		return nil, fmt.Errorf("its answer cannot be read: %w", err)
	}
	if !strings.HasPrefix(page.Meta.Version, "1.") {
		return nil, fmt.Errorf("its api-version is %q: want 1.x of PEP 691", page.Meta.Version)
	}
	return page.Files, nil
}

func endsEarly(got *answer) error {
	return fmt.Errorf("its answer ends in the middle, after %d bytes", len(got.body))
}

// A htmlPage is what was read of a page in HTML.
type htmlPage struct {
	base         *url.URL // of relative links
	files        []pageFile
	begun, ended bool // <html> and </html> were seen
}

func readHTML(got *answer) ([]pageFile, error) {
	page := htmlPage{base: got.url}
	for tokens := html.NewTokenizer(bytes.NewReader(got.body)); ; {
		switch tokens.Next() {
		case html.ErrorToken:
			if err := tokens.Err(); err != io.EOF {
				return nil, fmt.Errorf("its answer cannot be read: %w", err)
			}
			// A page may leave the tags out, but if it has the first one, it has the last one.
			if page.begun && !page.ended || !bytes.HasSuffix(bytes.TrimSpace(got.body), []byte(">")) {
				return nil, endsEarly(got)
			}
			return page.files, nil
		case html.StartTagToken, html.SelfClosingTagToken:
			if err := page.tag(tokens.Token()); err != nil {
				return nil, err
			}
		case html.EndTagToken:
			page.ended = page.ended || tokens.Token().DataAtom == atom.Html
		}
	}
}

// tag reads a tag with its attributes.
func (p *htmlPage) tag(tag html.Token) error {
	attributes := map[string]string{}
	for _, a := range tag.Attr {
		attributes[a.Key] = a.Val
	}
	switch tag.DataAtom {
	case atom.Html:
		p.begun = true
	case atom.Base:
		base, err := p.base.Parse(attributes["href"])
		if err != nil {
			return errors.New("its <base> has no URL")
		}
		p.base = base
	case atom.Meta:
		version := attributes["content"]
		if attributes["name"] == "pypi:repository-version" && !strings.HasPrefix(version, "1.") {
			return fmt.Errorf("its pypi:repository-version is %q: want 1.x of PEP 629", version)
		}
	case atom.A:
		return p.link(attributes)
	}
	return nil
}

func (p *htmlPage) link(attributes map[string]string) error {
	href, found := attributes["href"]
	if !found {
		return nil
	}
	u, err := p.base.Parse(strings.TrimSpace(href))
	if err != nil {
		return fmt.Errorf("its link %d has no URL", len(p.files)+1) // the error would show what may be secret of it
	}
	f := pageFile{Filename: path.Base(u.Path)}
	if algorithm, digest, ok := strings.Cut(u.Fragment, "="); ok {
		f.Hashes = map[string]string{algorithm: digest}
	}
	u.Fragment, u.RawFragment = "", ""
	f.URL = u.String()
	if reason, yanked := attributes["data-yanked"]; yanked {
		f.Yanked = true
		if reason != "" {
			f.Yanked = reason
		}
	}
	p.files = append(p.files, f)
	return nil
}

// file returns the file of a page at a URL. It gets the credentials of its index, whose base is given, on the same
// host.
func (f pageFile) file(at, base *url.URL) (File, error) {
	u, err := at.Parse(f.URL)
	if err != nil {
		u = &url.URL{}
	}
	if err := checkURL(u); err != nil {
		return File{}, fmt.Errorf("the URL of %q is of no use: %w", f.Filename, err)
	}
	if u.User == nil && u.Host == base.Host && u.Scheme == base.Scheme {
		u.User = base.User
	}
	file := File{Name: f.Filename, URL: u.String(), Size: max(f.Size, 0), SHA256: strings.ToLower(f.Hashes["sha256"])}
	if !digestPattern().MatchString(file.SHA256) {
		file.SHA256 = ""
	}
	switch why := f.Yanked.(type) {
	case bool:
		file.Yanked = why
	case string:
		file.Yanked, file.Reason = why != "", why
	}
	return file, nil
}

var digestPattern = lazyregexp.New(`^[0-9a-f]{64}$`)
