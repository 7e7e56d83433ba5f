package github

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	gh "github.com/google/go-github/v62/github"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/retry"
)

// Options say which repository a [Client] works on, as which user, and by what effects.
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
	Action Action   `json:"action,omitempty"`
	Number int      `json:"number,omitempty"` // 0 when there is none, or it would be created in a dry run
	URL    string   `json:"url,omitempty"`    // of the page for people; "" as above
	Notes  []string `json:"notes"`
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
		rest: rest, owner: parts[1], name: parts[2], graphql: graphqlAddress(base), run: o.Run, dryRun: o.DryRun,
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

// Bounds of waiting and of reading.
const (
	defaultMaxWait = 3 * time.Minute
	secondaryWait  = time.Minute // where GitHub names no time
	maxReads       = 4           // tries of a request that only reads
	peekBytes      = 64 << 10    // of an answer that may name a limit
)

// transport adds the token and waits for limits. Requests follow each other: it is not for several goroutines.
type transport struct {
	base  http.RoundTripper
	host  string // the only one that gets the token
	token string
	left  time.Duration // that may still be waited
	sleep func(context.Context, time.Duration) error
	log   *slog.Logger
}

// A limitError is a limit of GitHub that is longer than one may wait.
type limitError struct{ wait time.Duration }

func (e *limitError) Error() string {
	return fmt.Sprintf("GitHub's limit of requests is reached, and it says to come back in %s: run this again then", e.wait)
}

func newTransport(o Options, host string, log *slog.Logger) *transport {
	t := &transport{base: o.Transport, host: host, token: o.Token, left: o.MaxWait, sleep: o.Sleep, log: log}
	if t.base == nil {
		t.base = http.DefaultTransport
	}
	if t.left == 0 {
		t.left = defaultMaxWait
	}
	if t.sleep == nil {
		t.sleep = retry.Pause
	}
	return t
}

// RoundTrip sends a request again when GitHub says to come back later. What may have had an effect is not sent again.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	for try := 1; ; try++ {
		resp, err := t.send(req)
		wait, limited, err := verdict(req, resp, err, try)
		if err != nil || wait == 0 {
			return resp, err
		}
		if resp != nil {
			resp.Body.Close()
		}
		if wait > t.left {
			if limited {
				return nil, &limitError{wait.Round(time.Second)}
			}
			return nil, fmt.Errorf("GitHub does not answer after %d tries", try)
		}
		t.left -= wait
		t.log.Info("github: wait", "for", wait, "method", req.Method, "path", req.URL.Path)
		if err := t.sleep(req.Context(), wait); err != nil {
			return nil, err
		}
	}
}

func (t *transport) send(req *http.Request) (*http.Response, error) {
	again := req.Clone(req.Context())
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			return nil, err
		}
		again.Body = body
	}
	if again.URL.Host == t.host {
		again.Header.Set("Authorization", "Bearer "+t.token)
	}
	return t.base.RoundTrip(again)
}

// verdict says how long to wait before a request is sent again; 0 means that resp is the answer.
func verdict(req *http.Request, resp *http.Response, err error, try int) (wait time.Duration, limited bool, _ error) {
	reads := req.Method == http.MethodGet && try < maxReads
	pause := time.Second << (try - 1)
	if err != nil {
		if reads && req.Context().Err() == nil {
			return pause, false, nil
		}
		return 0, false, err
	}
	wait, err = limit(resp)
	switch {
	case err != nil:
		return 0, false, err
	case wait > 0:
		return wait, true, nil
	case resp.StatusCode >= 500 && reads:
		return pause, false, nil
	}
	// Without these the library would refuse, on its own, to send the next request.
	for _, name := range []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "Retry-After"} {
		resp.Header.Del(name)
	}
	return 0, false, nil
}

// limit returns how long an answer says to wait, 0 if it is not about limits. The second API says it in an answer that is
// otherwise good.
func limit(resp *http.Response) (time.Duration, error) {
	refused := resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusTooManyRequests
	if !refused && !strings.HasSuffix(resp.Request.URL.Path, "/graphql") {
		return 0, nil
	}
	start, err := io.ReadAll(io.LimitReader(resp.Body, peekBytes))
	if err != nil {
		return 0, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), resp.Body), resp.Body}
	if !refused && !bytes.Contains(start, []byte(`"RATE_LIMITED"`)) {
		return 0, nil
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds >= 0 {
		return time.Duration(max(seconds, 1)) * time.Second, nil
	}
	if resp.Header.Get("X-Ratelimit-Remaining") == "0" {
		return untilReset(resp.Header), nil
	}
	if resp.StatusCode == http.StatusTooManyRequests || bytes.Contains(start, []byte("secondary rate limit")) ||
		bytes.Contains(start, []byte(`"RATE_LIMITED"`)) {
		return secondaryWait, nil
	}
	return 0, nil
}

// untilReset goes by the clock of GitHub, which the answer has too.
func untilReset(header http.Header) time.Duration {
	reset, err := strconv.ParseInt(header.Get("X-Ratelimit-Reset"), 10, 64)
	now, dateErr := http.ParseTime(header.Get("Date"))
	if err != nil || dateErr != nil {
		return secondaryWait
	}
	return max(time.Unix(reset, 0).Sub(now), 0) + time.Second
}

// What a workflow must grant for a request.
const (
	needRead   = "contents: read"
	needIssues = "issues: write"
	needPulls  = "pull-requests: write"
	needCommit = "contents: write"
)

// explain says what was being done, what GitHub answered, and what is probably missing. It returns nil for nil.
func (c *Client) explain(doing string, err error, need string) error {
	var answer *gh.ErrorResponse
	var limited *limitError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &limited):
		return fmt.Errorf("%s: %s: %w", c.full(), doing, limited)
	case errors.As(err, &answer):
		return fmt.Errorf("%s: %s: %s%s", c.full(), doing, said(answer), hint(answer, need))
	}
	return fmt.Errorf("%s: %s: %w", c.full(), doing, err)
}

// said is GitHub's answer: status, message, and what it found wrong.
func said(answer *gh.ErrorResponse) string {
	text := fmt.Sprintf("GitHub answered %d %s", answer.Response.StatusCode, answer.Message)
	for _, e := range answer.Errors {
		text += ": " + strings.TrimSpace(strings.Join([]string{e.Resource, e.Field, e.Code, e.Message}, " "))
	}
	return strings.TrimSpace(text)
}

func hint(answer *gh.ErrorResponse, need string) string {
	status := answer.Response.StatusCode
	switch {
	case strings.Contains(answer.Message, "not permitted to create or approve pull requests"):
		return ": allow it in the repository's Settings, Actions, General, Workflow permissions, or use the token of an App"
	case status == http.StatusUnauthorized:
		return ": the token is wrong or has expired"
	case status == http.StatusForbidden:
		if accepted := answer.Response.Header.Get("X-Accepted-Github-Permissions"); accepted != "" {
			need += fmt.Sprintf(" (GitHub: %s)", accepted)
		}
		return ": " + lacks(need)
	case status == http.StatusNotFound:
		return fmt.Sprintf(": the name is wrong, or the token may not see it: the job needs `%s` among its permissions", need)
	case status == http.StatusGone:
		return ": issues are switched off in the repository's Settings"
	}
	return ""
}

func lacks(need string) string {
	return fmt.Sprintf("the job needs `%s` among its permissions; a run for a fork's pull request never has it", need)
}
