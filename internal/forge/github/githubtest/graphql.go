package githubtest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A graphqlDescription is what GitHub's schema says of the requests that there are.
type graphqlDescription struct {
	Operations map[string]struct {
		Query     string
		Variables map[string]string
	}
	Inputs map[string]map[string]string
}

func loadGraphQL(dir string) (*graphqlDescription, error) {
	text, err := os.ReadFile(filepath.Join(dir, "graphql.json"))
	if err != nil {
		return nil, err
	}
	d := &graphqlDescription{}
	return d, json.Unmarshal(text, d)
}

func (s *Server) answerGraphQL(body []byte) answer {
	var request struct {
		Query     string
		Variables map[string]any
	}
	if err := json.Unmarshal(body, &request); err != nil {
		return s.violation("graphql: %v", err)
	}
	for name, op := range s.graphql.Operations {
		if op.Query != request.Query {
			continue
		}
		fields, _, _ := strings.Cut(strings.SplitN(op.Query, " ", 3)[1], "(")
		s.requests = append(s.requests, "POST /graphql "+fields)
		if err := s.graphql.checkFields("variables", op.Variables, request.Variables); err != nil {
			return s.violation("graphql: %s: %v", name, err)
		}
		data, failure := s.operate(name, request.Variables)
		if failure != nil {
			return answer{status: http.StatusOK, body: map[string]any{"data": nil, "errors": []any{failure}}}
		}
		return answer{status: http.StatusOK, body: map[string]any{"data": data}}
	}
	return s.violation("graphql: a request that testdata/github/cut.mjs has not checked: run it again: %s", request.Query)
}

var (
	objectID = regexp.MustCompile(`^[0-9a-f]{40}$`)
	refName  = regexp.MustCompile(`^refs/heads/[^ ~^:?*\[\\]+$`)
)

// check compares a value with a type as GraphQL writes it.
func (d *graphqlDescription) check(place, kind string, value any) error {
	inner, required := strings.CutSuffix(kind, "!")
	if value == nil {
		if required {
			return fmt.Errorf("%s: missing, a %s", place, kind)
		}
		return nil
	}
	if element, ok := strings.CutPrefix(inner, "["); ok {
		list, ok := value.([]any)
		if !ok {
			return fmt.Errorf("%s: want a list", place)
		}
		for i, v := range list {
			if err := d.check(fmt.Sprintf("%s[%d]", place, i), strings.TrimSuffix(element, "]"), v); err != nil {
				return err
			}
		}
		return nil
	}
	if fields, ok := d.Inputs[inner]; ok {
		object, ok := value.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: want an object", place)
		}
		return d.checkFields(place, fields, object)
	}
	return checkScalar(place, inner, value)
}

func (d *graphqlDescription) checkFields(place string, fields map[string]string, object map[string]any) error {
	for name := range object {
		if _, ok := fields[name]; !ok {
			return fmt.Errorf("%s.%s: there is no such field", place, name)
		}
	}
	for name, kind := range fields {
		if err := d.check(place+"."+name, kind, object[name]); err != nil {
			return err
		}
	}
	return nil
}

func checkScalar(place, kind string, value any) error {
	text, isText := value.(string)
	ok := isText
	switch kind {
	case "Boolean":
		_, ok = value.(bool)
	case "GitObjectID":
		ok = ok && objectID.MatchString(text)
	case "GitRefname":
		ok = ok && refName.MatchString(text)
	case "Base64String":
		_, err := base64.StdEncoding.DecodeString(text)
		ok = ok && err == nil
	case "String", "ID":
	default:
		return fmt.Errorf("%s: type %s is not known here", place, kind)
	}
	if !ok {
		return fmt.Errorf("%s: %v is no %s", place, value, kind)
	}
	return nil
}

const repositoryID = "R_kgDOConformance"

// operate does what a request asks. Its values have been checked.
func (s *Server) operate(name string, variables map[string]any) (data map[string]any, failure map[string]any) {
	switch name {
	case "session.graphql":
		if variables["owner"] != Owner || variables["name"] != Name {
			return nil, graphqlError("NOT_FOUND", "Could not resolve to a Repository")
		}
		return map[string]any{
			"viewer":     map[string]any{"login": Login},
			"repository": map[string]any{"id": repositoryID, "defaultBranchRef": map[string]any{"name": Default}},
		}, nil
	case "commit.graphql":
		return s.commitOnBranch(variables["input"].(map[string]any))
	default:
		return s.moveRefs(variables["input"].(map[string]any))
	}
}

func graphqlError(kind, message string) map[string]any {
	return map[string]any{"type": kind, "message": message}
}

func (s *Server) commitOnBranch(input map[string]any) (data, failure map[string]any) {
	branch := input["branch"].(map[string]any)
	if branch["repositoryNameWithOwner"] != Owner+"/"+Name {
		return nil, graphqlError("NOT_FOUND", "Could not resolve to a Repository")
	}
	name := fmt.Sprint(branch["branchName"])
	head := s.Refs[name]
	switch {
	case head == "":
		return nil, graphqlError("NOT_FOUND", "A branch was not found")
	case head != input["expectedHeadOid"]:
		return nil, graphqlError("STALE_DATA", "Expected branch to point to another commit")
	}
	tree := maps.Clone(s.commits[head].Tree)
	changes, _ := input["fileChanges"].(map[string]any)
	additions, _ := changes["additions"].([]any)
	for _, a := range additions {
		content, _ := base64.StdEncoding.DecodeString(a.(map[string]any)["contents"].(string))
		tree[a.(map[string]any)["path"].(string)] = blobSHA(content)
	}
	deletions, _ := changes["deletions"].([]any)
	for _, d := range deletions {
		path := d.(map[string]any)["path"].(string)
		if _, ok := tree[path]; !ok {
			return nil, graphqlError("UNPROCESSABLE", "A path was requested for deletion which does not exist")
		}
		delete(tree, path)
	}
	message := input["message"].(map[string]any)
	text := fmt.Sprint(message["headline"])
	if body, _ := message["body"].(string); body != "" {
		text += "\n\n" + body
	}
	c := s.add(&Commit{
		Parent: head, Tree: tree, Modes: s.commits[head].Modes, Message: text, Author: Login, Verified: true,
	})
	s.set(name, c.SHA)
	return map[string]any{"createCommitOnBranch": map[string]any{"commit": map[string]any{"oid": c.SHA}}}, nil
}

const noCommit = "0000000000000000000000000000000000000000"

// moveRefs moves all or none.
func (s *Server) moveRefs(input map[string]any) (data, failure map[string]any) {
	if input["repositoryId"] != repositoryID {
		return nil, graphqlError("NOT_FOUND", "Could not resolve to a node")
	}
	updates := input["refUpdates"].([]any)
	for _, u := range updates {
		update := u.(map[string]any)
		name := strings.TrimPrefix(update["name"].(string), "refs/heads/")
		now, after := s.Refs[name], update["afterOid"].(string)
		if now == "" {
			now = noCommit
		}
		force, _ := update["force"].(bool)
		before, seen := update["beforeOid"].(string)
		switch {
		case s.Protected[name] != "":
			return nil, graphqlError("UNPROCESSABLE", s.Protected[name])
		case seen && before != now:
			return nil, graphqlError("UNPROCESSABLE", "Reference update failed: refs/heads/"+name+" is at "+now)
		case after != noCommit && s.commits[after] == nil:
			return nil, graphqlError("UNPROCESSABLE", "No such object "+after)
		case after != noCommit && now != noCommit && !force && !s.within(now, after):
			return nil, graphqlError("UNPROCESSABLE", "Update is not a fast forward")
		}
	}
	for _, u := range updates {
		update := u.(map[string]any)
		s.set(strings.TrimPrefix(update["name"].(string), "refs/heads/"), update["afterOid"].(string))
	}
	return map[string]any{"updateRefs": map[string]any{"clientMutationId": nil}}, nil
}
