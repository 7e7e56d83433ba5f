package wirediff

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

const upstream = "https://github.com/vllm-project/vllm/blob/"

// isCommit tells whether a text names a commit.
func isCommit(text string) bool {
	return len(text) >= 7 && len(text) <= 40 && strings.Trim(text, "0123456789abcdef") == ""
}

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
	if isCommit(p.Commit) {
		return p.Commit
	}
	_, built, _ := strings.Cut(p.Version, "+g") // a build of the main branch: 0.34.0.dev12+g1a2b3c4d5.cu130
	if built, _, _ = strings.Cut(built, "."); isCommit(built) {
		return built
	}
	if p.Version == "" {
		return ""
	}
	return "v" + p.Version
}
