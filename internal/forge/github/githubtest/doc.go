// Package githubtest is a GitHub with one repository, for tests of what keeps issues and pull requests on it.
//
// [Start] serves both APIs on 127.0.0.1. Every request is checked against GitHub's own descriptions, cut down to what is used
// here (testdata/github): one that does not fit is answered with 500 and listed by [Server.Violations]. Answers are the types of
// go-github.
//
// What it keeps are commits, branches, issues, pull requests and labels, and the rules that matter: a branch that
// comes to stand where the base does closes its pull request, a moved branch is not moved again by a client that has not seen
// it, one pull request a branch, and no pull request without commits. Tests play other people with [Server.Push] and
// [Server.Issues].
package githubtest
