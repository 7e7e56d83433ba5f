// Package github keeps one issue and one pull request of a repository on GitHub as a workflow wants them.
//
// [New] makes a [Client] of one repository. [Client.EnsureIssue] and [Client.EnsurePullRequest] are told what there
// should be, look at what there is, and change what differs: a second call changes nothing. Both find their own by a
// hidden marker, the last line of the body, and no issue, pull request or branch of others is ever touched.
//
//	client, err := github.New(github.Options{Repository: "owner/name", Token: token})
//	…
//	done, err := client.EnsureIssue(ctx, github.Issue{Key: "drift", Title: "…", Body: "…", Open: true})
//
// A pull request is one commit on a fixed branch. GitHub makes and signs the commit (createCommitOnBranch), on a
// branch of its own that was just put onto the base; then the fixed branch is moved there, and the other is deleted,
// in one step that fails if somebody has pushed meanwhile (updateRefs). The fixed branch is never where the base
// does: GitHub would close the pull request. The requests of the second API are the files of folder graphql.
//
// [ReadFiles] takes the files of a pull request from a folder, by patterns.
//
// Limits of GitHub are waited for, up to a bound. An error says what was being done, what GitHub answered, and what
// is probably missing. [Client] is for one goroutine, and two runs at once may open an issue twice: the next call
// closes one of them.
package github
