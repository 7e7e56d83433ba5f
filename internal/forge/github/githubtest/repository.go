package githubtest

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3filter"
)

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
	object := map[string]any{"type": "commit", "sha": commit, "url": s.url("git/commits", commit)}
	return answer{status: http.StatusOK, body: map[string]any{"ref": "refs/heads/" + branch, "object": object}}
}

func (s *Server) url(parts ...string) string {
	return "https://github.com/" + Owner + "/" + Name + "/" + strings.Join(parts, "/")
}

func (s *Server) getTree(sha string) answer {
	commit := s.commits[sha]
	if commit == nil {
		return refuse(http.StatusNotFound, "Not Found")
	}
	entries := []any{}
	for _, path := range slices.Sorted(maps.Keys(commit.Tree)) {
		mode := "100644"
		if commit.Modes[path] != "" {
			mode = commit.Modes[path]
		}
		entries = append(entries, map[string]any{"path": path, "mode": mode, "type": "blob", "sha": commit.Tree[path]})
	}
	return answer{status: http.StatusOK, body: map[string]any{"sha": sha, "truncated": false, "tree": entries}}
}

func (s *Server) compare(basehead string) answer {
	base, head, _ := strings.Cut(basehead, "...")
	if s.commits[base] == nil || s.commits[head] == nil {
		return refuse(http.StatusNotFound, "Not Found")
	}
	behind := s.history(base)
	var ahead []any
	common := head
	for _, c := range s.history(head) {
		if slices.Contains(behind, c) {
			common = c
			break
		}
		ahead = append([]any{s.commitBody(c)}, ahead...)
	}
	status := "diverged"
	if len(ahead) == 0 {
		status, ahead = "behind", []any{}
	}
	return answer{status: http.StatusOK, body: map[string]any{
		"status": status, "ahead_by": len(ahead), "behind_by": slices.Index(behind, common), "total_commits": len(ahead),
		"commits": ahead, "merge_base_commit": s.commitBody(common), "base_commit": s.commitBody(base), "files": []any{},
	}}
}

func (s *Server) commitBody(sha string) map[string]any {
	c := s.commits[sha]
	parents := []any{}
	if c.Parent != "" {
		parents = append(parents, map[string]any{"sha": c.Parent})
	}
	reason := "unsigned"
	if c.Verified {
		reason = "valid"
	}
	return map[string]any{
		"sha": sha, "parents": parents, "author": user(c.Author), "committer": user(c.Author),
		"commit": map[string]any{
			"message": c.Message,
			"verification": map[string]any{
				"verified": c.Verified, "reason": reason, "payload": nil, "signature": nil, "verified_at": nil,
			},
		},
	}
}

func user(login string) map[string]any {
	kind := "User"
	if strings.HasSuffix(login, "[bot]") {
		kind = "Bot"
	}
	return map[string]any{"login": login, "type": kind}
}

func (s *Server) issueBody(i *Issue) map[string]any {
	body := map[string]any{
		"number": i.Number, "title": i.Title, "body": i.Body, "state": i.State, "user": user(i.Author),
		"labels": labels(i.Labels), "html_url": s.url("issues", strconv.Itoa(i.Number)),
	}
	if i.Head != "" {
		body["pull_request"] = map[string]any{}
	}
	return body
}

func labels(names []string) []any {
	all := []any{}
	for _, name := range names {
		all = append(all, map[string]any{"name": name})
	}
	return all
}

func (s *Server) listIssues(r *http.Request) answer {
	query := r.URL.Query()
	var found []any
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
	got.body = append([]any{}, found[min((page-1)*size, len(found)):min(page*size, len(found))]...)
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

func (s *Server) createIssue(asked map[string]any) answer {
	i := s.Open(Issue{Author: Login})
	s.change(i, asked)
	return answer{status: http.StatusCreated, body: s.issueBody(i)}
}

func (s *Server) withIssue(input *openapi3filter.RequestValidationInput, f func(*Issue) answer) answer {
	text := input.PathParams["issue_number"] + input.PathParams["pull_number"]
	if n := number(text); n >= 1 && n <= len(s.Issues) {
		return f(s.Issues[n-1])
	}
	return refuse(http.StatusNotFound, "Not Found")
}

func (s *Server) change(i *Issue, asked map[string]any) {
	for name, target := range map[string]*string{"title": &i.Title, "body": &i.Body, "state": &i.State} {
		if text, ok := asked[name].(string); ok {
			*target = text
		}
	}
	for _, label := range list(asked["labels"]) {
		i.Labels = append(i.Labels, label.(string))
	}
}

func list(v any) []any {
	all, _ := v.([]any)
	return all
}

func (s *Server) editIssue(i *Issue, asked map[string]any) answer {
	s.change(i, asked)
	return answer{status: http.StatusOK, body: s.issueBody(i)}
}

func (s *Server) createComment(i *Issue, asked map[string]any) answer {
	text, _ := asked["body"].(string)
	i.Comments = append(i.Comments, text)
	return answer{status: http.StatusCreated, body: map[string]any{"body": text, "user": user(Login)}}
}

func (s *Server) addLabels(i *Issue, asked map[string]any) answer {
	s.change(i, asked)
	return answer{status: http.StatusOK, body: labels(i.Labels)}
}

func (s *Server) pullBody(i *Issue) map[string]any {
	end := func(branch string) map[string]any {
		return map[string]any{"ref": branch, "sha": s.Refs[branch], "label": Owner + ":" + branch, "user": user(Owner)}
	}
	return map[string]any{
		"number": i.Number, "title": i.Title, "body": i.Body, "state": i.State, "draft": i.Draft, "user": user(i.Author),
		"labels": labels(i.Labels), "html_url": s.url("pull", strconv.Itoa(i.Number)),
		"head": end(i.Head), "base": end(i.Base),
	}
}

func (s *Server) listPulls(r *http.Request) answer {
	query := r.URL.Query()
	found := []any{}
	for _, i := range s.Issues {
		if i.Head != "" && i.State == query.Get("state") && query.Get("head") == Owner+":"+i.Head {
			found = append(found, s.pullBody(i))
		}
	}
	return answer{status: http.StatusOK, body: found}
}

func (s *Server) createPull(asked map[string]any) answer {
	head, base := fmt.Sprint(asked["head"]), fmt.Sprint(asked["base"])
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
	draft, _ := asked["draft"].(bool)
	i := s.Open(Issue{Author: Login, Head: head, Base: base, Draft: draft})
	s.change(i, asked)
	return answer{status: http.StatusCreated, body: s.pullBody(i)}
}

func invalid(resource, field, code, message string) answer {
	got := refuse(http.StatusUnprocessableEntity, "Validation Failed")
	got.body.(map[string]any)["errors"] = []any{
		map[string]any{"resource": resource, "field": field, "code": code, "message": message},
	}
	return got
}

func (s *Server) editPull(i *Issue, asked map[string]any) answer {
	s.change(i, asked)
	return answer{status: http.StatusOK, body: s.pullBody(i)}
}
