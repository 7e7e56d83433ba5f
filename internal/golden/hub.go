package golden

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// Names of the environment that every client of the hub goes by.
const (
	envHub      = "HF_ENDPOINT"
	envHubToken = "HF_TOKEN"
)

const defaultHub = "https://huggingface.co"

// hubSource is a file of a dataset repository: org/repo/path, or org/repo@revision/path, as the hub's own tools also
// with datasets/ before it.
func (s *Store) hubSource(rest string) (source, error) {
	segments := strings.Split(strings.TrimPrefix(rest, "datasets/"), "/")
	if len(segments) < 3 || strings.Contains("/"+rest+"/", "//") {
		return source{}, errors.New("a location of the hub is hf://organization/repository/path or hf://organization/repository@revision/path")
	}
	repo, revision, pinned := strings.Cut(segments[1], "@")
	if !pinned {
		revision = "main"
	}
	if repo == "" || revision == "" || hasDots(repo+"/"+revision) {
		return source{}, errors.New("a location of the hub is hf://organization/repository@revision/path")
	}
	where, err := hub()
	if err != nil {
		return source{}, err
	}
	where = where.JoinPath(escaped("datasets", segments[0], repo, "resolve", revision)...)
	where = where.JoinPath(escaped(segments[2:]...)...)
	header := http.Header{}
	if token := os.Getenv(envHubToken); token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	return source{open: s.openHTTPS(where, header), remote: true}, nil
}

func isHub(location string) bool {
	scheme, _, _ := strings.Cut(location, "://")
	return strings.EqualFold(scheme, "hf")
}

// hub is the address of the hub. A token is sent to it, so nobody must be able to listen.
func hub() (*url.URL, error) {
	text := os.Getenv(envHub)
	if text == "" {
		text = defaultHub
	}
	where, err := url.Parse(text)
	if err != nil || where.Scheme != "https" || where.Host == "" || where.RawQuery != "" || where.User != nil {
		return nil, fmt.Errorf("%s is %q, want an address such as %s", envHub, clip(printable(scrub(text))), defaultHub)
	}
	return where, nil
}

// escaped are segments that stand for themselves in a URL.
func escaped(segments ...string) []string {
	var out []string
	for _, segment := range segments {
		out = append(out, url.PathEscape(segment))
	}
	return out
}
