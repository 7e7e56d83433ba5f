package wirediff

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

const upstream = "https://github.com/vllm-project/vllm/blob/"

var (
	commitPattern = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
	builtPattern  = regexp.MustCompile(`\+g([0-9a-f]{7,40})(\.|$)`)
)

// upstreamURL is where to read a place, empty if that is not known.
func upstreamURL(p *protocol.Profile, place protocol.Place) string {
	ref := revision(p)
	if place.Module == "" || ref == "" || strings.Contains(place.Module, "..") {
		return ""
	}
	at := upstream + url.PathEscape(ref) + "/" + (&url.URL{Path: place.Module}).EscapedPath()
	if place.At > 0 {
		at += fmt.Sprintf("#L%d", place.At)
	}
	return at
}

// revision is the commit that a wheel was built from, else the tag of its release.
func revision(p *protocol.Profile) string {
	if commitPattern.MatchString(p.Commit) {
		return p.Commit
	}
	if built := builtPattern.FindStringSubmatch(p.Version); built != nil {
		return built[1]
	}
	if p.Version == "" {
		return ""
	}
	return "v" + p.Version
}
