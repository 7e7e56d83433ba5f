package github

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
)

// Bounds of a pull request: GitHub takes a request of some 45 MB, and base 64 adds a third.
const (
	maxBytes = 25 << 20
	maxFiles = 1000
)

// Files are the files of a pull request.
type Files struct {
	// Patterns are paths from the top of the repository, in which an element may have the wildcards of [path.Match].
	// What one of them matches on the base and is not in Content is deleted.
	Patterns []string
	Content  map[string][]byte
}

// ReadFiles reads from a folder, the work tree, what patterns match. Each must match a file there: one that matches
// none is a mistake, or the wrong folder. Links, and what is not a file, are errors: nothing from elsewhere gets in.
func ReadFiles(dir string, patterns []string) (Files, error) {
	if len(patterns) == 0 {
		return Files{}, errors.New("no files are named")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Files{}, err
	}
	defer root.Close()
	files := Files{Patterns: patterns, Content: map[string][]byte{}}
	left := int64(maxBytes)
	for _, pattern := range patterns {
		if err := checkPattern(pattern); err != nil {
			return Files{}, err
		}
		names, err := expand(root, ".", strings.Split(pattern, "/"))
		if err != nil {
			return Files{}, fmt.Errorf("file %q: %w", pattern, err)
		}
		if len(names) == 0 {
			return Files{}, fmt.Errorf("file %q: there is none in %s: is this the top of the work tree?", pattern, dir)
		}
		for _, name := range names {
			if files.Content[name], err = readFile(root, name, left); err != nil {
				return Files{}, err
			}
			left -= int64(len(files.Content[name]))
		}
	}
	if len(files.Content) > maxFiles {
		return Files{}, fmt.Errorf("%d files: a pull request takes %d", len(files.Content), maxFiles)
	}
	return files, nil
}

// checkPattern refuses what leaves the work tree, or is git's own.
func checkPattern(pattern string) error {
	if !fs.ValidPath(pattern) || pattern == "." || strings.ContainsAny(pattern, "\\\x00\r\n:") {
		return fmt.Errorf("file %q: want a path from the top of the work tree, such as conformance/*.toml", pattern)
	}
	for element := range strings.SplitSeq(pattern, "/") {
		if _, err := path.Match(element, ""); err != nil {
			return fmt.Errorf("file %q: %w", pattern, err)
		}
		if strings.EqualFold(element, ".git") {
			return fmt.Errorf("file %q: .git is not of the work tree", pattern)
		}
	}
	return nil
}

// expand returns the regular files below dir that the elements of a pattern match.
func expand(root *os.Root, dir string, elements []string) ([]string, error) {
	names := []string{elements[0]}
	if strings.ContainsAny(elements[0], "*?[") {
		var err error
		if names, err = matching(root, dir, elements[0]); err != nil {
			return nil, err
		}
	}
	var files []string
	for _, name := range names {
		name = path.Join(dir, name)
		info, err := root.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		case len(elements) == 1 && info.Mode().IsRegular():
			files = append(files, name)
		case len(elements) > 1 && info.IsDir():
			below, err := expand(root, name, elements[1:])
			if err != nil {
				return nil, err
			}
			files = append(files, below...)
		case info.Mode()&fs.ModeSymlink != 0:
			return nil, fmt.Errorf("%s is a link: only files of the work tree itself go into a pull request", name)
		case names[0] == elements[0] || len(elements) == 1 && !info.IsDir():
			return nil, fmt.Errorf("%s is not a file", name)
		}
	}
	return files, nil
}

func matching(root *os.Root, dir, pattern string) ([]string, error) {
	entries, err := fs.ReadDir(root.FS(), dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if ok, _ := path.Match(pattern, entry.Name()); ok && !strings.EqualFold(entry.Name(), ".git") {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// readFile reads at most left bytes. What was a file a moment ago may be something else now.
func readFile(root *os.Root, name string, left int64) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a file", name), err)
	}
	data, err := io.ReadAll(io.LimitReader(f, left+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > left {
		const text = "%s: with it the files are larger than %d MB, the most that a pull request takes"
		return nil, fmt.Errorf(text, name, maxBytes>>20)
	}
	return data, nil
}

// match reports whether one of the patterns matches a path.
func (f Files) match(name string) bool {
	return slices.ContainsFunc(f.Patterns, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// A treeEntry is what a commit has under a path.
type treeEntry struct{ mode, sha string }

const plainFile = "100644"

// sameIn reports whether two trees have the same of all that the files are about.
func (f Files) sameIn(a, b map[string]treeEntry) bool {
	concerns := func(name string) bool {
		_, ours := f.Content[name]
		return ours || f.match(name)
	}
	for name, entry := range a {
		if concerns(name) && b[name] != entry {
			return false
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok && concerns(name) {
			return false
		}
	}
	return true
}

// The requests. testdata/github/cut.mjs checks them against GitHub's schema.
var (
	//go:embed graphql/session.graphql
	sessionRequest string
	//go:embed graphql/commit.graphql
	commitRequest string
	//go:embed graphql/refs.graphql
	refsRequest string
)

// A session has the user of the token, and what GitHub calls the repository.
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
