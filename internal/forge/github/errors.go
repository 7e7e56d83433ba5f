package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	gh "github.com/google/go-github/v62/github"
)

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

// isStatus reports whether GitHub answered with a status.
func isStatus(err error, status int) bool {
	var answer *gh.ErrorResponse
	return errors.As(err, &answer) && answer.Response.StatusCode == status
}
