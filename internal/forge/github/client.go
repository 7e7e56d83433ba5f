package github

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	gh "github.com/google/go-github/v62/github"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// Options say which repository a [Client] works on, as whom, and by what effects.
type Options struct {
	Repository string // "owner/name"
	Token      string
	API        string // "" for https://api.github.com; "https://HOST/api/v3" of a server of one's own
	Run        string // address of the workflow run, for comments; may be empty
	DryRun     bool   // look, and change nothing

	MaxWait   time.Duration                              // for all limits together; 0 for 3 minutes
	Transport http.RoundTripper                          // nil for http.DefaultTransport
	Sleep     func(context.Context, time.Duration) error // nil for the clock of the system
	Log       *slog.Logger                               // nil for none
}

// An Action is what was done, or would have been in a dry run.
type Action string

// The actions.
const (
	Created   Action = "created"
	Updated   Action = "updated" // also reopened
	Closed    Action = "closed"
	Unchanged Action = "unchanged"
)

// An Outcome is what there is now.
type Outcome struct {
	Action Action
	Number int    // 0 when there is none, or it would be created in a dry run
	URL    string // of the page for people; "" as above
	Notes  []string
}

// A RefusedError says why something was left as it is: it is not this package's to change, and a person must decide.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// A UsageError says that what is wanted cannot be: nothing was asked or changed.
type UsageError struct{ Reason string }

func (e *UsageError) Error() string { return e.Reason }

func usage(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// Client works on one repository.
type Client struct {
	rest        *gh.Client
	owner, name string
	graphql     string // address
	run         string
	dryRun      bool
	log         *slog.Logger
}

var repositoryName = lazyregexp.New(`^([A-Za-z0-9][A-Za-z0-9-]{0,38})/([A-Za-z0-9._-]{1,100})$`)

// New checks the options. It asks GitHub nothing yet.
func New(o Options) (*Client, error) {
	parts := repositoryName().FindStringSubmatch(o.Repository)
	if parts == nil || strings.Trim(parts[2], ".") == "" {
		return nil, fmt.Errorf("repository %q: want owner/name", o.Repository)
	}
	if o.Token == "" {
		return nil, errors.New("no token: give the step `env: GITHUB_TOKEN: ${{ github.token }}`")
	}
	if strings.ContainsFunc(o.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		// The token itself is not told, nor is an address that may hold a password.
		return nil, errors.New("the token has a blank, a line break or a letter beyond ASCII in it")
	}
	base, err := parseAPI(o.API)
	if err != nil {
		return nil, err
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	rest := gh.NewClient(&http.Client{
		Transport:     newTransport(o, base.Host, log),
		CheckRedirect: sameHost,
	})
	rest.BaseURL = base
	rest.UserAgent = "vllm-vcr"
	return &Client{
		rest: rest, owner: parts[1], name: parts[2], graphql: graphqlAddress(base), run: o.Run, dryRun: o.DryRun, log: log,
	}, nil
}

// parseAPI checks the address that the token is sent to.
func parseAPI(address string) (*url.URL, error) {
	if address == "" {
		address = "https://api.github.com"
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("address of the API: want https://HOST or https://HOST/api/v3")
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		return nil, fmt.Errorf("address of the API: %s://%s: want https, as the token is sent there", u.Scheme, u.Host)
	}
	u.Path = strings.TrimSuffix(u.Path, "/") + "/"
	return u, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// graphqlAddress is beside the other API: a server of one's own has /api/v3 and /api/graphql.
func graphqlAddress(base *url.URL) string {
	u := *base
	u.Path = strings.TrimSuffix(u.Path, "v3/") + "graphql"
	return u.String()
}

func sameHost(req *http.Request, via []*http.Request) error {
	if req.URL.Host != via[0].URL.Host || req.URL.Scheme != via[0].URL.Scheme {
		return fmt.Errorf("the API redirects to another host, %s", req.URL.Host)
	}
	if len(via) >= 5 {
		return errors.New("the API redirects in a circle")
	}
	return nil
}

// full is the repository as owner/name.
func (c *Client) full() string { return c.owner + "/" + c.name }

// withRun adds the address of the run to a comment.
func (c *Client) withRun(comment string) string {
	if c.run == "" {
		return comment
	}
	return comment + "\n\nRun: " + c.run
}

// addLabels puts those labels onto an issue or a pull request that it lacks. Those that people gave it stay.
func (c *Client) addLabels(
	ctx context.Context, number int, have []*gh.Label, want []string, need string,
) (changed bool, err error) {
	var missing []string
	for _, label := range want {
		if !hasLabel(have, label) {
			missing = append(missing, label)
		}
	}
	if len(missing) == 0 {
		return false, nil
	}
	if c.dryRun {
		return true, nil
	}
	// The library would send a bare list, which GitHub's description of its API does not have.
	path := fmt.Sprintf("repos/%s/%s/issues/%d/labels", c.owner, c.name, number)
	req, err := c.rest.NewRequest(http.MethodPost, path, map[string][]string{"labels": missing})
	if err != nil {
		return false, err
	}
	_, err = c.rest.Do(ctx, req, nil)
	return true, c.explain(fmt.Sprintf("label #%d", number), err, need)
}

// hasLabel compares as GitHub does, without regard to case.
func hasLabel(have []*gh.Label, want string) bool {
	for _, label := range have {
		if strings.EqualFold(label.GetName(), want) {
			return true
		}
	}
	return false
}

// checkTitle refuses what GitHub does, before anything is written.
func checkTitle(title string) error {
	if title == "" || len([]rune(title)) > 250 || strings.ContainsFunc(title, func(r rune) bool { return r < ' ' }) {
		return usage("title %q: want one line of 1 to 250 characters", title)
	}
	return nil
}
