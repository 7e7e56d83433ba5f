package githubtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3filter"
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
	// AnyCreator has a list of issues hold those of everybody, whoever is asked for.
	AnyCreator bool
	// Protected are branches that rules keep everybody from moving, with what GitHub says of it.
	Protected map[string]string

	mu       sync.Mutex
	http     *httptest.Server
	rest     *description
	graphql  *graphqlDescription
	commits  map[string]*Commit
	faults   []Fault
	requests []string
	problems []string
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

// Problems are the requests and answers that did not fit GitHub's description.
func (s *Server) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
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

// problem records what does not fit the descriptions, and is its answer.
func (s *Server) problem(format string, args ...any) answer {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
	return refuse(http.StatusInternalServerError, "test: %s", s.problems[len(s.problems)-1])
}

func (s *Server) answerREST(r *http.Request, body []byte) answer {
	what := r.Method + " " + r.URL.Path
	s.requests = append(s.requests, what)
	input, err := s.rest.checkRequest(r, body)
	if err != nil {
		return s.problem("%s: request: %v", what, err)
	}
	var asked map[string]any
	if len(body) > 0 {
		if err := json.Unmarshal(body, &asked); err != nil {
			return s.problem("%s: request: %v", what, err)
		}
	}
	got := s.route(r, input, asked)
	got.body, err = s.rest.whole(input, got.status, got.body)
	if err != nil {
		return s.problem("%s: answer: %v", what, err)
	}
	text, err := json.Marshal(got.body)
	if err != nil {
		return s.problem("%s: answer: %v", what, err)
	}
	if err := s.rest.checkAnswer(input, got.status, text); err != nil {
		return s.problem("%s: answer: %v", what, err)
	}
	return got
}

// route answers one operation of the description.
func (s *Server) route(r *http.Request, input *openapi3filter.RequestValidationInput, asked map[string]any) answer {
	if input.PathParams["owner"] != Owner || input.PathParams["repo"] != Name {
		return refuse(http.StatusNotFound, "Not Found")
	}
	switch input.Route.Operation.OperationID {
	case "issues/list-for-repo":
		return s.listIssues(r)
	case "issues/create":
		return s.createIssue(asked)
	case "issues/update":
		return s.withIssue(input, func(i *Issue) answer { return s.editIssue(i, asked) })
	case "issues/create-comment":
		return s.withIssue(input, func(i *Issue) answer { return s.createComment(i, asked) })
	case "issues/add-labels":
		return s.withIssue(input, func(i *Issue) answer { return s.addLabels(i, asked) })
	case "pulls/list":
		return s.listPulls(r)
	case "pulls/create":
		return s.createPull(asked)
	case "pulls/update":
		return s.withIssue(input, func(i *Issue) answer { return s.editPull(i, asked) })
	case "git/get-ref":
		return s.getRef(input.PathParams["ref"])
	case "git/get-tree":
		return s.getTree(input.PathParams["tree_sha"])
	case "repos/compare-commits-with-basehead":
		return s.compare(input.PathParams["basehead"])
	}
	return s.problem("%s is not served", input.Route.Operation.OperationID)
}

func newReader(body []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) }
