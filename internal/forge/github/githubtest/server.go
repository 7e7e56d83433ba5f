package githubtest

import (
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3filter"
	gh "github.com/google/go-github/v62/github"
)

// Who and what is served.
const (
	Owner   = "vllm-vcr"
	Name    = "conformance"
	Token   = "ghs_0123456789abcdefghij"
	Login   = "github-actions[bot]"
	Default = "main"
)

// A Fault is for the next request whose method and path begin with Request, Times times: it is answered with Status and
// Body, or as usual if there is no Status.
type Fault struct {
	Request string // "POST /graphql"
	Times   int    // 0 is once
	Status  int
	Header  map[string]string
	Body    string
	Before  func(*Server) // what happens just before; may be nil
}

// Server is a GitHub with one repository. Its fields may be changed while no request is under way.
type Server struct {
	URL    string
	Issues []*Issue // pull requests too, as on GitHub
	Refs   map[string]string
	// AnyCreator has a list of issues hold those of everybody, also where one creator is asked for.
	AnyCreator bool
	// Protected are branches that rules keep everybody from moving, with what GitHub says of it.
	Protected map[string]string

	mu         sync.Mutex
	http       *httptest.Server
	rest       *description
	graphql    *graphqlDescription
	commits    map[string]*Commit
	faults     []Fault
	requests   []string
	violations []string
}

// An Issue is an issue, or a pull request if it has a head.
type Issue struct {
	Number             int
	Title, Body, State string
	Author             string
	Labels, Comments   []string
	Head, Base         string // branches
	Draft              bool
}

// A Commit has the sha of each path's content.
type Commit struct {
	SHA, Parent     string
	Tree            map[string]string
	Modes           map[string]string // where they are not 100644
	Message, Author string
	Verified        bool
}

// Start serves a repository with one commit on its default branch. dir is testdata/github.
func Start(dir string, files map[string]string) (*Server, error) {
	rest, err := loadDescription(dir)
	if err != nil {
		return nil, err
	}
	graphql, err := loadGraphQL(dir)
	if err != nil {
		return nil, err
	}
	s := &Server{Refs: map[string]string{}, commits: map[string]*Commit{}, rest: rest, graphql: graphql}
	s.Push(Default, "octocat", files)
	s.http = httptest.NewServer(s)
	s.URL = s.http.URL
	return s, nil
}

// Close ends the server.
func (s *Server) Close() { s.http.Close() }

// Inject adds a fault.
func (s *Server) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.Times = max(f.Times, 1)
	s.faults = append(s.faults, f)
}

// Violations are the requests and answers that did not fit GitHub's description.
func (s *Server) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violations)
}

// Changes returns the requests since the last call that were not there to look only, and forgets all.
func (s *Server) Changes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changes []string
	for _, r := range s.requests {
		if !strings.HasPrefix(r, "GET ") && r != "POST /graphql Session" {
			changes = append(changes, r)
		}
	}
	s.requests = nil
	return changes
}

// An answer is what a request gets.
type answer struct {
	status int
	header http.Header
	body   any
}

func refuse(status int, format string, args ...any) answer {
	body := map[string]any{"message": fmt.Sprintf(format, args...), "documentation_url": "https://docs.github.com/rest"}
	return answer{status: status, body: body}
}

// ServeHTTP answers both APIs.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if f, ok := s.fault(r); ok {
		if f.Before != nil {
			f.Before(s)
		}
		for name, value := range f.Header {
			w.Header().Set(name, value)
		}
		if f.Status != 0 {
			w.WriteHeader(f.Status)
			_, _ = io.WriteString(w, f.Body)
			return
		}
	}
	var got answer
	switch {
	case r.Header.Get("Authorization") != "Bearer "+Token:
		got = refuse(http.StatusUnauthorized, "Bad credentials")
	case r.URL.Path == "/graphql":
		got = s.answerGraphQL(body)
	default:
		got = s.answerREST(r, body)
	}
	write(w, got)
}

func (s *Server) fault(r *http.Request) (Fault, bool) {
	for i := range s.faults {
		f := &s.faults[i]
		if f.Times > 0 && strings.HasPrefix(r.Method+" "+r.URL.Path, f.Request) {
			f.Times--
			return *f, true
		}
	}
	return Fault{}, false
}

func write(w http.ResponseWriter, got answer) {
	for name := range got.header {
		w.Header().Set(name, got.header.Get(name))
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(got.status)
	_ = json.NewEncoder(w).Encode(got.body)
}

// violation records what does not fit the descriptions, and is its answer.
func (s *Server) violation(format string, args ...any) answer {
	s.violations = append(s.violations, fmt.Sprintf(format, args...))
	return refuse(http.StatusInternalServerError, "test: %s", s.violations[len(s.violations)-1])
}

func (s *Server) answerREST(r *http.Request, body []byte) answer {
	what := r.Method + " " + r.URL.Path
	s.requests = append(s.requests, what)
	input, err := s.rest.checkRequest(r, body)
	if err != nil {
		return s.violation("%s: request: %v", what, err)
	}
	var values map[string]any
	if len(body) > 0 {
		if err := json.Unmarshal(body, &values); err != nil {
			return s.violation("%s: request: %v", what, err)
		}
	}
	return s.route(r, input, values)
}

// route answers one operation of the description.
func (s *Server) route(r *http.Request, input *openapi3filter.RequestValidationInput, values map[string]any) answer {
	if input.PathParams["owner"] != Owner || input.PathParams["repo"] != Name {
		return refuse(http.StatusNotFound, "Not Found")
	}
	switch input.Route.Operation.OperationID {
	case "issues/list-for-repo":
		return s.listIssues(r)
	case "issues/create":
		return s.createIssue(values)
	case "issues/update":
		return s.withIssue(input, func(i *Issue) answer { return s.editIssue(i, values) })
	case "issues/create-comment":
		return s.withIssue(input, func(i *Issue) answer { return s.createComment(i, values) })
	case "issues/add-labels":
		return s.withIssue(input, func(i *Issue) answer { return s.addLabels(i, values) })
	case "pulls/list":
		return s.listPulls(r)
	case "pulls/create":
		return s.createPull(values)
	case "pulls/update":
		return s.withIssue(input, func(i *Issue) answer { return s.editPull(i, values) })
	case "git/get-ref":
		return s.getRef(input.PathParams["ref"])
	case "git/get-tree":
		return s.getTree(input.PathParams["tree_sha"])
	case "repos/compare-commits-with-basehead":
		return s.compare(input.PathParams["basehead"])
	}
	return s.violation("%s is not served", input.Route.Operation.OperationID)
}

func blobSHA(data []byte) string {
	sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(data)), data...))
	return hex.EncodeToString(sum[:])
}

// Push commits files onto a branch as somebody who signs nothing. A branch that is not there begins at the default one.
// No content deletes a file.
func (s *Server) Push(branch, author string, files map[string]string) *Commit {
	return s.PushCommit(branch, Commit{Author: author, Message: "Work"}, files)
}

// PushCommit is Push, with a message and the like. With a parent, the branch is moved onto that first.
func (s *Server) PushCommit(branch string, c Commit, files map[string]string) *Commit {
	c.Tree = map[string]string{}
	for _, parent := range []string{s.Refs[branch], s.Refs[Default]} {
		if c.Parent == "" {
			c.Parent = parent
		}
	}
	if parent := s.commits[c.Parent]; parent != nil {
		c.Tree = maps.Clone(parent.Tree)
	}
	for name, content := range files {
		c.Tree[name] = blobSHA([]byte(content))
		if content == "" {
			delete(c.Tree, name)
		}
	}
	added := s.add(&c)
	s.set(branch, added.SHA)
	return added
}

// Head is the commit of a branch, or nil.
func (s *Server) Head(branch string) *Commit { return s.commits[s.Refs[branch]] }

// Has reports whether a commit has a file of this content.
func (c *Commit) Has(name, content string) bool { return c.Tree[name] == blobSHA([]byte(content)) }

func (s *Server) add(c *Commit) *Commit {
	sum := sha1.Sum(fmt.Appendf(nil, "%d %s %s", len(s.commits), c.Parent, c.Message))
	c.SHA = hex.EncodeToString(sum[:])
	s.commits[c.SHA] = c
	return c
}

// set moves a branch, and closes pull requests whose branch is gone or has nothing of its own any more.
func (s *Server) set(branch, commit string) {
	s.Refs[branch] = commit
	if commit == noCommit {
		delete(s.Refs, branch)
	}
	for _, i := range s.Issues {
		gone := i.Head == branch && (s.Refs[branch] == "" || s.within(s.Refs[i.Head], s.Refs[i.Base]))
		if i.Head != "" && i.State == "open" && gone {
			i.State = "closed"
		}
	}
}

// within reports whether a commit is another or one before it.
func (s *Server) within(commit, other string) bool {
	return slices.Contains(s.history(other), commit)
}

func (s *Server) history(commit string) []string {
	var all []string
	for c := s.commits[commit]; c != nil; c = s.commits[c.Parent] {
		all = append(all, c.SHA)
	}
	return all
}

func (s *Server) getRef(ref string) answer {
	branch := strings.TrimPrefix(ref, "heads/")
	commit, ok := s.Refs[branch]
	if !ok {
		return refuse(http.StatusNotFound, "Not Found")
	}
	object := &gh.GitObject{Type: gh.String("commit"), SHA: &commit}
	return answer{status: http.StatusOK, body: gh.Reference{Ref: gh.String("refs/heads/" + branch), Object: object}}
}

func (s *Server) url(parts ...string) string {
	return "https://github.com/" + Owner + "/" + Name + "/" + strings.Join(parts, "/")
}

func (s *Server) getTree(sha string) answer {
	commit := s.commits[sha]
	if commit == nil {
		return refuse(http.StatusNotFound, "Not Found")
	}
	entries := []*gh.TreeEntry{}
	for _, path := range slices.Sorted(maps.Keys(commit.Tree)) {
		mode := "100644"
		if commit.Modes[path] != "" {
			mode = commit.Modes[path]
		}
		entries = append(entries, &gh.TreeEntry{Path: &path, Mode: &mode, Type: gh.String("blob"), SHA: gh.String(commit.Tree[path])})
	}
	return answer{status: http.StatusOK, body: gh.Tree{SHA: &sha, Truncated: gh.Bool(false), Entries: entries}}
}

func (s *Server) compare(basehead string) answer {
	base, head, _ := strings.Cut(basehead, "...")
	if s.commits[base] == nil || s.commits[head] == nil {
		return refuse(http.StatusNotFound, "Not Found")
	}
	behind := s.history(base)
	var ahead []*gh.RepositoryCommit
	common := head
	for _, c := range s.history(head) {
		if slices.Contains(behind, c) {
			common = c
			break
		}
		ahead = append([]*gh.RepositoryCommit{s.commitBody(c)}, ahead...)
	}
	status := "diverged"
	if len(ahead) == 0 {
		status = "behind"
	}
	return answer{status: http.StatusOK, body: gh.CommitsComparison{
		Status: &status, AheadBy: gh.Int(len(ahead)), BehindBy: gh.Int(slices.Index(behind, common)), TotalCommits: gh.Int(len(ahead)),
		Commits: ahead, MergeBaseCommit: s.commitBody(common), BaseCommit: s.commitBody(base),
	}}
}

func (s *Server) commitBody(sha string) *gh.RepositoryCommit {
	c := s.commits[sha]
	var parents []*gh.Commit
	if c.Parent != "" {
		parents = append(parents, &gh.Commit{SHA: &c.Parent})
	}
	return &gh.RepositoryCommit{
		SHA: &sha, Parents: parents, Author: user(c.Author), Committer: user(c.Author),
		Commit: &gh.Commit{Message: &c.Message, Verification: &gh.SignatureVerification{Verified: &c.Verified}},
	}
}

func user(login string) *gh.User {
	kind := "User"
	if strings.HasSuffix(login, "[bot]") {
		kind = "Bot"
	}
	return &gh.User{Login: &login, Type: &kind}
}

func (s *Server) issueBody(i *Issue) *gh.Issue {
	body := &gh.Issue{
		Number: &i.Number, Title: &i.Title, Body: &i.Body, State: &i.State, User: user(i.Author),
		Labels: labels(i.Labels), HTMLURL: gh.String(s.url("issues", strconv.Itoa(i.Number))),
	}
	if i.Head != "" {
		body.PullRequestLinks = &gh.PullRequestLinks{}
	}
	return body
}

func labels(names []string) []*gh.Label {
	all := []*gh.Label{}
	for _, name := range names {
		all = append(all, &gh.Label{Name: &name})
	}
	return all
}

func (s *Server) listIssues(r *http.Request) answer {
	query := r.URL.Query()
	found := []*gh.Issue{}
	for _, i := range s.Issues {
		if state := query.Get("state"); state != "all" && i.State != state {
			continue
		}
		if creator := query.Get("creator"); creator == "" || creator == i.Author || s.AnyCreator {
			found = append(found, s.issueBody(i))
		}
	}
	slices.Reverse(found) // newest first
	page, size := max(number(query.Get("page")), 1), number(query.Get("per_page"))
	got := answer{status: http.StatusOK, header: http.Header{}}
	if len(found) > page*size {
		got.header.Set("Link", fmt.Sprintf(`<%s?page=%d>; rel="next"`, s.url("issues"), page+1))
	}
	got.body = found[min((page-1)*size, len(found)):min(page*size, len(found))]
	return got
}

func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// Open adds an issue or a pull request of somebody.
func (s *Server) Open(i Issue) *Issue {
	i.Number = len(s.Issues) + 1
	if i.State == "" {
		i.State = "open"
	}
	s.Issues = append(s.Issues, &i)
	return &i
}

func (s *Server) createIssue(values map[string]any) answer {
	i := s.Open(Issue{Author: Login})
	s.change(i, values)
	return answer{status: http.StatusCreated, body: s.issueBody(i)}
}

func (s *Server) withIssue(input *openapi3filter.RequestValidationInput, f func(*Issue) answer) answer {
	text := input.PathParams["issue_number"] + input.PathParams["pull_number"]
	if n := number(text); n >= 1 && n <= len(s.Issues) {
		return f(s.Issues[n-1])
	}
	return refuse(http.StatusNotFound, "Not Found")
}

func (s *Server) change(i *Issue, values map[string]any) {
	for name, target := range map[string]*string{"title": &i.Title, "body": &i.Body, "state": &i.State} {
		if text, ok := values[name].(string); ok {
			*target = text
		}
	}
	for _, label := range list(values["labels"]) {
		i.Labels = append(i.Labels, label.(string))
	}
}

func list(v any) []any {
	all, _ := v.([]any)
	return all
}

func (s *Server) editIssue(i *Issue, values map[string]any) answer {
	s.change(i, values)
	return answer{status: http.StatusOK, body: s.issueBody(i)}
}

func (s *Server) createComment(i *Issue, values map[string]any) answer {
	text, _ := values["body"].(string)
	i.Comments = append(i.Comments, text)
	return answer{status: http.StatusCreated, body: gh.IssueComment{Body: &text, User: user(Login)}}
}

func (s *Server) addLabels(i *Issue, values map[string]any) answer {
	s.change(i, values)
	return answer{status: http.StatusOK, body: labels(i.Labels)}
}

func (s *Server) pullBody(i *Issue) *gh.PullRequest {
	end := func(branch string) *gh.PullRequestBranch {
		return &gh.PullRequestBranch{Ref: &branch, SHA: gh.String(s.Refs[branch]), Label: gh.String(Owner + ":" + branch), User: user(Owner)}
	}
	return &gh.PullRequest{
		Number: &i.Number, Title: &i.Title, Body: &i.Body, State: &i.State, Draft: &i.Draft, User: user(i.Author),
		Labels: labels(i.Labels), HTMLURL: gh.String(s.url("pull", strconv.Itoa(i.Number))), Head: end(i.Head), Base: end(i.Base),
	}
}

func (s *Server) listPulls(r *http.Request) answer {
	query := r.URL.Query()
	found := []*gh.PullRequest{}
	for _, i := range s.Issues {
		if i.Head != "" && i.State == query.Get("state") && query.Get("head") == Owner+":"+i.Head {
			found = append(found, s.pullBody(i))
		}
	}
	return answer{status: http.StatusOK, body: found}
}

func (s *Server) createPull(values map[string]any) answer {
	head, base := fmt.Sprint(values["head"]), fmt.Sprint(values["base"])
	taken := slices.ContainsFunc(s.Issues, func(i *Issue) bool {
		return i.Head == head && i.Base == base && i.State == "open"
	})
	switch {
	case s.Refs[head] == "" || s.Refs[base] == "":
		return invalid("PullRequest", "head", "invalid", "")
	case taken:
		return invalid("PullRequest", "", "custom", "A pull request already exists for "+Owner+":"+head+".")
	case s.within(s.Refs[head], s.Refs[base]):
		return invalid("PullRequest", "", "custom", "No commits between "+base+" and "+head)
	}
	draft, _ := values["draft"].(bool)
	i := s.Open(Issue{Author: Login, Head: head, Base: base, Draft: draft})
	s.change(i, values)
	return answer{status: http.StatusCreated, body: s.pullBody(i)}
}

func invalid(resource, field, code, message string) answer {
	got := refuse(http.StatusUnprocessableEntity, "Validation Failed")
	got.body.(map[string]any)["errors"] = []any{
		map[string]any{"resource": resource, "field": field, "code": code, "message": message},
	}
	return got
}

func (s *Server) editPull(i *Issue, values map[string]any) answer {
	s.change(i, values)
	return answer{status: http.StatusOK, body: s.pullBody(i)}
}
