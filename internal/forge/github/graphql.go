package github

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// The requests. testdata/github/cut.mjs checks them against GitHub's schema.
var (
	//go:embed graphql/session.graphql
	sessionRequest string
	//go:embed graphql/commit.graphql
	commitRequest string
	//go:embed graphql/refs.graphql
	refsRequest string
)

// A session is who the token is, and what GitHub calls the repository.
type session struct {
	login         string // "github-actions[bot]"
	repositoryID  string
	defaultBranch string
}

// session also finds out early that a token or a repository is wrong.
func (c *Client) session(ctx context.Context) (session, error) {
	var data struct {
		Viewer     struct{ Login string }
		Repository *struct {
			ID               string
			DefaultBranchRef *struct{ Name string }
		}
	}
	variables := map[string]any{"owner": c.owner, "name": c.name}
	if err := c.query(ctx, "log in", sessionRequest, variables, &data, needRead); err != nil {
		return session{}, err
	}
	if data.Viewer.Login == "" || data.Repository == nil {
		return session{}, fmt.Errorf("%s: log in: GitHub's answer names no user or no repository", c.full())
	}
	s := session{login: data.Viewer.Login, repositoryID: data.Repository.ID}
	if data.Repository.DefaultBranchRef != nil {
		s.defaultBranch = data.Repository.DefaultBranchRef.Name
	}
	return s, nil
}

// commitInput is CreateCommitOnBranchInput.
type commitInput struct {
	Branch struct {
		Repository string `json:"repositoryNameWithOwner"`
		Name       string `json:"branchName"`
	} `json:"branch"`
	Message struct {
		Headline string `json:"headline"`
		Body     string `json:"body"`
	} `json:"message"`
	Changes      fileChanges `json:"fileChanges"`
	ExpectedHead string      `json:"expectedHeadOid"`
}

type fileChanges struct {
	Additions []fileAddition `json:"additions"`
	Deletions []fileDeletion `json:"deletions"`
}

type fileAddition struct {
	Path     string `json:"path"`
	Contents []byte `json:"contents"` // JSON has it in base 64, as GitHub wants it
}

type fileDeletion struct {
	Path string `json:"path"`
}

// createCommit returns the id of the new commit.
func (c *Client) createCommit(ctx context.Context, input commitInput) (string, error) {
	var data struct {
		CreateCommitOnBranch *struct{ Commit *struct{ OID string } }
	}
	err := c.query(ctx, "commit", commitRequest, map[string]any{"input": input}, &data, needCommit)
	if err != nil {
		return "", err
	}
	if data.CreateCommitOnBranch == nil || data.CreateCommitOnBranch.Commit == nil {
		return "", fmt.Errorf("%s: commit: GitHub's answer names no commit", c.full())
	}
	return data.CreateCommitOnBranch.Commit.OID, nil
}

// none is the id of no commit: a branch that is not there.
const none = "0000000000000000000000000000000000000000"

// A refUpdate is RefUpdate. Without before the branch may stand anywhere, or not be there.
type refUpdate struct {
	Name   string `json:"name"`
	Before string `json:"beforeOid,omitempty"`
	After  string `json:"afterOid"`
	Force  bool   `json:"force"`
}

// updateRefs moves all branches or none.
func (c *Client) updateRefs(ctx context.Context, s session, doing string, updates ...refUpdate) error {
	input := map[string]any{"repositoryId": s.repositoryID, "refUpdates": updates}
	return c.query(ctx, doing, refsRequest, map[string]any{"input": input}, nil, needCommit)
}

// query asks the second API. Its errors come in answers that are otherwise good.
func (c *Client) query(
	ctx context.Context, doing, query string, variables map[string]any, data any, need string,
) error {
	req, err := c.rest.NewRequest(http.MethodPost, c.graphql, map[string]any{"query": query, "variables": variables})
	if err != nil {
		return err
	}
	var answer struct {
		Data   any
		Errors []struct{ Type, Message string }
	}
	answer.Data = data
	if _, err := c.rest.Do(ctx, req, &answer); err != nil {
		return c.explain(doing, err, need)
	}
	if len(answer.Errors) == 0 {
		return nil
	}
	var texts []string
	for _, e := range answer.Errors {
		texts = append(texts, strings.TrimSpace(e.Type+" "+e.Message))
	}
	err = fmt.Errorf("%s: %s: GitHub answered: %s", c.full(), doing, strings.Join(texts, "; "))
	switch said := strings.ToLower(answer.Errors[0].Message); {
	case strings.Contains(said, "rule violation"), strings.Contains(said, "protected branch"):
		err = fmt.Errorf("%w: a rule of the repository protects the branch: exempt it in Settings, Rules, or let the token's App bypass it", err)
	case slices.Contains([]string{"FORBIDDEN", "INSUFFICIENT_SCOPES", "NOT_FOUND"}, answer.Errors[0].Type):
		err = fmt.Errorf("%w: %s", err, lacks(need))
	}
	return err
}
