package golden

import (
	"path/filepath"
	"testing"
)

// As GitHub writes them, but for most of it.
const (
	forkEvent = `{"action":"opened","pull_request":{"head":{"repo":{"full_name":"guest/name","fork":true}},"base":{"repo":{"full_name":"owner/name","fork":false}}}}`
	ownEvent  = `{"pull_request":{"head":{"repo":{"full_name":"owner/name","fork":true}},"base":{"repo":{"full_name":"Owner/name","fork":true}}}}`
)

func TestFromFork(t *testing.T) {
	tests := []struct {
		name, event, content string
		want                 bool
	}{
		{name: "fork", event: "pull_request", content: forkEvent, want: true},
		{name: "branch of a repository that is a fork", event: "pull_request", content: ownEvent},
		{name: "with the rights of the base", event: "pull_request_target", content: forkEvent},
		{name: "push", event: "push", content: forkEvent},
		{name: "fork was deleted", event: "pull_request", content: `{"pull_request":{"head":{"repo":null},"base":{"repo":{"full_name":"o/n"}}}}`, want: true},
		{name: "only the flag", event: "pull_request", content: `{"pull_request":{"head":{"repo":{"fork":true}}}}`, want: true},
		{name: "not an event", event: "pull_request", content: `[`},
		{name: "empty", event: "pull_request", content: `{}`},
		{name: "no file", event: "pull_request"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "event.json")
			if test.content != "" {
				write(t, file, []byte(test.content))
			}
			setenv(t, map[string]string{"GITHUB_EVENT_NAME": test.event, "GITHUB_EVENT_PATH": file})
			if got := fromFork(); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}

func TestSubjectOf(t *testing.T) {
	tests := []struct{ name, token, want string }{
		{name: "token", token: "e30.eyJzdWIiOiJyZXBvOm8vbjpyZWY6eCJ9.c2ln", want: "repo:o/n:ref:x"},
		{name: "control characters", token: "e30.eyJzdWIiOiJhXG46OmVycm9yOjoifQ.c2ln", want: "a ::error::"},
		{name: "no subject", token: "e30.e30.c2ln"},
		{name: "not a token", token: "topsecret"},
		{name: "not base64", token: "a.!.c"},
		{name: "not JSON", token: "a.YWJj.c"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := subjectOf(test.token); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
